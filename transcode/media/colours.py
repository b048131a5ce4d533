"""What the colours of a source mean, and which the output has."""

from __future__ import annotations

from dataclasses import replace

from vidprep.formats.errors import PictureError
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import Colour
from vidprep.formats.video.rgb import HD_LINES
from vidprep.transcode.media.h273 import (
    BT470BG,
    BT709,
    BT2020,
    HDR_TRANSFERS,
    LOGARITHMIC,
    MATRICES,
    MATRIX_NAMES,
    PRIMARIES,
    RGB,
    SMPTE170M,
    SMPTE240M,
    TRANSFERS,
    UNSPECIFIED,
)
from vidprep.transcode.media.source_picture import SourcePicture
from vidprep.transcode.settings.run import RunSettings

STILL_IMAGE_CODECS = {"mjpeg", "jpegls", "png", "apng"}


def input_colour(source: SourcePicture, warnings: list[Remark]) -> Colour:
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
    if source.pixel_format.startswith("yuvj") or (source.codec in STILL_IMAGE_CODECS and not source.is_tagged_limited):
        full = True
    family = {BT709: BT709, BT2020: BT2020, SMPTE240M: SMPTE240M, BT470BG: BT470BG}.get(matrix, SMPTE170M)
    primaries, transfer = tagged.primaries, tagged.transfer
    if source.is_rgb or primaries not in PRIMARIES:
        primaries = family
    if source.is_rgb or transfer not in TRANSFERS:
        transfer = {BT2020: 14, SMPTE240M: 7, BT709: 1}.get(family, 6)
    if not source.is_rgb:
        warnings += _guesses(tagged, guess, lines, is_grey=is_grey)
    return Colour(matrix, primaries, transfer, full)


def _guesses(tagged: Colour, guess: int, lines: int, *, is_grey: bool) -> list[Remark]:
    """One line, or none."""
    codes = {
        "matrix": (tagged.matrix, MATRICES),
        "primaries": (tagged.primaries, PRIMARIES),
        "transfer": (tagged.transfer, TRANSFERS),
    }
    reserved = [f"{name} {code}" for name, (code, known) in codes.items() if code not in known | {RGB, UNSPECIFIED}]
    what = f"colours are tagged with reserved codes ({', '.join(reserved)})" if reserved else "colour matrix not tagged"
    if not is_grey and tagged.matrix not in MATRICES:
        taken = "BT.709" if guess == BT709 else "BT.601"
        code = "reserved_colours" if reserved else "untagged_colours"
        return [Remark(code, f"{what}; taken for {taken} by its {lines} lines")]
    return [Remark("reserved_colours", f"{what}; taken for those of its matrix")] if reserved else []


def output_colour(colour: Colour, settings: RunSettings, warnings: list[Remark]) -> tuple[Colour, bool]:
    """Limited range and the matrix of the source, BT.601 full range for JPEG; True when HDR has to be tone-mapped."""
    tone_map = False
    if colour.transfer in HDR_TRANSFERS:
        name = HDR_TRANSFERS[colour.transfer][1]
        tone_map = not settings.keeps_hdr
        warnings.append(
            Remark("tone_mapped", f"{name} tone-mapped to BT.709 (--hdr keep leaves it as it is)")
            if tone_map
            else Remark("hdr_kept", f"{name} kept")
        )
    out = Colour(BT709, BT709, BT709) if tone_map else replace(colour, full_range=False)
    if settings.output.is_full_range:
        out = replace(out, matrix=BT470BG, full_range=True)
    return out, tone_map


def tags_for_scaling(colour: Colour, *, is_rgb: bool) -> str:
    transfer = UNSPECIFIED if colour.transfer in LOGARITHMIC else colour.transfer
    matrix = RGB if is_rgb else colour.matrix
    return f"color_primaries={colour.primaries}:color_trc={transfer}:colorspace={matrix}"


def alike(one: Colour, other: Colour) -> bool:
    """Whether the numbers mean the same: matrices that have one name are one."""
    return one.full_range == other.full_range and MATRIX_NAMES[one.matrix] == MATRIX_NAMES[other.matrix]
