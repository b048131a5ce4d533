"""CRF of each codec and JPEG's quality as one scale, along which dB falls about evenly."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from vidprep.formats.profiles import CODECS
from vidprep.formats.video.options import EncoderOptions

# Where a search for a CRF begins: medians over the real clips that defaults were chosen on, to within a few dB.
DB_AT_DEFAULT = 41.0
USUAL_JPEG = (90, 43.0)
DB_PER_OCTAVE = 2.9


@dataclass(frozen=True, slots=True)
class QualityScale:
    """What quality is set with, from the finest value (step 0) to the coarsest.

    positions: of each value, on a scale along which dB falls about evenly. usual: a value, and the 1st percentile of PSNR-Y
    that a video has there as a rule. slope: dB lost from one position to the next, as a rule.
    """

    option: str
    values: tuple[int, ...]
    positions: tuple[float, ...]
    usual: tuple[int, float]
    slope: float

    def step_at(self, position: float) -> int:
        """The coarsest step that is not coarser than a position; the finest when all are."""
        return max(0, bisect_right(self.positions, position) - 1)

    def step_of(self, value: float) -> int:
        return min(range(len(self.values)), key=lambda step: abs(self.values[step] - value))

    def guess(self, floor_db: float) -> int:
        """The step to begin with."""
        value, db = self.usual
        return self.step_at(self.positions[self.step_of(value)] + (db - floor_db) / self.slope)


def scale_of_crf(encoder: EncoderOptions) -> QualityScale:
    finest, coarsest = (int(end) for end in encoder.profile.crf_range)
    values = tuple(range(finest, coarsest + 1) if coarsest > finest else range(finest, coarsest - 1, -1))
    usual = int(encoder.profile.crf_default), DB_AT_DEFAULT
    slope = CODECS[encoder.codec].db_of_crf_range / (len(values) - 1)
    return QualityScale("--crf", values, tuple(float(n) for n in range(len(values))), usual, slope)


def scale_of_jpeg() -> QualityScale:
    qualities = tuple(range(100, 0, -1))
    return QualityScale("--quality", qualities, tuple(map(_jpeg_octaves, qualities)), USUAL_JPEG, DB_PER_OCTAVE)


def _jpeg_octaves(quality: int) -> float:
    """Doublings of JPEG's quantisers from quality 100 on, as libjpeg scales them: 200 - 2q percent, below 50 5000 / q."""
    percent = 200 - 2 * quality if quality >= 50 else 5000 / quality
    return math.log2(max(1.0, percent))
