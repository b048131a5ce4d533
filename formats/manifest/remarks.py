"""Remarks on a row: each has a sentence for people and a code for programs."""

from __future__ import annotations

# Meaning of each code. Notes are not counted as warnings of a run.
CODES = {
    "damaged": "packets, frames or bytes of the source are damaged or missing",
    "cut_short": "the cut of the table ends after the video does",
    "picture_late": "the pictures begin after the container, and the cut counts from the pictures",
    "inconsistent_headers": "headers contradict each other or the data, and no loss is known",
    "depth_reduced": "the source has more bits per sample than the output",
    "gap": "no frame where one was due",
    "picture_changed": "size, shape of pixels, orientation or colours change midway",
    "larger_than_source": "the output has more bytes than its source",
    "timestamps_sorted": "timestamps ran backwards",
    "timestamps_joined": "the clock jumped back",
    "timestamps_guessed": "frames had no timestamp",
    "timestamps_moved": "frames shared a timestamp, or were closer than the container can tell",
    "frames_left_out": "frames shared a timestamp, and one of them was kept",
    "deinterlaced": "interlaced frames were deinterlaced",
    "fields_kept": "each field is a frame",
    "reserved_colours": "colours are tagged with codes that mean nothing",
    "tone_mapped": "high dynamic range became SDR",
    "hdr_metadata_ignored": "mastering display or content light level could not be true",
    "alpha_composited": "transparent pictures were put over black",
    "alpha_ignored": "alpha would make every frame black, and pictures were shown without it",
    "pixel_shape_ignored": "the sample aspect ratio could not be true",
    "display_matrix_ignored": "the display matrix does more than turn and flip the picture by right angles",
    "cropping_ignored": "the container crops all of the picture",
    "several_streams": "of several video streams the best was taken",
    "several_views": "of stereo or spatial video the base view was taken",
    "audio_left_out": "audio, or some of it, was left out",
    "audio_late": "copied audio is not heard when it should be",
    "audio_downmixed": "channels became stereo",
    "audio_holes": "silence stands for audio that is missing",
    "not_split": "a video that was to be encoded in segments was encoded whole",
    "second_try": "its process was killed beside others, and it was made alone",
    "untagged_colours": "colours are not tagged, and were taken for the usual ones (a note)",
    "hdr_kept": "high dynamic range was kept (a note)",
    "not_enlarged": "smaller than what was asked for, and left so (a note)",
    "odd_size_cropped": "a line or column was cropped to make the size even (a note)",
}
NOTES = frozenset(("untagged_colours", "hdr_kept", "not_enlarged", "odd_size_cropped"))


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
