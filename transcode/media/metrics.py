"""PSNR, SSIM, XPSNR and VMAF of two videos, frame by frame, by libavfilter's filters, in this process.

The figures equal those of `ffmpeg -lavfi psnr`, `ssim`, `xpsnr` and `libvmaf` to the last digit, because the code is the same.
Sources: PSNR is 10·log10(peak² / MSE); `psnr_avg` weights planes by their number of samples, as ffmpeg's psnr filter
does; SSIM after Wang, Bovik, Sheikh and Simoncelli, IEEE Trans. Image Processing 13(4), 2004, in the 8x8 overlapped
form of ffmpeg's ssim filter, `All` weighting planes by their number of samples. XPSNR after Helmrich et al., ICASSP 2020; of a
frame it is the minimum over its planes, and its mean over frames that of the square roots of the weighted errors, as ffmpeg prints
it. VMAF is libvmaf's; both look at neighbouring frames, so that all frames have to be scored, in order.
"""

from __future__ import annotations

import gc
import math
import re
import tempfile
import weakref
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, NamedTuple

import av
import av.logging
from av.error import FFmpegError as AvError
from av.filter.context import FilterContext
from av.video.frame import VideoFrame

from vidprep.formats.errors import VerifyError
from vidprep.formats.model import FrameSize, OutputFormat
from vidprep.transcode.settings.options import QualityGate


class FrameScore(NamedTuple):
    """Scores of one frame.

    Attributes:
        mse_y: Mean squared error of the luma plane
        mse_yuv: Mean squared error of all samples
        ssim: SSIM of all planes; 1 means equal, nan: too small for it
        xpsnr_db: XPSNR of each plane; empty if not asked for
    """

    mse_y: float
    mse_yuv: float
    ssim: float
    xpsnr_db: tuple[float, ...] = ()


class Vmaf(NamedTuple):
    """VMAF of frames.

    Attributes:
        model: Name of the model, and version of libvmaf
    """

    frames: array[float]
    model: str


# The shorter and longer side from which on libvmaf 3.2 gives a score; it dies of smaller pictures (measured). A model of
# version 1 that is not listed counts as the one that needs the largest.
SMALLEST_SIDES = (18, 18)
SMALLEST_SIDES_V1 = {"3d0h": (160, 216), "1d5h_2160": (160, 216), "5d0h": (266, 266), "3d0h_2160": (318, 318)}
V1_NAME = re.compile(r"vmaf_v1[\d.]*_(?:hfr_)?(\w+)")
V1_DEPTH = "yuv420p10le"
XPSNR_DEEP_WIDTH = 64  # FFmpeg 9.0 reads what lies behind shorter lines of 16-bit samples (measured)


def not_scored(size: FrameSize, pixel_format: str, gate: QualityGate) -> dict[str, str]:
    """Return the scores that `gate` asks for and such pictures do not get, each with the reason."""
    reasons = {}
    if "vmaf" in gate.score:
        shorter, longer = SMALLEST_SIDES
        if _is_v1(gate.vmaf_model):
            name = V1_NAME.fullmatch(gate.vmaf_model)
            shorter, longer = SMALLEST_SIDES_V1.get(name[1] if name else "", max(SMALLEST_SIDES_V1.values()))
        if min(size) < shorter or max(size) < longer:
            reasons["vmaf"] = f"no VMAF: pictures of {size} are too small for the model {gate.vmaf_model}"
    if "xpsnr" in gate.score and "10" in pixel_format and size.width % XPSNR_DEEP_WIDTH:
        reasons["xpsnr"] = (
            f"no XPSNR: that of 10-bit pictures is right only where {XPSNR_DEEP_WIDTH} divides the width, here {size.width}"
        )
    return reasons


def _is_v1(model: str) -> bool:
    return model.startswith("vmaf_v1")


