"""Plan the picture of an output as a chain of filters: upright, square pixels, the requested size and colours.

The chain is text for libavfilter, so both engines run the same filters. Every scale filter names algorithm,
`accurate_rnd+bitexact`, and range and matrix on both sides; otherwise results differ between engines and between CPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from av.video.format import VideoFormat

from vidprep.formats.errors import PictureError
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import NO_CROPPING, NO_HDR_METADATA, Colour, FrameSize, HdrMetadata, Orientation
from vidprep.formats.spread import nearest_bucket, smart_resize
from vidprep.formats.video.rgb import SHORT_OF_WHITE, STRETCH
from vidprep.transcode.media._source_picture import (
    BT709,
    CONVERTER_NAMES,
    HDR_TRANSFERS,
    MATRIX_NAMES,
    SourcePicture,
    alike,
    input_colour,
    is_refused,
    output_colour,
    tags_for_scaling,
)
from vidprep.transcode.settings.options import Scale
from vidprep.transcode.settings.run import RunSettings

ROUNDING = 2  # pixels between even sizes of one aspect


def _even(value: Fraction | float) -> int:
    """Return the nearest even number, at least 2."""
    return max(2, 2 * int(Fraction(value) / 2 + Fraction(1, 2)))


@dataclass(frozen=True, slots=True)
class OutputRoom:
    """Size that a later picture must fit when a source changes in the middle.

    Attributes:
        room: Size into which pictures are fitted
    """

    size: FrameSize
    room: FrameSize


@dataclass(frozen=True, slots=True)
class Shape:
    """Geometry of an output.

    Attributes:
        trim: Even part of an odd picture that is not scaled; None if nothing is trimmed
        scaled: Size after scaling, before turning
        final: Size of the output
        offset: Start of the crop, or position of the picture in the padding
    """

    trim: FrameSize | None
    scaled: FrameSize
    final: FrameSize
    offset: tuple[int, int]
    room: FrameSize
    crop: bool = False
    pad: bool = False

    @staticmethod
    def build(
        source: SourcePicture, scale: Scale, like: OutputRoom | None, warnings: list[Remark], *, keeps_odd: bool = False
    ) -> Shape:
        turned = source.orientation.transpose
        width, height = _displayed_size(source, warnings)

        target = like.size if like else _bucket(scale, width, height, warnings) if scale.buckets else scale.size
        if target is None:
            return Shape._build_by_short_side(source, scale, width, height, warnings, keeps_odd=keeps_odd)
        fit = scale.filling if scale.size or scale.buckets else "pad"
        zoom, grows = _zoom(fit, target, width, height)
        stays = like is None and grows and not scale.upscale
        if stays and fit != "pad":
            raise PictureError(
                f"shown at {round(width)}x{round(height)} it is smaller than {target}; allow --upscale, or give --fit pad"
            )
        if stays:
            zoom = Fraction(1)
            warnings.append(Remark("not_enlarged", f"smaller than {target}, and not enlarged without --upscale"))
        if like is not None and fit == "pad":
            zoom = min(zoom, max(Fraction(1), min(like.room.width / width, like.room.height / height)))
        inner = _inner_size(fit, target, _even(width * zoom), _even(height * zoom))
        room = like.room if like else inner if stays else target
        if like is not None and max(abs(inner.width - room.width), abs(inner.height - room.height)) <= ROUNDING:
            inner = room
        left, top = abs(target.width - inner.width) // 4 * 2, abs(target.height - inner.height) // 4 * 2
        scaled = FrameSize(inner.height, inner.width) if turned else inner
        return Shape(
            None,
            scaled,
            target,
            (left, top),
            room,
            crop=fit == "crop" and inner != target,
            pad=fit == "pad" and inner != target,
        )

    @staticmethod
    def _build_by_short_side(
        source: SourcePicture,
        scale: Scale,
        width: Fraction,
        height: Fraction,
        warnings: list[Remark],
        *,
        keeps_odd: bool,
    ) -> Shape:
        turned = source.orientation.transpose
        if scale.multiple_of is not None:
            least, most = scale.areas
            try:
                shown = smart_resize(round(width), round(height), scale.multiple_of, min_area=least, max_area=most)
            except ValueError as error:
                raise PictureError(f"{error}, which --multiple-of does not take") from error
            final = FrameSize(*shown)
            return Shape(None, FrameSize(*reversed(final)) if turned else final, final, (0, 0), final)
        if keeps_odd and width == source.size.width and height == source.size.height:
            return Shape(None, source.size, source.size, (0, 0), source.size)
        short = min(width, height)
        zoom = Fraction(scale.short_side) / short if scale.short_side else Fraction(1)
        if zoom > 1 and not scale.upscale:
            zoom = Fraction(1)
            warnings.append(
                Remark(
                    "not_enlarged", f"its shorter side has {round(short)} pixels, and is not enlarged without --upscale"
                )
            )
        final = FrameSize(_even(width * zoom), _even(height * zoom))
        trim = None
        stored = source.size
        if (
            zoom == 1
            and source.sample_aspect_ratio == 1
            and (stored.width % 2 or stored.height % 2)
            and min(stored) > 1
        ):
            trim = FrameSize(stored.width // 2 * 2, stored.height // 2 * 2)
            warnings.append(Remark("odd_size_cropped", f"odd size {stored} cropped to {trim}"))
            final = FrameSize(trim.height, trim.width) if turned else trim
        scaled = FrameSize(final.height, final.width) if turned else final
        return Shape(trim, scaled, final, (0, 0), final)


def _bucket(scale: Scale, width: Fraction, height: Fraction, warnings: list[Remark]) -> FrameSize:
    """Return the bucket of a picture. A smaller one keeps its size, down to multiples, unless it may be enlarged. Raises PictureError."""
    assert scale.buckets is not None and scale.bucket_area is not None
    multiple = scale.buckets
    bucket = FrameSize(*nearest_bucket(float(width), float(height), multiple, math.prod(scale.bucket_area)))
    if scale.upscale or not _zoom(scale.filling, bucket, width, height)[1]:
        return bucket
    own = FrameSize(int(width) // multiple * multiple, int(height) // multiple * multiple)
    if not min(own):
        raise PictureError(
            f"shown at {round(width)}x{round(height)} it is smaller than --buckets {multiple}; allow --upscale"
        )
    warnings.append(Remark("not_enlarged", f"smaller than its bucket {bucket}, and not enlarged without --upscale"))
    return own


# Their decoders give mastering display and light level with keyframes alone: a tone map that heeds them changes with each.
TOLD_AT_KEYFRAMES = {"h264"}
RANGE_NAMES = {True: "full", False: "limited"}


# Pixel formats that libavfilter's `colorspace` supports.
CONVERTED = {f"yuv{chroma}p{depth}" for chroma in (420, 422, 444) for depth in ("", "10le", "12le")}
USUAL_DEPTH = 10  # bits per sample of ordinary video


@dataclass(frozen=True, slots=True)
class Picture:
    """Plan of the pictures of an output.

    Attributes:
        filters: (name, arguments) in order; empty if frames pass unchanged
        warnings: Remarks for the row
        room: Size into which later pictures of another size are fitted
        light: HDR metadata that is kept
    """

    size: FrameSize
    pixel_format: str
    colour: Colour
    filters: tuple[tuple[str, str], ...]
    warnings: tuple[Remark, ...]
    room: FrameSize
    tone_mapped: bool = False
    light: HdrMetadata = NO_HDR_METADATA

    @property
    def chain(self) -> str:
        """The filters as ffmpeg's -vf; `null` if there are none."""
        return ",".join(f"{name}={args}" if args else name for name, args in self.filters) or "null"


