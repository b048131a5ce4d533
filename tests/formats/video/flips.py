"""One-bit flips in the time tables of an MP4, and what reading makes of each.

`python -m tests.formats.video.flips` tries every bit of three clips and lists the flips that change frames or their times unseen.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import imageio_ffmpeg

from tests.pipeline import source_frames
from vidprep.formats.errors import VidprepError
from vidprep.formats.model import WHOLE, Cut
from vidprep.formats.video.source import Source

TABLES = ("mvhd", "tkhd", "elst", "mdhd", "stts", "ctts", "stsc", "stsz", "stco", "stss")
PARENTS = {b"moov", b"trak", b"edts", b"mdia", b"minf", b"stbl"}
MANY = 1_000_000


def clips(folder: Path) -> list[Path]:
    """Without an edit list, with one that hides nothing, with B-frames, and with frames cut off by one."""
    source = (
        "-f",
        "lavfi",
        "-i",
        "testsrc2=s=96x64:r=25:d=2.4",
        "-f",
        "lavfi",
        "-i",
        "sine=d=2.4",
        "-pix_fmt",
        "yuv420p",
    )
    x264 = ("-c:v", "libx264", "-preset", "ultrafast", "-g", "12")
    made = {
        "plain": (*source, *x264, "-bf", "0", "-use_editlist", "0"),
        "b-frames": (*source, *x264, "-bf", "2", "-b_strategy", "0"),
        "cut": ("-ss", "0.3", "-i", f"{folder}/b-frames.mp4", "-c", "copy"),
    }
    for name, arguments in made.items():
        subprocess.run(
            [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *arguments, "-y", f"{folder}/{name}.mp4"], check=True
        )
    return [folder / f"{name}.mp4" for name in made]


def boxes(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[tuple[str, int, int]]:
    """(type, begin, end) of the contents of boxes, in the order of the file; those of tracks without video are left out."""
    at = begin
    while at + 8 <= (len(data) if end is None else end):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"trak" and b"vide" not in data[at : at + size]:
            pass
        elif kind in PARENTS:
            yield from boxes(data, at + 8, at + size)
        else:
            yield kind.decode("latin-1"), at + 8, at + size
        at += size


@dataclass(frozen=True)
class Reading:
    """frames: PTS in millionths of a second and checksum of each. told: what is said of damage, or why nothing could be read.
    indexes: the numbers that frames have in the source. is_damaged: whether a loss is told, or nothing could be read."""

    frames: tuple[tuple[int, int], ...]
    told: str | None
    indexes: tuple[int, ...]
    is_damaged: bool

    def lacks(self, other: Reading) -> bool:
        """Whether pictures of another reading are not among these."""
        return bool(Counter(picture for _, picture in other.frames) - Counter(picture for _, picture in self.frames))

    def is_mixed(self, other: Reading) -> bool:
        """Whether pictures that both have come in another order."""
        both = {picture for _, picture in self.frames} & {picture for _, picture in other.frames}
        orders = [[picture for _, picture in each.frames if picture in both] for each in (self, other)]
        return orders[0] != orders[1]


def read(path: Path, cut: Cut = WHOLE) -> Reading:
    frames, indexes = [], []
    try:
        with Source(path, max_pixels=MANY) as source:
            base = source.info.time_base
            for frame in source_frames(source, cut=cut, max_frames=MANY):
                frames.append((round(frame.pts * base * MANY), zlib.crc32(bytes(frame.frame.planes[0]))))
                indexes.append(frame.index)
            to_end = cut.end_seconds is None
            damage = source.damage(read_to_end=to_end)
            told = "; ".join([*damage, *source.contradictions(read_to_end=to_end)]) or None
    except VidprepError as error:
        damage = [told := str(error)]
    return Reading(tuple(frames), told, tuple(indexes), bool(damage))


def flipped(data: bytes, byte: int, bit: int) -> bytes:
    return data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]


@dataclass(frozen=True)
class Flip:
    clip: str
    box: str
    byte: int
    bit: int
    made: str  # told, silent, lost or disordered (pictures are, and only headers are told to differ), or without effect

    @property
    def field(self) -> str:
        return FIELDS.get((self.box, self.byte // 4), self.box)


# Of versions 0, by words of four bytes.
FIELDS = {
    ("mvhd", 3): "movie timescale",
    ("mdhd", 3): "media timescale",
    ("elst", 0): "version of edits",
    ("elst", 3): "media time",
}


def flips(folder: Path, every: int = 1) -> Iterator[Flip]:
    """One flip of so many, in turn over all fields."""
    number = 0
    for clip in clips(folder):
        data, whole = clip.read_bytes(), read(clip)
        assert whole.told is None, whole.told
        for box, begin, end in boxes(data):
            for byte, bit in product(range(begin, end) if box in TABLES else (), range(8)):
                number += 1
                if number % every:
                    continue
                (folder / "flipped.mp4").write_bytes(flipped(data, byte, bit))
                reading = read(folder / "flipped.mp4")
                made = "told" if reading.told else "without effect" if reading.frames == whole.frames else "silent"
                if made == "told" and not reading.is_damaged:
                    made = "lost" if reading.lacks(whole) else "disordered" if reading.is_mixed(whole) else made
                yield Flip(clip.stem, box, byte - begin, bit, made)


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        tried = list(flips(Path(name)))
    print(*(flip for flip in tried if flip.made in ("silent", "lost", "disordered")), sep="\n")
    print(f"{len(tried)} flips in {time.monotonic() - began:.0f} s: {dict(Counter(flip.made for flip in tried))}")


if __name__ == "__main__":
    main()