class FrameScorer:
    """Scores pairs of frames of one video, by all scores that its pictures get. Holds a filter graph; not thread-safe.

    Attributes:
        has_memory: Whether a score depends on the frames before
    """

    def __init__(self, output: OutputFormat, gate: QualityGate) -> None:
        """Set up the filters."""
        size, pixel_format, colour = output.size, output.pixel_format, output.colour
        scores = set(gate.score) - set(not_scored(size, pixel_format, gate))
        self._model = gate.vmaf_model if "vmaf" in scores else None
        self._asks_xpsnr = "xpsnr" in scores
        self.has_memory = self._asks_xpsnr or self._model is not None
        self._log: IO[bytes] | None = None
        self._graph: av.filter.Graph | None = av.filter.Graph()
        graph = self._graph
        graph.threads = 1
        shape = f"video_size={size.width}x{size.height}:pix_fmt={pixel_format}:time_base=1/1:pixel_aspect=1/1"
        # Matrix and range do not enter the formulas; the same on both sides, they keep the graph from converting.
        shape += f":colorspace={colour.matrix}:range={2 if colour.full_range else 1}:frame_rate={output.nominal_rate}"
        self._distorted = graph.add("buffer", shape, name="distorted")
        self._reference = graph.add("buffer", shape, name="reference")
        numbers = [graph.add("setpts", "N") for _ in range(2)]  # pairs are paired by number, whatever times they have
        meters = [graph.add("psnr"), graph.add("ssim"), *([graph.add("xpsnr")] if self._asks_xpsnr else [])]
        vmaf = None
        if self._model is not None:
            # Without a name, so that nothing is left of a process that is killed.
            self._log = tempfile.TemporaryFile()  # noqa: SIM115
            weakref.finalize(self, self._log.close)
            av.logging.set_libav_level(av.logging.ERROR)  # else libvmaf warns of every flat picture, on stderr
            vmaf = graph.add(
                "libvmaf", f"log_fmt=json:log_path=/dev/fd/{self._log.fileno()}:model=version={self._model}"
            )
            av.logging.set_libav_level(av.logging.INFO)
            meters.append(vmaf)
        split = graph.add("split", f"{len(meters)}")
        self._sink = graph.add("buffersink")
        self._distorted.link_to(numbers[0])
        self._reference.link_to(numbers[1])
        numbers[1].link_to(split)
        last = numbers[0]
        for place, meter in enumerate(meters):
            reference, pad = split, place
            if meter is vmaf and _is_v1(self._model or ""):
                last, reference, pad = _convert_for_v1(graph, last), _convert_for_v1(graph, split, place), 0
            last.link_to(meter, 0, 0)
            reference.link_to(meter, pad, 1)
            last = meter
        last.link_to(self._sink)
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
        xpsnr = [metadata.get(f"lavfi.xpsnr.xpsnr.{plane}") for plane in "yuv"] if self._asks_xpsnr else []
        return FrameScore(
            float(metadata.get("lavfi.psnr.mse.y", mse_yuv)),
            float(mse_yuv),
            float(metadata["lavfi.ssim.All"]),
            tuple(float(each) for each in xpsnr if each is not None),
        )

    def finish(self) -> Vmaf | None:
        """Return the VMAF of the frames that were scored; None if it was not asked for. Call it once, after the last frame.

        Raises:
            VerifyError: libvmaf left no scores.
        """
        if self._log is None:
            return None
        try:
            self._reference.push(None)
            self._distorted.push(None)
            with suppress(EOFError, BlockingIOError):
                self._sink.pull()
            self._graph = self._reference = self._distorted = self._sink = None  # type: ignore[assignment]
            gc.collect()  # libvmaf writes its log when the graph is freed
            self._log.seek(0)
            version, frames = "", array("d")
            for line in self._log:  # JSON with a line for each value; parsed as a whole it takes 2 kB per frame
                if match := re.match(rb' *"vmaf": ([\d.]+)', line):
                    frames.append(float(match[1]))
                elif match := re.match(rb' *"version": "(.*)"', line):
                    version = match[1].decode()
        except (AvError, OSError) as error:
            raise VerifyError(f"libvmaf left no scores: {error}") from error
        return Vmaf(frames, f"{self._model} (libvmaf {version})")


