"""The search for a CRF, against trying every one; curves are synthetic, so that each has a known answer."""

from __future__ import annotations

import math
import random

import pytest

from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.options import Target
from vidprep.transcode.settings.output import FrameOutput, QualityScale, VideoOutput
from vidprep.transcode.unit.target_search import CLOSE_ENOUGH_DB, Search, score_of_target, why_unscored

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


# Ten steps, of which each usually costs 2 dB; the target is 40 dB.
TEN = QualityScale("--x", tuple(range(10)), tuple(map(float, range(10))), (5, 40.0), 2.0)


@pytest.mark.parametrize(
    ("known", "close", "due"),
    [
        ({5: 44.0}, 0.25, 7),  # 4 dB too good: two steps coarser
        ({5: 40.0}, 0.25, None),
        ({5: 40.24}, 0.25, None),
        ({5: 40.25}, 0.25, 6),
        ({5: 41.9}, 2.0, None),
        ({5: 42.0}, 2.0, 6),
        ({5: 36.0}, 0.25, 3),
        ({5: 20.0}, 0.25, 2),  # after one miss no finer than half way
        ({4: 20.0}, 0.25, 1),
        ({5: 20.0, 2: 30.0}, 0.25, 0),
        ({0: 30.0}, 0.25, None),  # the finest misses
        ({9: 50.0}, 0.25, None),  # the coarsest reaches it
        ({5: 44.0, 6: 39.0}, 0.25, None),  # nothing between them
        ({5: 44.0, 7: 39.0}, 0.25, 6),
        ({2: 44.0, 8: 39.9}, 0.25, 7),
        ({2: 60.0, 9: 39.0}, 0.25, 8),
        ({0: 60.0, 1: 59.0, 3: 57.0, 9: 10.0}, 0.25, 5),  # on the line
        ({0: 60.0, 1: 59.0, 2: 58.0, 3: 57.0, 9: 10.0}, 0.25, 6),  # after five trials the middle
        ({0: 60.0, 1: 59.0, 2: 58.0, 3: 57.0, 4: 56.0}, 0.25, 9),  # without a miss there is none
        (
            {3: 42.0, 5: 42.0},
            0.25,
            9,
        ),  # a line without a slope has a quarter of the usual one, from the coarser trial on
        ({5: 44.0, 6: 43.9}, 0.25, 9),
        ({2: math.inf}, 0.25, 9),
        ({0: math.inf, 4: 44.0}, 0.25, 6),
        ({0: math.inf, 4: 38.0}, 0.25, 3),
        ({0: math.inf, 4: 30.0}, 0.25, 1),
    ],
)
def test_the_next_step(known: dict[int, float], close: float, due: int | None) -> None:
    for order in (known, dict(reversed(known.items()))):
        search = Search(TEN, Target(40.0))
        for step, value in order.items():
            search.record(step, value)
        assert search.next(close) == due


@pytest.mark.parametrize(
    ("known", "best", "miss"), [({}, None, None), ({3: 40.0, 5: 41.0, 6: 39.9, 8: 39.0, 1: 39.0}, 5, 6)]
)
def test_the_best_step_is_the_coarsest_that_reaches_the_target(
    known: dict[int, float], best: int | None, miss: int | None
) -> None:
    search = Search(TEN, Target(40.0), known)
    assert (search.best, search.first_miss) == (best, miss)
    assert Search(TEN, Target(40.0), {0: 39.0}).first_miss == 0


def test_a_target_of_vmaf_looks_at_vmaf_alone() -> None:
    row = ManifestRow("a", "a.mp4", "a.avi", psnr_y_p1_db=41.0, vmaf_p1=93.0)
    assert score_of_target(row, Target(40.0)) == 41.0
    assert score_of_target(row, Target(vmaf=90.0)) == 93.0
    search = Search(TEN, Target(vmaf=90.0))
    search.record(5, 96.0)
    assert search.crossing() == 7.0  # 1.5 points of VMAF a dB, and 2 dB a step


def test_why_an_output_is_not_scored() -> None:
    row = ManifestRow("a", "a.mp4", "a.avi")
    assert why_unscored(row) == ""
    row.warn(Remark("not_enlarged", "small"), Remark("not_scored", "no VMAF"), Remark("not_scored", "no XPSNR"))
    assert why_unscored(row) == "no VMAF; no XPSNR"
