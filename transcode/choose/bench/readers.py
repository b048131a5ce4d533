"""Every loader of `vidprep bench` behind one door: frames of a video by their numbers, and a whole video.

What comes out is what a batch is made of: uint8 RGB in one C-contiguous array. Videos are opened when they are first needed
and at most 16 stay open, whoever reads.

Before anything is timed: does a loader give the frames that were asked for?

Our own reader knows a frame by when it is shown, and is what loaders of videos are held against; in folders of pictures the
first loader is. A picture is the right one when its PSNR is SAME_DB or more. On real clips honest loaders were mostly equal, and
seen down to 39.5 dB (odd sizes, where chroma is interpolated otherwise), 49 dB (ProRes) and 55 dB (10 bits); the next frame of a
moving scene lies at 15 to 35 dB. In a still scene neighbours are as near: so a picture may not be nearer to a neighbour than to
its own frame, by more than CLOSER_DB.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vidprep.formats.errors import StoreError
from vidprep.formats.stores import FrameStore, Handles
from vidprep.transcode.check import LOADERS, STREAM_LOADERS, Loader, Picture, StreamLoader
from vidprep.transcode.choose.bench.places import OURS, Place

WHOLE_FRAMES = 32


class Reader(ABC):
    """Raises what its library raises. tells_bytes: whether the bytes that it reads show in /proc/self/io as its own."""

    tells_bytes = True

    @abstractmethod
    def read(self, id_: str, numbers: range) -> Picture:
        """(T, H, W, 3)."""

    @abstractmethod
    def whole(self, id_: str) -> Iterator[Picture]:
        """All frames in order, (H, W, 3) each."""


class OwnReader(Reader):
    """As `open_store` reads."""

    def __init__(self, store: FrameStore) -> None:
        self._store = store

    def read(self, id_: str, numbers: range) -> Picture:
        return self._store[id_].frames(numbers)

    def whole(self, id_: str) -> Iterator[Picture]:
        """Whole GOPs at a time, so that nothing is decoded twice and no long video has to fit into memory."""
        video = self._store[id_]
        ends = [*(video.keyframes or range(len(video))), len(video)]
        start = 0
        for end in ends:
            if end - start >= WHOLE_FRAMES or end == len(video):
                yield from video.frames(range(start, end))
                start = end


class FileReader(Reader):
    """A library that opens video files."""

    def __init__(self, place: Place, loader: type[StreamLoader]) -> None:
        self._files = {video.id: Path(video.files[0]) for video in place.videos}
        self._loader = loader
        self.tells_bytes = loader not in STREAM_LOADERS.values()  # a program reads, and pictures come through a pipe
        self._opened: Handles[StreamLoader] = Handles(self._open, lambda _loader: None)

    def _open(self, id_: str) -> StreamLoader:
        return self._loader(self._files[id_])

    def read(self, id_: str, numbers: range) -> Picture:
        loader = self._opened[id_]
        assert isinstance(loader, Loader)
        pictures = loader.several(list(numbers))
        return np.ascontiguousarray(pictures) if isinstance(pictures, np.ndarray) else np.stack(pictures)

    def whole(self, id_: str) -> Iterator[Picture]:
        return map(np.ascontiguousarray, self._opened[id_].in_order())


class GulpReader(Reader):
    """GulpIO2's own."""

    def __init__(self, place: Place) -> None:
        from gulpio2 import GulpDirectory

        self._directory: Any = GulpDirectory(str(place.path))
        self._lengths = {video.id: video.num_frames for video in place.videos}

    def read(self, id_: str, numbers: range) -> Picture:
        pictures, _ = self._directory[id_, slice(numbers.start, numbers.stop, numbers.step)]
        return np.stack(pictures)

    def whole(self, id_: str) -> Iterator[Picture]:
        return iter(self.read(id_, range(self._lengths[id_])))


class WebdatasetReader(Reader):
    """webdataset's own: a stream of samples that begins anew when it ends; what is not asked for is passed over undecoded."""

    def __init__(self, place: Place) -> None:
        import webdataset

        shards = sorted(str(path) for path in place.path.glob("*.tar") if path.is_file())
        self._samples = iter(webdataset.WebDataset(shards, shardshuffle=False).repeat())
        self._decode: Any = webdataset.autodecode.Decoder([webdataset.autodecode.imagehandler("rgb8")])
        self._count = len(place.ids)

    def read(self, id_: str, _numbers: range) -> Picture:
        raise StoreError(f"webdataset reads in order only; {id_} was asked for out of it")

    def whole(self, id_: str) -> Iterator[Picture]:
        for _ in range(self._count + 1):
            sample = next(self._samples)
            about = json.loads(sample.get("json", "{}"))
            if about.get("id", sample["__key__"]) == id_:
                decoded = self._decode(sample)
                return (decoded[name] for name in sorted(decoded) if name.rpartition(".")[2] in ("jpg", "jpeg"))
        raise StoreError(f"webdataset's stream has no {id_}")


class PictureReader(Reader):
    """One file for each frame."""

    def __init__(self, place: Place, open_one: Callable[[str], Picture]) -> None:
        self._files = {video.id: video.files for video in place.videos}
        self._open_one = open_one

    def read(self, id_: str, numbers: range) -> Picture:
        return np.stack([self._open_one(self._files[id_][number]) for number in numbers])

    def whole(self, id_: str) -> Iterator[Picture]:
        return map(self._open_one, self._files[id_])


def _by_pillow(path: str) -> Picture:
    from PIL import Image

    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def _by_opencv(path: str) -> Picture:
    import cv2

    picture = cv2.imread(path, cv2.IMREAD_COLOR)
    if picture is None:
        raise StoreError("OpenCV does not read it", path=path)
    return np.ascontiguousarray(picture[..., ::-1])


def reader_of(place: Place, name: str) -> Reader:
    """name: one of `place.loaders`."""
    if name == OURS:
        assert place.store is not None
        return OwnReader(place.store)
    if place.kind in ("jpg", "png"):
        return PictureReader(place, {"Pillow": _by_pillow, "OpenCV": _by_opencv}[name])
    if name == "GulpIO2":
        return GulpReader(place)
    if name == "webdataset":
        return WebdatasetReader(place)
    return FileReader(place, (LOADERS | STREAM_LOADERS)[name])
