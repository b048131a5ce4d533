"""Facts of clips beside ffmpeg's filters on the same frames, and of pictures and sounds that were built to have them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.films import Pictures, write
from tests.witness import Ffmpeg
from vidprep.transcode import scan
from vidprep.transcode.sources.tables import read_source_table

RATE = 25
BRIGHTER = "eq=brightness=0.2"  # no dark lines but the bars


def moving(frames: int = 50) -> Pictures:
    rng = np.random.default_rng(3)
    wide = sum(
        rng.integers(0, levels, (180 // side, 640 // side, 3)).repeat(side, 0).repeat(side, 1)
        for side, levels in ((20, 150), (10, 60))
    )
    return np.stack([wide[:, 3 * number : 3 * number + 320] for number in range(frames)]).astype(np.uint8)


def facts_of(path: Path, pictures: Pictures) -> dict[str, Any]:
    """Scan pictures as a video of one clip."""
    save(path, pictures)
    return scanned(path)


def save(path: Path, pictures: Pictures) -> None:
    write(path, list(pictures), random.Random(0), is_variable=False, rate=Fraction(RATE), crf=12)


def scanned(path: Path) -> dict[str, Any]:
    table = path.with_suffix(".parquet")
    scan(path, table, overwrite=True)
    (row,) = read_source_table(table).rows()
    return dict(row)


@pytest.fixture
def changed(tmp_path: Path, cli: Ffmpeg) -> Callable[..., dict[str, Any]]:
    """The facts of moving pictures that ffmpeg changed."""

    def change(*options: str) -> dict[str, Any]:
        save(tmp_path / "moving.mp4", moving())
        cli.run("-i", tmp_path / "moving.mp4", *options, tmp_path / "changed.mp4")
        return scanned(tmp_path / "changed.mp4")

    return change


def measured(cli: Ffmpeg, path: Path, filters: str) -> dict[str, list[float]]:
    """Return the values of each key that ffmpeg's filters give the frames."""
    printed = cli.run("-i", path, "-vf", f"{filters},metadata=print:file=-", "-f", "null", "-").decode()
    values: dict[str, list[float]] = {}
    for name, value in re.findall(r"lavfi\.[a-z]+\.(\w+)=([\d.]+)", printed):
        values.setdefault(name, []).append(float(value))
    return values


def test_facts_are_those_of_ffmpegs_filters(tmp_path: Path, cli: Ffmpeg) -> None:
    facts = facts_of(tmp_path / "a.mp4", moving())
    theirs = {name: np.array(each) for name, each in measured(cli, tmp_path / "a.mp4", "siti,signalstats").items()}
    assert facts["brightness"] == pytest.approx((theirs["YAVG"].mean() - 16) / 219, abs=0.01)
    assert facts["saturation"] == pytest.approx(theirs["SATAVG"].mean() / 112, rel=0.1)
    assert facts["spatial_information"] == pytest.approx(theirs["si"].mean(), rel=0.1)
    # Theirs are of all pixels, ours of a copy of 64 x 36: what moves by a pixel is less there.
    assert facts["motion"] == pytest.approx(theirs["YDIF"][1:].mean() / 219 * RATE, rel=0.5)
    assert facts["temporal_information"] == pytest.approx(theirs["ti"][1:].mean(), rel=0.5)
    assert (facts["black"], facts["frozen"], facts["borders"]) == (0, 0, None)


def test_shares_of_black_and_frozen_frames(tmp_path: Path) -> None:
    clip = moving()
    assert facts_of(tmp_path / "a.mp4", np.concatenate([clip[:30], clip[:20] * 0]))["black"] == pytest.approx(0.4)
    frozen = facts_of(tmp_path / "b.mp4", np.concatenate([clip[:26], clip[25:26].repeat(24, 0)]))
    assert frozen["frozen"] == pytest.approx(24 / 49, abs=0.05)
    assert facts_of(tmp_path / "c.mp4", clip[:1].repeat(20, 0))["motion"] == pytest.approx(0, abs=0.01)


def test_a_blurred_clip_is_less_sharp_and_a_grey_one_has_no_colour(tmp_path: Path, changed: Any) -> None:
    sharp = facts_of(tmp_path / "a.mp4", moving())
    assert changed("-vf", "boxblur=6")["sharpness"] < sharp["sharpness"] / 5
    assert changed("-vf", "hue=s=0")["saturation"] < sharp["saturation"] / 5
    assert changed("-vf", "eq=contrast=0.3")["contrast"] == pytest.approx(0.3 * sharp["contrast"], rel=0.1)


@pytest.mark.parametrize(
    ("filters", "borders"),
    [
        ("pad=320:240:0:30", "320x180+0+30"),
        ("pad=400:180:60:0", "320x180+60+0"),
        ("pad=400:240:30:20", "320x180+30+20"),
        ("transpose=1,pad=180:400:0:50", "180x320+0+50"),
    ],
)
def test_borders_are_those_of_the_picture_in_bars(changed: Any, filters: str, borders: str) -> None:
    assert_near(changed("-vf", f"{BRIGHTER},{filters}")["borders"], borders)


def test_borders_are_as_a_turned_video_is_shown(tmp_path: Path, cli: Ffmpeg) -> None:
    save(tmp_path / "a.mp4", moving(20))
    cli.run("-i", tmp_path / "a.mp4", "-vf", f"{BRIGHTER},pad=320:240:0:40", tmp_path / "b.mp4")
    cli.run("-display_rotation", "90", "-i", tmp_path / "b.mp4", "-c", "copy", tmp_path / "turned.mp4")
    said = cli.log("-i", tmp_path / "turned.mp4", "-vf", "cropdetect=round=2:skip=0", "-f", "null", "-")
    width, height, left, top = re.findall(r"crop=(\d+):(\d+):(\d+):(\d+)", said)[-1]
    assert_near(scanned(tmp_path / "turned.mp4")["borders"], f"{width}x{height}+{left}+{top}")


def assert_near(borders: str, wanted: str) -> None:
    found, right = ([int(each) for each in re.split("[x+]", text)] for text in (borders, wanted))
    assert np.abs(np.array(found) - right).max() <= 2, (borders, wanted)


def test_loudness_is_that_of_ffmpegs_ebur128(tmp_path: Path, cli: Ffmpeg, changed: Any) -> None:
    noise = ("-f", "lavfi", "-i", "anoisesrc=d=2:a=0.2:c=pink:seed=4")
    facts = changed(*noise, "-c:v", "copy", "-c:a", "aac")
    said = cli.log("-i", tmp_path / "changed.mp4", "-af", "ebur128", "-f", "null", "-")
    assert facts["loudness"] == pytest.approx(float(re.findall(r"I:\s+(-?[\d.]+) LUFS", said)[-1]), abs=0.3)
    assert facts["silence"] == 0


def test_the_share_of_silence(tmp_path: Path, changed: Any) -> None:
    sound = ("-f", "lavfi", "-i", "aevalsrc=0.1*sin(3000*t)*lt(t\\,1):d=2")
    assert changed(*sound, "-c:v", "copy", "-c:a", "aac")["silence"] == pytest.approx(0.5, abs=0.15)
    assert scanned(tmp_path / "moving.mp4")["silence"] is None