def plan_picture(
    source: SourcePicture, settings: RunSettings, pixel_format: str, like: Picture | None = None
) -> Picture:
    """Plan the picture that settings make of a source.

    Args:
        source: The first frame.
        settings: Settings of the run.
        pixel_format: Pixel format of the output.
        like: Existing output whose size and colours are kept, if a source changes in the middle.

    Raises:
        PictureError: The settings cannot produce it.
    """
    warnings: list[Remark] = []
    colour_in = input_colour(source, warnings)
    colour_out, tone_map = output_colour(colour_in, settings, warnings)
    warnings += _depth_reduced(source.pixel_format, pixel_format, settings)
    if like is not None:
        colour_out = like.colour
        tone_map = colour_out.transfer != colour_in.transfer and not HDR_TRANSFERS.keys().isdisjoint(
            (colour_in.transfer, colour_out.transfer)
        )
    shape = Shape.build(
        source,
        settings.scale,
        OutputRoom(like.size, like.room) if like else None,
        warnings,
        keeps_odd=settings.keeps_jpegs and source.codec == "mjpeg",
    )
    turns_first = source.orientation.transpose and "422" in pixel_format  # `transpose` does not support 4:2:2

    chain = _Chain(source, settings, pixel_format, colour_in)
    chain.replace_invalid_tags(tone_map=tone_map)
    chain.use_own_range()
    chain.crop_as_the_container_says()
    chain.widen_few_bits()
    chain.put_alpha_over_black()
    chain.trim(shape.trim, turns_next=turns_first)
    if turns_first:
        chain.turn(source.orientation)
    chain.scale(_swap(shape.scaled) if turns_first else shape.scaled, colour_out, tone_map=tone_map)
    if not turns_first:
        chain.turn(source.orientation)
    chain.fit(shape)
    light = source.light if colour_out.transfer in HDR_TRANSFERS else NO_HDR_METADATA
    return Picture(
        shape.final, pixel_format, colour_out, tuple(chain.filters), tuple(warnings), shape.room, tone_map, light
    )


