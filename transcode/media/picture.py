"""What a picture becomes: upright, square pixels, the size and colours that were asked, as one chain of filters.

The chain is text that libavfilter understands, so both engines run the very same one. Every scale names algorithm,
`accurate_rnd+bitexact`, and range and matrix on both sides: left implicit, engines differ, and so do CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from av.video.format import VideoFormat
from av.video.frame import VideoFrame

from vidprep.formats.errors import PictureError
from vidprep.formats.model import NO_CROPPING, NO_LIGHT, Colour, Cropping, FrameSize, Light, Orientation, VideoInfo
from vidprep.formats.video.light import light_of
from vidprep.formats.video.orientation import turn_of
from vidprep.formats.video.pixel_shape import new_shape_of
from vidprep.formats.video.pyav import is_one_of_views
from vidprep.formats.video.rgb import HD_LINES, SHORT_OF_WHITE, STRETCH
from vidprep.transcode.settings.options import Scale
from vidprep.transcode.settings.run import RunSettings

# Code points of ITU-T H.273 and the names that the scale filter has for them.
RGB, BT709, UNSPECIFIED, FCC, BT470BG, SMPTE170M, SMPTE240M, BT2020 = 0, 1, 2, 4, 5, 6, 7, 9
MATRIX_NAMES = {
    BT709: "bt709", FCC: "fcc", BT470BG: "bt601", SMPTE170M: "bt601", SMPTE240M: "smpte240m", BT2020: "bt2020",
}  # fmt: skip
CONVERTER_NAMES = {
    BT709: "bt709", FCC: "fcc", BT470BG: "bt470bg", SMPTE170M: "smpte170m", SMPTE240M: "smpte240m", BT2020: "bt2020nc",
}  # fmt: skip
PQ, HLG = 16, 18
# All that H.273 gives a meaning; what is reserved says as little as what is not tagged. RGB, 0, is no matrix of YCbCr.
PRIMARIES, TRANSFERS, MATRICES = {BT709, *range(4, 13), 22}, {BT709, *range(4, 19)}, {BT709, *range(4, 18)}
LOGARITHMIC = {9, 10}  # transfers that libswscale refuses to see, though it would leave them as they are
# Their decoders give mastering display and light level with keyframes alone: a tone map that heeds them changes with each.
TOLD_AT_KEYFRAMES = {"h264"}
HDR_TRANSFERS = {PQ: ("smpte2084", "PQ"), HLG: ("arib-std-b67", "HLG")}
ROUNDING = 2  # pixels between even sizes of one aspect
RANGE_NAMES = {True: "full", False: "limited"}
STILL_IMAGE_CODECS = {"mjpeg", "jpegls", "png", "apng"}


def is_rgb(pixel_format: str) -> bool:
    return pixel_format.startswith(("rgb", "bgr", "gbr", "argb", "abgr", "0rgb", "0bgr", "x2rgb", "pal8", "bayer"))


@dataclass(frozen=True, slots=True)
class SourcePicture:
    """What the first frame shows of itself: what every decision about the picture is taken from.

    said: for the row.
    """

    stored: FrameSize
    cropping: Cropping
    pixel_format: str
    sample_aspect_ratio: Fraction
    orientation: Orientation
    rotation_degrees: int
    tagged: Colour
    codec: str
    light: Light = NO_LIGHT
    said: tuple[str, ...] = ()

    @property
    def size(self) -> FrameSize:
        """Of what is to be shown of it, before it is turned."""
        crop = self.cropping
        return FrameSize(self.stored.width - crop.left - crop.right, self.stored.height - crop.top - crop.bottom)

    @property
    def is_rgb(self) -> bool:
        return is_rgb(self.pixel_format)

    @property
    def has_reserved_matrix(self) -> bool:
        return self.tagged.matrix not in MATRICES | {RGB, UNSPECIFIED}

    @property
    def has_alpha(self) -> bool:
        layout = VideoFormat(self.pixel_format)
        return layout.has_palette or any(component.is_alpha for component in layout.components)


@dataclass(frozen=True, slots=True)
class Picture:
    """How a picture is made. filters: (name, arguments) in order; none when it passes as it is. said: for the row.

    light: of high dynamic range that is kept. room: what pictures of another size are fitted into, when they come later.
    """

    size: FrameSize
    pixel_format: str
    colour: Colour
    filters: tuple[tuple[str, str], ...]
    said: tuple[str, ...]
    room: FrameSize
    tone_mapped: bool = False
    light: Light = NO_LIGHT

    @property
    def chain(self) -> str:
        """The filters as ffmpeg's -vf takes them; `null` when there are none."""
        return ",".join(f"{name}={args}" if args else name for name, args in self.filters) or "null"


