"""The search for a CRF, against trying every one; curves are synthetic, so that each has a known answer."""

from __future__ import annotations

import math
import random

import pytest

from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.options import Target
from vidprep.transcode.settings.output import FrameOutput, VideoOutput
from vidprep.transcode.unit.target_search import CLOSE_ENOUGH_DB, Search

SCALES = {codec: VideoOutput(EncoderOptions(codec=codec)).quality_scale for codec in ("h264", "hevc", "vp9", "av1")}
SCALES["jpeg"] = FrameOutput().quality_scale
FLOOR = 38.0


def curve(seed: int, steps: int) -> list[float]:
    """dB by step, falling, steeply at first and bent at random; infinite at step 0 for some."""
    rng = random.Random(seed)
    top, bend, per_step = rng.uniform(39, 60), rng.uniform(0.5, 2), rng.uniform(10, 45) / steps
    found = [top - per_step * steps * (step / steps) ** bend for step in range(steps)]
    return [math.inf, *found[1:]] if seed % 3 == 0 else found


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("seed", range(25))
def test_it_ends_at_the_coarsest_that_reaches_the_floor_or_within_a_quarter_of_a_db(name, seed):
    scale = SCALES[name]
    db = curve(seed, len(scale.values))
    search, step, tries = Search(scale, Target(FLOOR)), scale.guess(FLOOR), 0
    while step is not None:
        search.record(step, db[step])
        tries += 1
        step = search.next()
    coarsest = max(step for step, value in enumerate(db) if value >= FLOOR)
    assert search.best is not None and db[search.best] >= FLOOR
    assert search.best == coarsest or db[search.best] < FLOOR + 0.25
    assert tries <= 11


@pytest.mark.parametrize("name", SCALES)
def test_a_coarse_search_ends_close_to_the_target(name):
    scale = SCALES[name]
    db = curve(1, len(scale.values))
    start = max(step for step, value in enumerate(db) if value >= FLOOR) + 6
    search = Search(scale, Target(FLOOR))
    search.record(start, db[start])
    for _ in range(3):
        step = search.next(CLOSE_ENOUGH_DB)
        if step is None:
            break
        search.record(step, db[step])
    assert search.best is not None and start - search.best <= 12


def test_a_lossless_trial_is_no_point_of_a_line():
    db = [math.inf, *(62.0 - step for step in range(1, 64))]
    search, step, tries = Search(SCALES["vp9"], Target(60.0)), 63, 0
    while step is not None:
        search.record(step, db[step])
        tries += 1
        step = search.next(CLOSE_ENOUGH_DB)
    assert tries <= 5
    assert search.best is not None and search.best > 0
    search = Search(SCALES["vp9"], Target(60.0))
    search.record(0, math.inf)
    assert search.crossing() == 63


def test_an_unreachable_target_ends_at_the_finest_setting():
    search, step = Search(SCALES["h264"], Target(FLOOR)), 30
    while step is not None:
        search.record(step, 20.0)
        step = search.next()
    assert search.best is None
    assert 0 in search.known


def test_the_finest_value_comes_first_whichever_way_an_encoder_counts():
    assert SCALES["h264"].values[0] == 0
    assert SCALES["jpeg"].values[0] == 100
    videotoolbox = VideoOutput(EncoderOptions(encoder="h264_videotoolbox"), engine="ffmpeg").quality_scale
    assert videotoolbox.values[0] == 100
    assert videotoolbox.values[-1] == 1