def _depth_reduced(source: str, output: str, settings: RunSettings) -> list[Remark]:
    """Return a remark if a source with more than 10 bits loses precision. Such sources are often depth maps, microscopy or
    X-rays.
    """
    held, kept = _bits(source), _bits(output)
    if held <= USUAL_DEPTH or held <= kept:
        return []
    deeper = [each for each in settings.output.other_pixel_formats if _bits(each) > kept]
    advice = f"; --pixel-format {deeper[0]} keeps {_bits(deeper[0])}" if deeper else ""
    return [Remark("depth_reduced", f"{held} bits per sample ({source}) became {kept}{advice}")]


def _bits(pixel_format: str) -> int:
    return max(component.bits for component in VideoFormat(pixel_format).components)


class _Chain:
    """Filters of one picture under construction.

    Attributes:
        picture: Pixel format after the filters so far
        colour: Colours after the filters so far
        size: Size after the filters so far
    """

    def __init__(self, source: SourcePicture, settings: RunSettings, pixel_format: str, colour: Colour) -> None:
        self._source, self._pixel_format, self.colour = source, pixel_format, colour
        self._scaler = settings.scale.scaler
        self._is_jpeg = settings.output.is_jpeg
        self._yuv_in = not (source.is_rgb or source.has_alpha)
        self.picture, self.size = source.pixel_format, source.size
        self.filters: list[tuple[str, str]] = []

    def replace_invalid_tags(self, *, tone_map: bool) -> None:
        """Delete HDR metadata that is not kept, and replace colour tags that libswscale rejects."""
        source = self._source
        if source.tagged.transfer in HDR_TRANSFERS:  # the tone map and ffmpeg's encoders use the frame's metadata
            is_steady = not (tone_map and source.codec in TOLD_AT_KEYFRAMES)
            self.filters += _delete_light(source.light if is_steady else NO_HDR_METADATA)
        if is_refused(source.tagged):
            self.filters.append(("setparams", tags_for_scaling(self.colour, is_rgb=source.is_rgb)))

    def use_own_range(self) -> None:
        """Turn a full-range pixel format whose frames are tagged as limited range into the plain one, without a change of values.

        libavcodec's H.264 decoder keeps the format when a stream changes from full to limited range.
        """
        if self.picture.startswith("yuvj") and self._source.is_tagged_limited:
            same = replace(self.colour, full_range=True)
            self._scale_to(self._source.stored, same, same, self.picture.replace("yuvj", "yuv"))
            self.filters.append(("setparams", "range=limited"))

    def crop_as_the_container_says(self) -> None:
        crop = self._source.cropping
        if crop == NO_CROPPING:
            return
        self._hold(self._source.stored, turned=False)
        self.filters.append(("crop", f"{self.size.width}:{self.size.height}:{crop.left}:{crop.top}"))

    def widen_few_bits(self) -> None:
        """Expand RGB of few bits to eight bits. libswscale's conversion to YCbCr only shifts such bits, which shrinks the
        range.
        """
        if _bits(self.picture) >= 8:
            return
        is_short_of_white = self.picture in SHORT_OF_WHITE
        same = replace(self.colour, full_range=True)
        self._scale_to(self.size, same, same, "rgb24" if self._source.is_rgb else "gray")
        self.filters += [STRETCH] if is_short_of_white else []

    def put_alpha_over_black(self) -> None:
        if not self._source.has_alpha:
            return
        is_deep = _bits(self.picture) > 8
        rgb = replace(self.colour, full_range=True)
        self._scale_to(self.size, self.colour, rgb, "gbrap16le" if is_deep else "gbrap")
        self.filters.append(("premultiply", "inplace=1"))
        self.colour = rgb

    def trim(self, size: FrameSize | None, *, turns_next: bool) -> None:
        """Trim to even sides.

        Args:
            size: Even size.
            turns_next: Whether `transpose` follows, which needs pictures aligned.
        """
        if size is not None or turns_next:
            self._hold(self.size, turned=turns_next)
        if size is not None:
            self.filters.append(("crop", f"{size.width}:{size.height}:0:0"))
            self.size = size

    def turn(self, orientation: Orientation) -> None:
        self.filters += _turn(orientation)
        if orientation.transpose:
            self.size = _swap(self.size)

    def _scaled_colour(self, colour_out: Colour, *, tone_map: bool) -> Colour:
        """Return the colours after scaling, which keeps matrix and range where a JPEG needs others: swscale's own conversion
        is off by up to two levels.
        """
        if tone_map:
            return replace(colour_out, matrix=BT709, full_range=False) if self._is_jpeg else colour_out
        if not self._yuv_in:
            return colour_out
        if self._is_jpeg:
            keeps = not alike(self.colour, colour_out)
            return (
                replace(colour_out, matrix=self.colour.matrix, full_range=self.colour.full_range)
                if keeps
                else colour_out
            )
        return replace(colour_out, matrix=self.colour.matrix) if self._can_convert(colour_out) else colour_out

    def scale(self, size: FrameSize, colour_out: Colour, *, tone_map: bool) -> None:
        """Scale to the size, pixel format and colours of the output."""
        colour = self._scaled_colour(colour_out, tone_map=tone_map)
        picture = self._pixel_format
        if self._is_jpeg and picture != "yuvj444p":
            picture = "yuvj420p"
        converts = not alike(colour, colour_out)
        if converts:
            picture = picture.replace("yuvj", "yuv")
        if self.size != size or self.picture != picture or tone_map or not alike(self.colour, colour):
            transfers = self._begin_tone_map(size, colour) if tone_map else ""
            precise = self._pixel_format == "rgb24" or (self._is_jpeg and not self._yuv_in)
            self._scale_to(size, self.colour, colour, picture, "+full_chroma_int+full_chroma_inp" * precise, transfers)
            self.filters += _delete_light(NO_HDR_METADATA) if tone_map else []
        if converts:
            self.filters.append(_convert(colour, colour_out, picture))
            if self._is_jpeg:
                self.filters += [
                    ("setparams", "range=pc:colorspace=bt470bg"),
                    ("format", picture.replace("yuv", "yuvj")),
                ]
            else:
                self.filters.append(("format", picture))
        if len(self.filters) == 1 and self.filters[0][0] == "setparams":
            self.filters.clear()
        if self._pixel_format == "gray":  # scaling straight to grey would leave the matrix as it is
            self.filters.append(("extractplanes", "y"))

    def _can_convert(self, colour_out: Colour) -> bool:
        """Return whether libavfilter's `colorspace` can convert the matrix, for colours that change in the middle."""
        known = {self.colour.matrix, colour_out.matrix} <= CONVERTER_NAMES.keys()
        return known and self.colour.matrix != colour_out.matrix and self._pixel_format in CONVERTED

    def _begin_tone_map(self, size: FrameSize, colour_out: Colour) -> str:
        """Scale before tone mapping, which is by far the most expensive step. Return options for the next `scale`."""
        self._scale_to(size, self.colour, self.colour, self.picture)
        sides = zip(("in", "out"), (self.colour, colour_out), strict=True)
        spaces = (
            f"{side}_primaries={'bt2020' if (hdr := HDR_TRANSFERS.get(colour.transfer)) else 'bt709'}"
            f":{side}_transfer={hdr[0] if hdr else 'bt709'}"
            for side, colour in sides
        )
        intent = "relative_colorimetric" if colour_out.transfer in HDR_TRANSFERS else "perceptual"
        return f":{':'.join(spaces)}:intent={intent}"

    def fit(self, shape: Shape) -> None:
        """Crop what is too large, and pad with black."""
        room = f"{shape.final.width}:{shape.final.height}:{shape.offset[0]}:{shape.offset[1]}"
        self.filters += [("crop", room)] if shape.crop else []
        self.filters += [("pad", f"{room}:black")] if shape.pad else []
        if self.filters and self.filters[-1][0] != "format":
            self.filters.append(("format", self._pixel_format))

    def _hold(self, size: FrameSize, *, turned: bool) -> None:
        held = _plain_format(self.picture, turned=turned)
        if held != self.picture:
            self._scale_to(size, self.colour, self.colour, held)

    def _scale_to(
        self, size: FrameSize, colour_in: Colour, colour_out: Colour, picture: str, flags: str = "", more: str = ""
    ) -> None:
        name, args = _scale(size, colour_in, colour_out, self._scaler + flags)
        self.filters += [(name, args + more), ("format", picture)]
        self.picture = picture


