"""Rate–distortion curves: size at equal PSNR, and the Bjøntegaard delta rate.

A curve is a list of (bytes, dB), one point for each CRF or quality, in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

Curve = Sequence[tuple[float, float]]

MIN_POINTS = 4
# One grey level is 1/255 of the range of a JPEG's luma and 1/219 of a video's (chroma 1/224): the same error in the picture
# scores so many dB less there. ITU-T H.273, "VideoFullRangeFlag".
LUMA_GAIN_DB = 20 * math.log10(255 / 219)
CHROMA_GAIN_DB = 20 * math.log10(255 / 224)


def bd_rate(anchor: Curve, test: Curve) -> float | None:
    """How much more (0.1: 10 %) or less the test takes than the anchor at equal PSNR, on average over the dB that both reach.

    G. Bjøntegaard, "Calculation of average PSNR differences between RD-curves", ITU-T VCEG-M33, 2001: log10 of the rate as a
    cubic of the PSNR, integrated over the common interval. None with fewer than four finite points on a side, or nothing in
    common.
    """
    curves = [_finite(anchor), _finite(test)]
    if any(len(curve) < MIN_POINTS for curve in curves):
        return None
    low = max(min(db for _, db in curve) for curve in curves)
    high = min(max(db for _, db in curve) for curve in curves)
    if low >= high:
        return None
    means = []
    for curve in curves:
        middle = (low + high) / 2
        db = np.array([point[1] for point in curve]) - middle
        integral = np.polynomial.Polynomial.fit(db, np.log10([point[0] for point in curve]), 3).integ()
        means.append((integral(high - middle) - integral(low - middle)) / (high - low))
    return float(10 ** (means[1] - means[0]) - 1)


def size_at(curve: Curve, db: float) -> float | None:
    """Bytes at a PSNR, between the two points next to it: the logarithm of the size is taken for linear in dB. None outside."""
    found = value_at([(math.log(size), point_db) for size, point_db in _finite(curve)], db)
    return None if found is None else math.exp(found)


def value_at(values: Sequence[tuple[float, float]], db: float) -> float | None:
    """A CRF or quality, or another figure, at a PSNR: linear between the two (figure, dB) next to it. None outside."""
    points = sorted((point for point in values if math.isfinite(point[1])), key=lambda point: point[1])
    for (low_value, low), (high_value, high) in pairwise(points):
        if low <= db <= high:
            part = (db - low) / (high - low) if high > low else 0.0
            return low_value + part * (high_value - low_value)
    return None


def on_limited_scale(luma_db: float, planes_db: float) -> tuple[float, float]:
    """PSNR-Y and PSNR-YUV of full range 4:2:0 planes, as if they had been of limited range."""
    luma, planes = (10 ** (-db / 10) for db in (luma_db, planes_db))
    chroma = max(0.0, 6 * planes - 4 * luma)
    luma, chroma = luma * 10 ** (-LUMA_GAIN_DB / 10), chroma * 10 ** (-CHROMA_GAIN_DB / 10)
    both = (4 * luma + chroma) / 6
    return (-10 * math.log10(luma) if luma else math.inf), (-10 * math.log10(both) if both else math.inf)


def _finite(curve: Curve) -> list[tuple[float, float]]:
    return [point for point in curve if point[0] > 0 and math.isfinite(point[1])]