def describe(frame: VideoFrame, info: VideoInfo) -> SourcePicture:
    """The facts of a decoded frame; of its container only what it crops, and the shape of a pixel as long as no frame says another."""
    turn = turn_of(frame)
    said = [turn.said] if turn.said else []
    if is_one_of_views(frame):
        said.append("holds several views of the scene (stereo or spatial video); the base view was taken")
    stored, crop = FrameSize(frame.width, frame.height), info.cropping
    if crop.left + crop.right >= stored.width or crop.top + crop.bottom >= stored.height:
        said.append(f"the container crops all of {stored}; not followed")
        crop = NO_CROPPING
    light, doubts = light_of(frame) if is_hdr(frame) else (NO_LIGHT, [])
    said += doubts
    return SourcePicture(
        stored=stored,
        cropping=crop,
        pixel_format=frame.format.name,
        sample_aspect_ratio=new_shape_of(frame) or info.sample_aspect_ratio,
        orientation=turn.orientation,
        rotation_degrees=turn.degrees,
        tagged=tags_of(frame),
        codec=info.codec,
        light=light,
        said=tuple(said),
    )


def plan_picture(
    source: SourcePicture, settings: RunSettings, pixel_format: str, like: Picture | None = None
) -> Picture:
    """The picture that settings make of this source.

    like: what the output already is, when a source changes half way: the same size and colours.
    Raises PictureError for what cannot be made.
    """
    said: list[str] = []
    colour_in = _input_colour(source, said)
    colour_out, tone_map = _output_colour(colour_in, settings, said)
    if like is not None:
        colour_out = like.colour
    shape = _Shape.of(source, settings.scale, like, said)

    filters: list[tuple[str, str]] = []
    if source.tagged.transfer in HDR_TRANSFERS:  # the tone map and ffmpeg's encoders believe what a frame says
        is_steady = not (tone_map and source.codec in TOLD_AT_KEYFRAMES)
        filters += _without(source.light if is_steady else NO_LIGHT)
    if is_refused(source.tagged):
        filters.append(("setparams", _tags_for_scaling(colour_in, is_rgb=source.is_rgb)))
    picture = source.pixel_format
    if source.cropping != NO_CROPPING:
        if (held := _held_as(picture, turned=False)) != picture:
            picture = held
            filters += [_scale(source.stored, colour_in, colour_in, settings.scale.scaler), ("format", picture)]
        filters.append(
            ("crop", f"{source.size.width}:{source.size.height}:{source.cropping.left}:{source.cropping.top}")
        )
    if max(component.bits for component in VideoFormat(picture).components) < 8:
        # libswscale stretches few bits to eight here; to YCbCr it only shifts those of RGB, and takes black and white for its range.
        held, same = "rgb24" if source.is_rgb else "gray", replace(colour_in, full_range=True)
        filters += [_scale(source.size, same, same, settings.scale.scaler), ("format", held)]
        filters += [STRETCH] if picture in SHORT_OF_WHITE else []
        picture = held
    if source.has_alpha:
        is_deep = max(component.bits for component in VideoFormat(picture).components) > 8
        picture = "gbrap16le" if is_deep else "gbrap"
        rgb = replace(colour_in, full_range=True)
        filters += [
            _scale(source.size, colour_in, rgb, settings.scale.scaler),
            ("format", picture),
            ("premultiply", "inplace=1"),
        ]
        colour_in = rgb
    turns_first = source.orientation.transpose and "422" in pixel_format  # which `transpose` does not take
    if (shape.trim is not None or turns_first) and (held := _held_as(picture, turned=turns_first)) != picture:
        picture = held
        filters += [_scale(source.size, colour_in, colour_in, settings.scale.scaler), ("format", picture)]
    if shape.trim is not None:
        filters.append(("crop", f"{shape.trim.width}:{shape.trim.height}:0:0"))
    stored = shape.trim or source.size
    # Scaling keeps matrix and range where a JPEG needs others: swscale's own conversion is off by up to two levels.
    is_jpeg = settings.frames is not None and settings.frames.is_coded
    yuv_in = not (source.is_rgb or source.has_alpha)
    colour_scaled, scaled_format = colour_out, pixel_format
    if is_jpeg:
        scaled_format = "yuvj444p" if pixel_format == "yuvj444p" else "yuvj420p"
        if yuv_in and not tone_map and not _alike(colour_in, colour_out):
            colour_scaled = replace(colour_out, matrix=colour_in.matrix, full_range=colour_in.full_range)
        elif tone_map:
            colour_scaled = replace(colour_out, matrix=BT709, full_range=False)
    converts = not _alike(colour_scaled, colour_out)
    if converts:
        scaled_format = scaled_format.replace("yuvj", "yuv")
    turn, scaled = _turn(source.orientation), shape.scaled
    if turns_first:
        filters += turn
        turn, stored, scaled = [], _swapped(stored), _swapped(scaled)
    if stored != scaled or picture != scaled_format or tone_map or not _alike(colour_in, colour_scaled):
        transfers = ""
        if tone_map:  # at the size of the output: it is by far the dearest step
            filters += [_scale(scaled, colour_in, colour_in, settings.scale.scaler), ("format", picture)]
            name = HDR_TRANSFERS[source.tagged.transfer][0]
            transfers = (
                f":in_primaries=bt2020:out_primaries=bt709:in_transfer={name}:out_transfer=bt709:intent=perceptual"
            )
        precise = "+full_chroma_int+full_chroma_inp" if pixel_format == "rgb24" or (is_jpeg and not yuv_in) else ""
        name, args = _scale(scaled, colour_in, colour_scaled, settings.scale.scaler + precise)
        filters += [(name, args + transfers), ("format", scaled_format), *(_without(NO_LIGHT) if tone_map else [])]
    if converts:
        filters += [_convert(colour_scaled, colour_out, scaled_format), ("setparams", "range=pc:colorspace=bt470bg")]
        filters.append(("format", scaled_format.replace("yuv", "yuvj")))
    if len(filters) == 1 and filters[0][0] == "setparams":
        filters.clear()
    if pixel_format == "gray":  # scaling straight to grey would leave the matrix as it is
        filters.append(("extractplanes", "y"))
    filters += turn
    if shape.crop:
        filters.append(("crop", f"{shape.final.width}:{shape.final.height}:{shape.offset[0]}:{shape.offset[1]}"))
    if shape.pad:
        filters.append(("pad", f"{shape.final.width}:{shape.final.height}:{shape.offset[0]}:{shape.offset[1]}:black"))
    if filters and filters[-1][0] != "format":
        filters.append(("format", pixel_format))
    light = source.light if colour_out.transfer in HDR_TRANSFERS else NO_LIGHT
    return Picture(shape.final, pixel_format, colour_out, tuple(filters), tuple(said), shape.room, tone_map, light)