def _delete_light(light: HdrMetadata) -> list[tuple[str, str]]:
    """Return filters that delete from frames each kind of HDR metadata that `light` does not have."""
    kinds = (("MASTERING_DISPLAY_METADATA", light.mastering), ("CONTENT_LIGHT_LEVEL", light.content))
    return [("sidedata", f"mode=delete:type={kind}") for kind, kept in kinds if kept is None]


def _scale(size: FrameSize, colour_in: Colour, colour_out: Colour, scaler: str) -> tuple[str, str]:
    return "scale", (
        f"{size.width}:{size.height}:flags={scaler}+accurate_rnd+bitexact"
        f":in_range={RANGE_NAMES[colour_in.full_range]}:out_range={RANGE_NAMES[colour_out.full_range]}"
        f":in_color_matrix={MATRIX_NAMES[colour_in.matrix]}:out_color_matrix={MATRIX_NAMES[colour_out.matrix]}"
    )


def _convert(colour_in: Colour, colour_out: Colour, pixel_format: str) -> tuple[str, str]:
    """Return filters that change matrix and range by libavfilter's colorspace, exact to half a level; primaries and
    transfer are kept.
    """
    pixel_format = pixel_format.removesuffix("le")  # as `colorspace` names them
    spaces = [CONVERTER_NAMES[colour.matrix] for colour in (colour_in, colour_out)]
    ranges = ["pc" if colour.full_range else "tv" for colour in (colour_in, colour_out)]
    return "colorspace", (
        f"ispace={spaces[0]}:irange={ranges[0]}:space={spaces[1]}:range={ranges[1]}:format={pixel_format}:fast=1"
        ":iprimaries=bt709:primaries=bt709:itrc=bt709:trc=bt709"
    )


