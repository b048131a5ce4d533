"""A constant rate shows the nearest picture: cameras that jitter and film with repeated fields lose and double none."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import pytest

from tests.helpers import manifest, transcode
from tests.numbered_pictures import constant, numbers_in, write
from tests.pipeline import Run
from tests.sampling import in_turn
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.run import RunSettings

NTSC, FILM = Fraction(30000, 1001), Fraction(24000, 1001)
WAYS = {"own": Fraction(1), "half": Fraction(1, 2), "third": Fraction(1, 3), "double": Fraction(2)}


def jittered(rng: random.Random, rate: Fraction, most: Fraction, count: int) -> list[Fraction]:
    """Times of a camera: each is up to `most` of an interval early or late, the first one too. They count from the first."""
    off = [Fraction(rng.randint(-1000, 1000), 1000) * most / rate for _ in range(count)]
    times = [Fraction(n) / rate + each for n, each in enumerate(off)]
    return [time - times[0] for time in times]


def pulled_down(rng: random.Random, count: int) -> list[Fraction]:
    """Times of film of which every second frame stays for three fields."""
    begin, field = rng.randint(0, 1), 1 / (2 * NTSC)
    fields = [0]
    for n in range(count - 1):
        fields.append(fields[-1] + 2 + (n + begin) % 2)
    return [n * field for n in fields]


def due(way: str, count: int) -> list[int]:
    if way == "double":
        return [n for n in range(count) for _ in "ab"]
    return list(range(0, count, {"own": 1, "half": 2, "third": 3}[way]))


def lost_and_doubled(seed: int, way: str, folder: Path) -> str:
    """A drawn camera or film at one of WAYS; "" if its pictures are those that the rate asks for."""
    rng = random.Random(f"{seed} {way}")
    count = rng.randint(70, 150)
    is_film = rng.random() < 0.2
    rate = FILM if is_film else rng.choice([Fraction(rng.randint(8, 50)), NTSC, FILM, Fraction(25), Fraction(30)])
    most = Fraction(1, 5) if way == "double" else Fraction(1, 3)
    # Matroska's milliseconds come on top of the jitter.
    suffix = rng.choice((".mp4", ".mkv") if is_film or (rate <= 25 and way != "double") else (".mp4",))
    times = (
        pulled_down(rng, count) if is_film else jittered(rng, rate, most * Fraction(rng.randint(40, 100), 100), count)
    )
    path = write(folder / f"{seed}-{way}{suffix}", times, rate=rate)
    ours = Run()(path, RunSettings(retime=Retime(rate * WAYS[way])), apply=False)
    shown = [frame.source_index for frame in ours.frames]
    return "" if shown == due(way, count) else f"{path.name} {rate} {shown}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", in_turn(range(60), 6))
def test_cameras_that_jitter_and_pulled_down_film_lose_and_double_nothing(seed: int, way: str, tmp_path: Path) -> None:
    """A camera with 6 ms of jitter lost 28 of 300 pictures at its own rate, and telecined film every second one."""
    assert lost_and_doubled(seed, way, tmp_path) == ""


@pytest.mark.parametrize("verb", ["transcode", "burst", "ffmpeg"])
def test_a_first_picture_that_comes_late_moves_no_other(verb: str, tmp_path: Path) -> None:
    """The clock counted from the first picture: where that was late by 0.3 of an interval, others were doubled."""
    rng = random.Random(3)
    times = [Fraction(3, 10) / 30, *jittered(rng, Fraction(30), Fraction(1, 3), 90)[1:]]
    write(tmp_path / "src" / "a.mp4", [time - times[0] for time in times])
    options = ("--engine", "ffmpeg") if verb == "ffmpeg" else ()
    ran = transcode(
        tmp_path / "src", tmp_path / "made", "--fps", 30, *options, verb="burst" if verb == "burst" else "transcode"
    )
    assert ran.code == 0, ran.err
    assert numbers_in(tmp_path / "made") == {"a": list(range(90))}
    assert "pictures_repeated" not in manifest(tmp_path / "made")["a"]["warning_codes"]


def test_cuts_of_a_camera_that_jitters_hold_each_picture_once(tmp_path: Path) -> None:
    rng = random.Random(5)
    write(tmp_path / "a.mp4", jittered(rng, Fraction(25), Fraction(1, 3), 100), rate=Fraction(25))
    (tmp_path / "t.csv").write_text("path,id,start_frame,end_frame\na.mp4,x,10,40\na.mp4,y,40,71\n")
    assert transcode(tmp_path / "t.csv", tmp_path / "made", "--fps", 25).code == 0
    assert numbers_in(tmp_path / "made") == {"x": list(range(10, 40)), "y": list(range(40, 71))}


def test_the_row_counts_pictures_that_are_repeated_and_left_out_at_the_own_rate(tmp_path: Path) -> None:
    """Of a screen recording with a mean of 25 pictures a second, --fps 25 repeats some and leaves others out."""
    rng = random.Random(1)
    times = [Fraction(0)]
    while len(times) < 100:
        times.append(times[-1] + Fraction(rng.choice((10, 20, 90)), 1000))
    mean = round(99 / float(times[-1]), 3)
    write(tmp_path / "src" / "a.mp4", times)
    write(tmp_path / "src" / "regular.mp4", constant(60, 30))
    write(tmp_path / "src" / "ntsc.mp4", constant(1100, NTSC), rate=NTSC)
    assert transcode(tmp_path / "src", tmp_path / "made", "--fps", mean, "--include", "a.mp4").code == 0
    assert transcode(tmp_path / "src", tmp_path / "30", "--fps", 30, "--exclude", "a.mp4").code == 0
    row = manifest(tmp_path / "made")["a"]
    shown = [number for number in numbers_in(tmp_path / "made")["a"] if number is not None]
    repeated, left_out = len(shown) - len({*shown}), shown[-1] + 1 - len({*shown})
    assert repeated > 5 and left_out > 5
    assert any(f"{repeated} pictures repeated and {left_out} left out" in text for text in row["warnings"])
    rows = manifest(tmp_path / "30")
    assert "pictures_repeated" not in rows["regular"]["warning_codes"]
    assert any("1 picture repeated and 0 left out" in text for text in rows["ntsc"]["warnings"])


def test_a_destination_made_by_the_old_rule_is_refused_with_both_rules(tmp_path: Path) -> None:
    write(tmp_path / "src" / "a.mp4", constant(20, 30))
    settings = tmp_path / "made" / ".vidprep" / "run.json"
    assert transcode(tmp_path / "src", tmp_path / "made", "--fps", 10).code == 0
    settings.write_text(settings.read_text().replace('"clock_rule": 2', '"clock_rule_": 2'))
    ran = transcode(tmp_path / "src", tmp_path / "made", "--fps", 10)
    assert ran.code == 2 and "--fps took the frame on screen (rule 1) and now takes the nearest one" in ran.err
    assert transcode(tmp_path / "made", verb="validate").code == 0
    ran = transcode(tmp_path / "src", tmp_path / "made", verb="validate")
    assert ran.code != 0 and "chose other frames for --fps" in ran.err
    ran = transcode(tmp_path / "src", tmp_path / "made", "--fps", 15)
    assert ran.code == 2 and "--fps 10 -> 15" in ran.err