def _convert_for_v1(graph: av.filter.Graph, last: FilterContext, pad: int = 0) -> FilterContext:
    """Return a filter that converts to the pixel format that models of version 1 want."""
    converted = graph.add("format", V1_DEPTH)
    last.link_to(converted, pad, 0)
    return converted


def psnr_db(mse: float, peak: int) -> float:
    """Return the peak signal-to-noise ratio of a mean squared error in dB; inf for 0."""
    return math.inf if mse == 0 else 10 * math.log10(peak * peak / mse)


@dataclass(frozen=True, slots=True)
class QualityReport:
    """Scores over all scored frames, in dB: PSNR of the mean MSE, 1st percentile and minimum per frame, mean SSIM.

    Attributes:
        worst_frame: Number of the output frame with the lowest PSNR-Y, from 0
        vmaf: Mean VMAF, harmonic mean, 1st percentile; None if not asked for
        vmaf_model: Model and version of libvmaf
        xpsnr_db: XPSNR of all frames, and 1st percentile, as of the plane where it is lowest
    """

    psnr_y_db: float
    psnr_yuv_db: float
    psnr_y_p1_db: float
    psnr_y_min_db: float
    worst_frame: int
    ssim: float | None
    num_scored: int
    vmaf: float | None = None
    vmaf_harmonic_mean: float | None = None
    vmaf_p1: float | None = None
    vmaf_model: str | None = None
    xpsnr_db: float | None = None
    xpsnr_p1_db: float | None = None


class QualitySums:
    """Scores of frames, and the report over them. Stores 16 bytes per scored frame, with VMAF and XPSNR 48."""

    def __init__(self) -> None:
        self._numbers = array("l")
        self._mse_y = array("d")
        self._mse_yuv_sum = 0.0
        self._ssim_sum = 0.0
        self._xpsnr: list[array[float]] = []  # of each plane
        self.vmaf: Vmaf | None = None

    def add(self, number: int, score: FrameScore) -> None:
        self._numbers.append(number)
        self._mse_y.append(score.mse_y)
        self._mse_yuv_sum += score.mse_yuv
        self._ssim_sum += score.ssim
        self._xpsnr = self._xpsnr or [array("d") for _ in score.xpsnr_db]
        for plane, db in zip(self._xpsnr, score.xpsnr_db, strict=True):
            plane.append(db)

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
        lowest = math.ceil(count / 100) - 1
        vmaf = sorted(self.vmaf.frames) if self.vmaf is not None else []
        if self.vmaf is not None and len(vmaf) != count:
            raise VerifyError(f"libvmaf scored {len(vmaf)} of {count} frames")
        return QualityReport(
            psnr_y_db=psnr_db(math.fsum(self._mse_y) / count, peak),
            psnr_yuv_db=psnr_db(self._mse_yuv_sum / count, peak),
            psnr_y_p1_db=psnr_db(worst_first[lowest], peak),
            psnr_y_min_db=psnr_db(worst_first[0], peak),
            worst_frame=self._numbers[self._mse_y.index(worst_first[0])],
            ssim=None if math.isnan(self._ssim_sum) else self._ssim_sum / count,
            num_scored=count,
            vmaf=math.fsum(vmaf) / count if vmaf else None,
            vmaf_harmonic_mean=count / math.fsum(1 / (each + 1) for each in vmaf) - 1 if vmaf else None,
            vmaf_p1=vmaf[lowest] if vmaf else None,
            vmaf_model=None if self.vmaf is None else self.vmaf.model,
            xpsnr_db=min(map(_mean_xpsnr, self._xpsnr)) if self._xpsnr else None,
            xpsnr_p1_db=sorted(map(min, zip(*self._xpsnr, strict=True)))[lowest] if self._xpsnr else None,
        )


def _mean_xpsnr(frames: Sequence[float]) -> float:
    """Return the XPSNR of a plane of all frames, in dB, from that of each."""
    error = math.fsum(10 ** (-db / 20) for db in frames) / len(frames)
    return math.inf if error == 0 else -20 * math.log10(error)
