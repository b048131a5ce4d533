"""Frames and size that trainers take of a video: how many they count, by their own arithmetic, and how many of them they go on with.

Read in their sources in November 2026; `READERS` names the files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from vidprep.formats.errors import StoreError, count_of

if TYPE_CHECKING:
    from vidprep.formats.stores.base import FrameStore


class Header(NamedTuple):
    """Frames, rate and duration of a file.

    Attributes:
        frames: Number of frames, as they are decoded
        rate: Mean frames per second
        seconds: Duration of the container
    """

    frames: int
    rate: Fraction
    seconds: Fraction

    @property
    def printed_seconds(self) -> float:
        """The duration as ffmpeg prints it and imageio reads it: half of 10 ms is added, and the rest cut off (libavformat/dump.c)."""
        return math.floor(self.seconds * 100 + Fraction(1, 2)) / 100


@dataclass(frozen=True, slots=True)
class Reader:
    """A trainer's way of reading.

    Attributes:
        where: Repository and files of the rule
        how: The rule in words, after "counts N frames"
        count: Returns the frames that it counts
        step: It goes on with step * n + 1 of them; 1 for any number
        clip: It takes clips of so many frames, and repeats the last frame of a shorter video; 0 if it takes whole videos
        multiple: Sides that are no multiples are cropped
        rate: Frames per second to which it converts; None keeps those of the file
    """

    where: str
    how: str
    count: Callable[[Header], int]
    step: int
    multiple: int
    rate: int | None = None
    clip: int = 0

    def taken(self, header: Header) -> int:
        """Return how many of the frames that it counts it goes on with."""
        counted = self.count(header)
        return (counted - 1) // self.step * self.step + 1 if counted > 0 else 0


def _converts(rate: int, step: int, multiple: int) -> Reader:
    return Reader(
        "tdrussell/diffusion-pipe from 2026-08-20: utils/dataset.py, models/base.py",
        f"int(frames * {rate} / mean rate)",
        lambda header: int(header.frames * rate / float(header.rate)),
        step,
        multiple,
        rate,
    )


def _by_duration(rate: int, step: int, multiple: int) -> Reader:
    return Reader(
        "tdrussell/diffusion-pipe before 2026-08-20: utils/dataset.py",
        f"int({rate} * duration), with imageio's duration, which has 10 ms",
        lambda header: int(rate * header.printed_seconds),
        step,
        multiple,
        rate,
    )


READERS: dict[str, Reader] = {
    "musubi-tuner": Reader(
        "kohya-ss/musubi-tuner: dataset/media_utils.py, image_video_dataset.py",
        "as they are decoded, without source_fps",
        lambda header: header.frames,
        4,
        16,
    ),
    "diffusion-pipe-wan": _converts(16, 4, 16),
    "diffusion-pipe-hunyuan": _converts(24, 4, 16),
    "diffusion-pipe-ltx": _converts(25, 8, 32),
    "diffusion-pipe-ltx2": _converts(24, 8, 32),
    "old-diffusion-pipe-wan": _by_duration(16, 4, 16),
    "old-diffusion-pipe-hunyuan": _by_duration(24, 4, 16),
    "ltx-video-trainer": Reader(
        "Lightricks/LTX-Video-Trainer: scripts/process_videos.py",
        "len(decord.VideoReader)",
        lambda header: header.frames,
        8,
        32,
    ),
    "cosmos-predict2": Reader(
        "nvidia-cosmos/cosmos-predict2: data/dataset_video.py",
        "one less than len(decord.VideoReader), since numpy's randint(0, frames - N) fails for N = frames",
        lambda header: header.frames - 1,
        4,
        16,
    ),
    "vjepa2-4fps": Reader(
        "facebookresearch/vjepa2: src/datasets/video_dataset.py",
        "every (ceil(mean rate) // 4)-th frame; below 4 fps an assertion fails",
        lambda header: max(1, header.frames // (math.ceil(header.rate) // 4)) if header.rate > 3 else 0,
        1,
        1,
        4,
        16,
    ),
}


def differences(store: FrameStore, name: str) -> Iterator[str]:
    """Yield a line for each video of which a trainer drops, repeats or crops something.

    Raises:
        StoreError: These are no files of encoded videos.
    """
    from vidprep.formats.stores.encoded import VideoStore
    from vidprep.formats.video.source import open_video

    if not isinstance(store, VideoStore):
        raise StoreError("trainers read files of encoded videos", path=store.path)
    for id_ in store.ids:
        if store.entry(id_).offset:
            raise StoreError(
                "its videos are in shards; `vidprep pack --to clips`, and validate that folder", path=store.path
            )
        video = store[id_]
        with open_video(store.file(id_)) as container:
            stream = container.streams.video[0]
            mean = stream.average_rate
            rate = Fraction(mean.numerator, mean.denominator) if mean else Fraction(1)
            header = Header(len(video), rate, Fraction(container.duration or 0, 1_000_000))
        if says := difference(name, header, (video.width, video.height)):
            yield f"{id_}: {says}"


def difference(name: str, header: Header, size: tuple[int, int]) -> str:
    """Return what a trainer drops, repeats or crops of a video of this size (width, height); "" for nothing."""
    return "; ".join(_differences(READERS[name], header, size))


def _differences(reader: Reader, header: Header, size: tuple[int, int]) -> Iterator[str]:
    counted, taken = reader.count(header), reader.taken(header)
    if reader.clip and 0 < counted < reader.clip:
        yield (
            f"{count_of(header.frames, 'frame')}, of which it takes {counted}: fewer than a clip of {reader.clip}, so the last one "
            "repeats, or the video is left out"
        )
    elif taken != header.frames and not (reader.clip and counted):
        what = (
            "dropped" if taken <= 0 else f"shortened to {taken}" if taken < header.frames else f"{taken} with repeats"
        )
        yield f"{count_of(header.frames, 'frame')}, counted as {counted}: {what}"
        if 0 < counted == header.frames - 1 and reader.rate is not None:
            yield "one more frame makes up for it"
    if size != (cropped := tuple(side // reader.multiple * reader.multiple for side in size)):
        yield f"{size[0]}x{size[1]} becomes {cropped[0]}x{cropped[1]}"
