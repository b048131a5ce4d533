"""PSNR and SSIM of two frames, by libavfilter's psnr and ssim filters, in this process.

The figures equal those of `ffmpeg -lavfi psnr` and `-lavfi ssim` to the last digit, because the code is the same.
Sources: PSNR is 10·log10(peak² / MSE); `psnr_avg` weights planes by their number of samples, as ffmpeg's psnr filter
does; SSIM after Wang, Bovik, Sheikh and Simoncelli, IEEE Trans. Image Processing 13(4), 2004, in the 8x8 overlapped
form of ffmpeg's ssim filter, `All` weighting planes by their number of samples.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import NamedTuple

import av
from av.error import FFmpegError as AvError
from av.video.frame import VideoFrame

from vidprep.formats.errors import VerifyError
from vidprep.formats.model import Colour, FrameSize


class FrameScore(NamedTuple):
    """Scores of one frame.

    Attributes:
        mse_y: Mean squared error of the luma plane
        mse_yuv: Mean squared error of all samples
        ssim: SSIM of all planes; 1 means equal
    """

    mse_y: float
    mse_yuv: float
    ssim: float


class FrameScorer:
    """Scores pairs of frames of one size, pixel format and colour. Holds a filter graph; not thread-safe."""

    def __init__(self, size: FrameSize, pixel_format: str, colour: Colour) -> None:
        self._graph = graph = av.filter.Graph()
        graph.threads = 1
        shape = f"video_size={size.width}x{size.height}:pix_fmt={pixel_format}:time_base=1/1:pixel_aspect=1/1"
        # Matrix and range do not enter the formulas; the same on both sides, they keep the graph from converting.
        shape += f":colorspace={colour.matrix}:range={2 if colour.full_range else 1}"
        self._distorted = graph.add("buffer", shape, name="distorted")
        self._reference = graph.add("buffer", shape, name="reference")
        numbers = [graph.add("setpts", "N") for _ in range(2)]  # pairs are paired by number, whatever times they have
        split, psnr, ssim = graph.add("split"), graph.add("psnr"), graph.add("ssim")
        self._sink = graph.add("buffersink")
        self._distorted.link_to(numbers[0])
        self._reference.link_to(numbers[1])
        numbers[1].link_to(split)
        numbers[0].link_to(psnr, 0, 0)
        split.link_to(psnr, 0, 1)
        psnr.link_to(ssim, 0, 0)
        split.link_to(ssim, 1, 1)
        ssim.link_to(self._sink)
        graph.configure()

    def score(self, reference: VideoFrame, distorted: VideoFrame) -> FrameScore:
        try:
            self._reference.push(reference)
            self._distorted.push(distorted)
            metadata = self._sink.pull().metadata
        except (AvError, OSError, ValueError) as error:
            raise VerifyError(f"scoring failed: {error}") from error
        mse_yuv = metadata.get("lavfi.psnr.mse_avg")
        if mse_yuv is None:
            raise VerifyError("libavfilter's psnr filter left no score")
        return FrameScore(
            float(metadata.get("lavfi.psnr.mse.y", mse_yuv)), float(mse_yuv), float(metadata["lavfi.ssim.All"])
        )


def psnr_db(mse: float, peak: int) -> float:
    """Return the peak signal-to-noise ratio of a mean squared error in dB; inf for 0."""
    return math.inf if mse == 0 else 10 * math.log10(peak * peak / mse)


@dataclass(frozen=True, slots=True)
class QualityReport:
    """Scores over all scored frames, in dB: PSNR of the mean MSE, 1st percentile and minimum per frame, mean SSIM.

    Attributes:
        worst_frame: Number of the output frame with the lowest PSNR-Y, from 0
        num_scored: Number of scored frames
    """

    psnr_y_db: float
    psnr_yuv_db: float
    psnr_y_p1_db: float
    psnr_y_min_db: float
    worst_frame: int
    ssim: float
    num_scored: int


class QualitySums:
    """Scores of frames, and the report over them. Stores 16 bytes per scored frame."""

    def __init__(self) -> None:
        self._numbers = array("l")
        self._mse_y = array("d")
        self._mse_yuv_sum = 0.0
        self._ssim_sum = 0.0

    def add(self, number: int, score: FrameScore) -> None:
        self._numbers.append(number)
        self._mse_y.append(score.mse_y)
        self._mse_yuv_sum += score.mse_yuv
        self._ssim_sum += score.ssim

    def extend(self, other: QualitySums, first: int) -> None:
        """Add the scores of a later segment whose frame 0 has the number `first`."""
        self._numbers.extend(first + number for number in other._numbers)
        self._mse_y.extend(other._mse_y)
        self._mse_yuv_sum += other._mse_yuv_sum
        self._ssim_sum += other._ssim_sum

    def report(self, peak: int) -> QualityReport:
        """Return means, minima and the 1st percentile by nearest rank: the ceil(n/100)-th lowest. Raises VerifyError if
        nothing was scored.
        """
        count = len(self._mse_y)
        if not count:
            raise VerifyError("no frame was scored")
        worst_first = sorted(self._mse_y, reverse=True)
        return QualityReport(
            psnr_y_db=psnr_db(math.fsum(self._mse_y) / count, peak),
            psnr_yuv_db=psnr_db(self._mse_yuv_sum / count, peak),
            psnr_y_p1_db=psnr_db(worst_first[math.ceil(count / 100) - 1], peak),
            psnr_y_min_db=psnr_db(worst_first[0], peak),
            worst_frame=self._numbers[self._mse_y.index(worst_first[0])],
            ssim=self._ssim_sum / count,
            num_scored=count,
        )
