"""The size of a picture: scaled, cropped and padded as was asked, with square pixels and even sides."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from vidprep.formats.errors import PictureError
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import FrameSize
from vidprep.transcode.media.source_picture import SourcePicture
from vidprep.transcode.settings.options import Scale

ROUNDING = 2  # pixels between even sizes of one aspect


def _even(value: Fraction | float) -> int:
    """The nearest even number, at least 2."""
    return max(2, 2 * int(Fraction(value) / 2 + Fraction(1, 2)))


@dataclass(frozen=True, slots=True)
class Like:
    """What the output already is, when a source changes half way."""

    size: FrameSize
    room: FrameSize


@dataclass(frozen=True, slots=True)
class Shape:
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
    def of(source: SourcePicture, scale: Scale, like: Like | None, warnings: list[Remark]) -> Shape:
        stored, turned = source.size, source.orientation.transpose
        ratio = source.sample_aspect_ratio
        if not Fraction(1, 20) <= ratio <= 20:
            warnings.append(Remark("pixel_shape_ignored", f"sample aspect ratio {ratio} is implausible; 1:1 was used"))
            ratio = Fraction(1)
        width, height = Fraction(stored.width) * ratio, Fraction(stored.height)
        if turned:
            width, height = height, width

        target = like.size if like else scale.size
        if target is None:
            return Shape._by_short_side(source, scale, width, height, warnings)
        fit = scale.fit if scale.size else "pad"
        zoom = {"pad": min, "crop": max, "stretch": min}[fit](target.width / width, target.height / height)
        grows = zoom > 1 if fit != "stretch" else target.width > width or target.height > height
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
    def _by_short_side(
        source: SourcePicture, scale: Scale, width: Fraction, height: Fraction, warnings: list[Remark]
    ) -> Shape:
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
            warnings.append(Remark("odd_size_cropped", f"odd size {stored} cropped to {trim}"))
            final = FrameSize(trim.height, trim.width) if turned else trim
        scaled = FrameSize(final.height, final.width) if turned else final
        return Shape(trim, scaled, final, (0, 0), final)
