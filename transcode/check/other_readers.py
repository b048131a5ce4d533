"""Other libraries' video readers behind one interface: frames in order, and a frame by number if they can seek.

Each library is imported when it is requested; missing ones are skipped. Each decodes with one thread.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import MissingError, ReadError
from vidprep.formats.video.source import open_video

RgbArray = npt.NDArray[np.uint8]
# Newer wheels look for CUDA's libraries, and all of them for FFmpeg's.
TORCHCODEC_ADVICE = "without CUDA: pip install torch==2.13.0 torchcodec==0.13.0, and FFmpeg's shared libraries (Debian: apt install ffmpeg)"


class StreamLoader(ABC):
    """Another library's reader of one video. Pictures are (H, W, 3) uint8 RGB. Raises ReadError, and the library's errors."""

    package: str

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def iterate(self) -> Iterator[RgbArray]:
        """Yield all frames from the first one, using a new reader."""


class Loader(StreamLoader):
    """A reader that can seek."""

    @abstractmethod
    def seek(self, number: int) -> RgbArray:
        """Return a frame by number, from 0, reached by a seek."""

    @abstractmethod
    def several(self, numbers: list[int]) -> Sequence[RgbArray] | RgbArray:
        """Return frames by ascending numbers, in the library's most efficient way."""


class PyAvLoader(Loader):
    """Seeks to PTS that a scan of the packets returned."""

    package = "av"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._container = self._open()
        stream = self._container.streams.video[0]
        self._pts = sorted(packet.pts for packet in self._container.demux(stream) if packet.size)

    def _open(self) -> Any:
        container = open_video(self.path)
        container.streams.video[0].thread_count = 1
        return container

    def iterate(self) -> Iterator[RgbArray]:
        with self._open() as container:
            for frame in container.decode(video=0):
                yield frame.to_ndarray(format="rgb24")

    def seek(self, number: int) -> RgbArray:
        stream = self._container.streams.video[0]
        self._container.seek(self._pts[number], stream=stream)
        for frame in self._container.decode(stream):
            if frame.pts == self._pts[number]:
                picture: RgbArray = frame.to_ndarray(format="rgb24")
                return picture
        raise ReadError(f"a seek to frame {number} ends past it", path=self.path)

    def several(self, numbers: list[int]) -> Sequence[RgbArray]:
        """Seek once, then decode on."""
        stream = self._container.streams.video[0]
        due = [self._pts[number] for number in numbers]
        frames: dict[int, RgbArray] = {}
        self._container.seek(due[0], stream=stream)
        for frame in self._container.decode(stream):
            if frame.pts in due:
                frames[frame.pts] = frame.to_ndarray(format="rgb24")
                if len(frames) == len(due):
                    return [frames[pts] for pts in due]
        raise ReadError(f"a seek to frame {numbers[0]} leads to {len(frames)} of {len(due)} frames", path=self.path)


class TorchcodecLoader(Loader):
    package = "torchcodec"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._decoder = self._open()

    def _open(self) -> Any:
        try:
            from torchcodec.decoders import VideoDecoder
        except (ImportError, OSError, RuntimeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise MissingError(f"torchcodec does not load ({first}); {TORCHCODEC_ADVICE}") from error

        return VideoDecoder(str(self.path), num_ffmpeg_threads=1, dimension_order="NHWC")

    def iterate(self) -> Iterator[RgbArray]:
        yield from (frame.numpy() for frame in self._open())

    def seek(self, number: int) -> RgbArray:
        picture: RgbArray = self._decoder[number].numpy()
        return picture

    def several(self, numbers: list[int]) -> Sequence[RgbArray] | RgbArray:
        pictures: RgbArray = self._decoder.get_frames_at(numbers).data.numpy()
        return pictures


class DecordLoader(Loader):
    package = "decord"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._reader = self._open()

    def _open(self) -> Any:
        from decord import VideoReader

        return VideoReader(str(self.path), num_threads=1)

    def iterate(self) -> Iterator[RgbArray]:
        reader = self._open()
        for _ in range(len(reader)):
            yield reader.next().asnumpy()

    def seek(self, number: int) -> RgbArray:
        picture: RgbArray = self._reader[number].asnumpy()
        return picture

    def several(self, numbers: list[int]) -> Sequence[RgbArray] | RgbArray:
        pictures: RgbArray = self._reader.get_batch(numbers).asnumpy()
        return pictures


class OpenCvLoader(Loader):
    package = "cv2"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._capture = self._open()

    def _open(self) -> Any:
        import cv2

        capture = cv2.VideoCapture(str(self.path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
        if not capture.isOpened():
            raise ReadError("OpenCV cannot open it", path=self.path)
        return capture

    def iterate(self) -> Iterator[RgbArray]:
        capture = self._open()
        while True:
            there, picture = capture.read()
            if not there:
                return
            yield picture[..., ::-1]

    def seek(self, number: int) -> RgbArray:
        import cv2

        if self._capture.get(cv2.CAP_PROP_POS_FRAMES) != number:
            self._capture.set(cv2.CAP_PROP_POS_FRAMES, number)
        there, picture = self._capture.read()
        if not there:
            raise ReadError(f"OpenCV gives no frame {number}", path=self.path)
        frame: RgbArray = picture[..., ::-1]
        return frame

    def several(self, numbers: list[int]) -> Sequence[RgbArray]:
        """Seek once, then decode on; frames between are decoded but not converted."""
        pictures = [self.seek(numbers[0])]
        for before, number in pairwise(numbers):
            for _ in range(before + 1, number):
                self._capture.grab()
            there, picture = self._capture.read()
            if not there:
                raise ReadError(f"OpenCV gives no frame {number}", path=self.path)
            pictures.append(picture[..., ::-1])
        return pictures


class ImageioFfmpegLoader(StreamLoader):
    """Reads raw pictures from a pipe of imageio-ffmpeg's ffmpeg program."""

    package = "imageio_ffmpeg"

    def iterate(self) -> Iterator[RgbArray]:
        import imageio_ffmpeg

        # A frame is a frame: without this ffmpeg doubles and drops frames to a constant rate.
        frames = imageio_ffmpeg.read_frames(
            str(self.path), input_params=["-threads", "1"], output_params=["-fps_mode", "passthrough"]
        )
        try:
            width, height = next(frames)["size"]
            for data in frames:
                yield np.frombuffer(data, np.uint8).reshape(height, width, 3)
        finally:
            frames.close()


class ScikitVideoLoader(StreamLoader):
    """Reads raw pictures from a pipe of the ffmpeg program on PATH."""

    package = "skvideo"

    def iterate(self) -> Iterator[RgbArray]:
        import skvideo.io

        yield from skvideo.io.vreader(str(self.path), inputdict={"-threads": "1"})


LOADERS: dict[str, type[Loader]] = {
    "PyAV": PyAvLoader,
    "torchcodec": TorchcodecLoader,
    "decord": DecordLoader,
    "OpenCV": OpenCvLoader,
}
STREAM_LOADERS: dict[str, type[StreamLoader]] = {
    "imageio-ffmpeg": ImageioFfmpegLoader,
    "scikit-video": ScikitVideoLoader,
}


def list_installed() -> list[str]:
    """Return the names of the installed loaders that can seek."""
    return [name for name, loader in LOADERS.items() if importlib.util.find_spec(loader.package) is not None]
