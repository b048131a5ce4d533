"""Remarks on a row: each has a sentence for people and a code for programs."""

from __future__ import annotations

# Meaning of each code. Notes are not counted as warnings of a run.
CODES = {
    "damaged": "packets, frames or bytes of the source are damaged or missing",
    "cut_short": "the cut of the table ends after the video does",
    "picture_late": "the pictures begin after the container's start, and the cut counts from the pictures",
    "inconsistent_headers": "headers contradict each other or the data, without a known loss",
    "depth_reduced": "the source has more bits per sample than the output",
    "gap": "a gap between frames of a constant rate",
    "frame_missing": "a packet is missing where all others are equally far apart",
    "pictures_repeated": "pictures were repeated or left out although --fps is the rate of the source",
    "picture_changed": "frame size, pixel shape, orientation or colours change midway",
    "larger_than_source": "the output has more bytes than its source",
    "timestamps_sorted": "timestamps ran backwards",
    "timestamps_joined": "the clock jumped back",
    "timestamps_guessed": "frames had no timestamp",
    "rate_guessed": "the raw stream stores no frame rate, and 25 was assumed",
    "pictures_missing": "numbers are missing in a folder of numbered pictures",
    "pages_left_out": "TIFFs of a folder of pictures have several pages, and the first was taken",
    "timestamps_moved": "frames shared a timestamp, or were closer than the container can tell",
    "frames_left_out": "several frames shared a timestamp, and one of them was kept",
    "deinterlaced": "interlaced frames were deinterlaced",
    "fields_kept": "each field is a frame",
    "reserved_colours": "colours are tagged with reserved codes",
    "tone_mapped": "HDR was tone-mapped to SDR",
    "hdr_metadata_ignored": "implausible mastering display or content light level",
    "alpha_composited": "transparent pictures were composited over black",
    "alpha_ignored": "alpha was ignored: it would make every frame black, or is a track of its own (AVIF)",
    "pixel_shape_ignored": "implausible sample aspect ratio",
    "display_matrix_ignored": "the display matrix contains more than right-angle rotations and flips",
    "cropping_ignored": "the container crops all of the picture",
    "cropping_rounded": "the container crops an odd number of columns or lines, and the picture begins one earlier (a note)",
    "several_streams": "the best of several video streams was used",
    "several_views": "the base view of stereo or spatial video was used",
    "audio_left_out": "audio, or a part of it, was dropped",
    "audio_late": "copied audio is out of sync",
    "audio_downmixed": "channels were mixed to stereo",
    "audio_holes": "missing audio was replaced by silence",
    "not_split": "a video that was to be encoded in segments was encoded whole",
    "encoded_again": "of GOPs that a selection cuts, the frames that stay were encoded again (a note)",
    "not_scored": "a score that was asked for cannot be taken of such pictures, and is left empty",
    "second_try": "its process was killed while others ran, and it was made again alone",
    "untagged_colours": "colours are not tagged, and the usual ones were assumed (a note)",
    "hdr_kept": "HDR was kept (a note)",
    "not_enlarged": "smaller than requested, and not enlarged (a note)",
    "odd_size_cropped": "a line or column was cropped to make the size even (a note)",
}
NOTES = frozenset(
    ("untagged_colours", "hdr_kept", "not_enlarged", "odd_size_cropped", "cropping_rounded", "encoded_again")
)


class Remark(str):
    """A remark: a sentence, with its code."""

    __slots__ = ("code",)
    code: str

    def __new__(cls, code: str, text: str) -> Remark:
        if code not in CODES:
            raise KeyError(f"{code} is not among CODES")
        remark = super().__new__(cls, text)
        remark.code = code
        return remark

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return self.code, str(self)


def codes_described() -> str:
    """Return the codes as a Markdown table."""
    return "\n".join(
        ["| code | meaning |", "| --- | --- |", *(f"| `{code}` | {text} |" for code, text in CODES.items())]
    )