def _without(light: Light) -> list[tuple[str, str]]:
    """Frees frames of the side data that is None."""
    told = (("MASTERING_DISPLAY_METADATA", light.mastering), ("CONTENT_LIGHT_LEVEL", light.content))
    return [("sidedata", f"mode=delete:type={kind}") for kind, kept in told if kept is None]


def _scale(size: FrameSize, colour_in: Colour, colour_out: Colour, scaler: str) -> tuple[str, str]:
    return "scale", (
        f"{size.width}:{size.height}:flags={scaler}+accurate_rnd+bitexact"
        f":in_range={RANGE_NAMES[colour_in.full_range]}:out_range={RANGE_NAMES[colour_out.full_range]}"
        f":in_color_matrix={MATRIX_NAMES[colour_in.matrix]}:out_color_matrix={MATRIX_NAMES[colour_out.matrix]}"
    )


def _turn(turn: Orientation) -> list[tuple[str, str]]:
    filters = [("transpose", "cclock_flip")] if turn.transpose else []
    filters += [("hflip", "")] if turn.flip_horizontal else []
    # vflip hands out the same lines, last one first, which SVT-AV1 refuses.
    return filters + ([("vflip", ""), ("copy", "")] if turn.flip_vertical else [])


def _held_as(pixel_format: str, *, turned: bool) -> str:
    """The pixel format in which `crop` takes such a picture, and `transpose` too: chroma in planes, as high as it is wide."""
    layout = VideoFormat(pixel_format)
    if layout.is_bit_stream:
        return "gray"
    chroma = layout.chroma_width(64)
    if (chroma == layout.chroma_height(64) or not turned) and (chroma == 64 or layout.is_planar):
        return pixel_format
    bits = max(component.bits for component in layout.components)
    depth = "" if bits <= 8 else f"{10 if bits <= 10 else 12 if bits <= 12 else 16}le"
    return f"yuv{'444' if turned else '411' if chroma == 16 else '422'}p{depth}"