def _turn(turn: Orientation) -> list[tuple[str, str]]:
    filters = [("transpose", "cclock_flip")] if turn.transpose else []
    filters += [("hflip", "")] if turn.flip_horizontal else []
    # vflip returns the same lines with a negative stride, which SVT-AV1 rejects.
    return filters + ([("vflip", ""), ("copy", "")] if turn.flip_vertical else [])


def _plain_format(pixel_format: str, *, turned: bool) -> str:
    """Return a pixel format that `crop` and `transpose` support: planar, with chroma subsampled equally in both
    directions.
    """
    layout = VideoFormat(pixel_format)
    if layout.is_bit_stream:
        return "gray"
    chroma = layout.chroma_width(64)
    if (chroma == layout.chroma_height(64) or not turned) and (chroma == 64 or layout.is_planar):
        return pixel_format
    bits = _bits(pixel_format)
    depth = "" if bits <= 8 else f"{10 if bits <= 10 else 12 if bits <= 12 else 16}le"
    return f"yuv{'444' if turned else '411' if chroma == 16 else '422'}p{depth}"


def _displayed_size(source: SourcePicture, warnings: list[Remark]) -> tuple[Fraction, Fraction]:
    """Return width and height of a source as it is shown: upright, with square pixels."""
    ratio = source.sample_aspect_ratio
    if not Fraction(1, 20) <= ratio <= 20:
        warnings.append(Remark("pixel_shape_ignored", f"sample aspect ratio {ratio} is implausible; 1:1 was used"))
        ratio = Fraction(1)
    width, height = Fraction(source.size.width) * ratio, Fraction(source.size.height)
    return (height, width) if source.orientation.transpose else (width, height)


def _zoom(fit: str, target: FrameSize, width: Fraction, height: Fraction) -> tuple[Fraction, bool]:
    """Return by how much a picture of width x height is scaled, and whether it becomes larger in any direction."""
    both = target.width / width, target.height / height
    return (max(both) if fit == "crop" else min(both)), (min(both) if fit == "pad" else max(both)) > 1


def _inner_size(fit: str, target: FrameSize, width: int, height: int) -> FrameSize:
    """Return the size of a picture of width x height within its target: padded, cropped, or stretched to it."""
    if fit == "stretch":
        return target
    bound = min if fit == "pad" else max
    return FrameSize(bound(target.width, width), bound(target.height, height))


def _swap(size: FrameSize) -> FrameSize:
    return FrameSize(size.height, size.width)