def _swapped(size: FrameSize) -> FrameSize:
    return FrameSize(size.height, size.width)


def _alike(one: Colour, other: Colour) -> bool:
    """Whether the numbers mean the same: matrices that have one name are one."""
    return one.full_range == other.full_range and MATRIX_NAMES[one.matrix] == MATRIX_NAMES[other.matrix]


def _convert(colour_in: Colour, colour_out: Colour, pixel_format: str) -> tuple[str, str]:
    """Another matrix and range, by libavfilter's colorspace filter, to half a level; primaries and transfer stay."""
    spaces = [CONVERTER_NAMES[colour.matrix] for colour in (colour_in, colour_out)]
    ranges = ["pc" if colour.full_range else "tv" for colour in (colour_in, colour_out)]
    return "colorspace", (
        f"ispace={spaces[0]}:irange={ranges[0]}:space={spaces[1]}:range={ranges[1]}:format={pixel_format}:fast=1"
        ":iprimaries=bt709:primaries=bt709:itrc=bt709:trc=bt709"
    )


def is_hdr(frame: VideoFrame) -> bool:
    return int(frame.color_trc) in HDR_TRANSFERS


def tags_of(frame: VideoFrame) -> Colour:
    primaries, transfer = int(frame.color_primaries), int(frame.color_trc)
    return Colour(int(frame.colorspace), primaries, transfer, int(frame.color_range) == 2)


def is_refused(tagged: Colour) -> bool:
    """Whether libswscale takes no frame that is tagged so."""
    return (
        tagged.primaries not in PRIMARIES | {UNSPECIFIED}
        or tagged.transfer not in TRANSFERS - LOGARITHMIC | {UNSPECIFIED}
        or tagged.matrix not in MATRICES | {RGB, UNSPECIFIED}
    )


def _tags_for_scaling(colour: Colour, *, is_rgb: bool) -> str:
    transfer = UNSPECIFIED if colour.transfer in LOGARITHMIC else colour.transfer
    matrix = RGB if is_rgb else colour.matrix
    return f"color_primaries={colour.primaries}:color_trc={transfer}:colorspace={matrix}"


def _input_colour(source: SourcePicture, said: list[str]) -> Colour:
    """What the source's numbers mean; a guess where it does not say, and then it is said."""
    lines = source.stored.height
    guess = BT709 if lines >= HD_LINES else SMPTE170M
    tagged = source.tagged
    matrix, full = tagged.matrix, tagged.full_range
    is_grey = source.pixel_format.startswith(("gray", "mono", "ya"))
    if source.is_rgb:
        matrix, full = guess, True
    elif matrix not in MATRIX_NAMES:
        if matrix in MATRICES and not is_grey:
            raise PictureError(f"its colour matrix (H.273 code {matrix}) is none that can be converted")
        matrix = guess
    if source.pixel_format.startswith("yuvj") or (source.codec in STILL_IMAGE_CODECS and not tagged.full_range):
        full = True
    family = {BT709: BT709, BT2020: BT2020, SMPTE240M: SMPTE240M, BT470BG: BT470BG}.get(matrix, SMPTE170M)
    primaries, transfer = tagged.primaries, tagged.transfer
    if source.is_rgb or primaries not in PRIMARIES:
        primaries = family
    if source.is_rgb or transfer not in TRANSFERS:
        transfer = {BT2020: 14, SMPTE240M: 7, BT709: 1}.get(family, 6)
    if not source.is_rgb:
        said += _guesses(tagged, guess, lines, is_grey=is_grey)
    return Colour(matrix, primaries, transfer, full)


def _guesses(tagged: Colour, guess: int, lines: int, *, is_grey: bool) -> list[str]:
    """One line, or none."""
    codes = {
        "matrix": (tagged.matrix, MATRICES),
        "primaries": (tagged.primaries, PRIMARIES),
        "transfer": (tagged.transfer, TRANSFERS),
    }
    reserved = [f"{name} {code}" for name, (code, known) in codes.items() if code not in known | {RGB, UNSPECIFIED}]
    what = f"colours are tagged with reserved codes ({', '.join(reserved)})" if reserved else "colour matrix not tagged"
    if not is_grey and tagged.matrix not in MATRICES:
        return [f"{what}; taken for {'BT.709' if guess == BT709 else 'BT.601'} by its {lines} lines"]
    return [f"{what}; taken for those of its matrix"] if reserved else []


def _output_colour(colour: Colour, settings: RunSettings, said: list[str]) -> tuple[Colour, bool]:
    """Limited range and the matrix of the source, BT.601 full range for JPEG; True when HDR has to be tone-mapped."""
    tone_map = False
    if colour.transfer in HDR_TRANSFERS:
        name = HDR_TRANSFERS[colour.transfer][1]
        tone_map = not settings.keeps_hdr
        said.append(f"{name} tone-mapped to BT.709 (--hdr keep leaves it as it is)" if tone_map else f"{name} kept")
    out = Colour(BT709, BT709, BT709) if tone_map else replace(colour, full_range=False)
    if settings.frames is not None:
        out = replace(out, matrix=BT470BG, full_range=True)
    return out, tone_map


def _even(value: Fraction | float) -> int:
    """The nearest even number, at least 2."""
    return max(2, 2 * int(Fraction(value) / 2 + Fraction(1, 2)))


@dataclass(frozen=True, slots=True)
class _Shape:
    """trim: even part of an odd picture that is not scaled. scaled: after scaling, before turning. final: what is seen.

    offset: where the crop begins, or where the picture lies in the padding. room: as of Picture.
    """

    trim: FrameSize | None
    scaled: FrameSize
    final: FrameSize
    offset: tuple[int, int]
    room: FrameSize
    crop: bool = False
    pad: bool = False

    @staticmethod
    def of(source: SourcePicture, scale: Scale, like: Picture | None, said: list[str]) -> _Shape:
        stored, turned = source.size, source.orientation.transpose
        ratio = source.sample_aspect_ratio
        if not Fraction(1, 20) <= ratio <= 20:
            said.append(f"sample aspect ratio {ratio} is absurd; taken for 1:1")
            ratio = Fraction(1)
        width, height = Fraction(stored.width) * ratio, Fraction(stored.height)
        if turned:
            width, height = height, width

        target = like.size if like else scale.size
        if target is None:
            return _Shape._by_short_side(source, scale, width, height, said)
        fit = scale.fit if scale.size else "pad"
        zoom = {"pad": min, "crop": max, "stretch": min}[fit](target.width / width, target.height / height)
        grows = zoom > 1 if fit != "stretch" else target.width > width or target.height > height
        stays = like is None and grows and not scale.upscale
        if stays and fit != "pad":
            raise PictureError(
                f"shown at {round(width)}x{round(height)} it is smaller than {target}; allow --upscale, or say --fit pad"
            )
        if stays:
            zoom = Fraction(1)
        if like is not None and fit == "pad":
            zoom = min(zoom, max(Fraction(1), min(like.room.width / width, like.room.height / height)))
        inner = target
        if fit == "pad":
            inner = FrameSize(min(target.width, _even(width * zoom)), min(target.height, _even(height * zoom)))
        elif fit == "crop":
            inner = FrameSize(max(target.width, _even(width * zoom)), max(target.height, _even(height * zoom)))
        room = like.room if like else inner if stays else target
        if like is not None and max(abs(inner.width - room.width), abs(inner.height - room.height)) <= ROUNDING:
            inner = room
        left, top = abs(target.width - inner.width) // 4 * 2, abs(target.height - inner.height) // 4 * 2
        scaled = FrameSize(inner.height, inner.width) if turned else inner
        return _Shape(
            None,
            scaled,
            target,
            (left, top),
            room,
            crop=fit == "crop" and inner != target,
            pad=fit == "pad" and inner != target,
        )

    @staticmethod
    def _by_short_side(
        source: SourcePicture, scale: Scale, width: Fraction, height: Fraction, said: list[str]
    ) -> _Shape:
        short = min(width, height)
        zoom = Fraction(scale.short_side) / short if scale.short_side else Fraction(1)
        if zoom > 1 and not scale.upscale:
            zoom = Fraction(1)
        final = FrameSize(_even(width * zoom), _even(height * zoom))
        turned = source.orientation.transpose
        trim = None
        stored = source.size
        if (
            zoom == 1
            and source.sample_aspect_ratio == 1
            and (stored.width % 2 or stored.height % 2)
            and min(stored) > 1
        ):
            trim = FrameSize(stored.width // 2 * 2, stored.height // 2 * 2)
            said.append(f"odd size {stored} cropped to {trim}")
            final = FrameSize(trim.height, trim.width) if turned else trim
        scaled = FrameSize(final.height, final.width) if turned else final
        return _Shape(trim, scaled, final, (0, 0), final)
