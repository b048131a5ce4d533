"""Seconds become the frames that were meant. Every picture shows its number, so what came out is certain."""

from __future__ import annotations

import csv
import random
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import av
import imageio_ffmpeg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import manifest, transcode
from tests.numbered_pictures import constant, number_on, numbers_in, write
from tests.sampling import in_turn
from tests.time_rules import at_rate, in_cut, lead_of, on_screen, tolerance_of
from tests.witness import Ffmpeg
from vidprep.formats import VideoDataset, open_store

FAST = ("--preset", "ultrafast")
NTSC, FILM = Fraction(30000, 1001), Fraction(24000, 1001)


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def made(source: Path, destination: Path, *options: object, verb: str = "transcode") -> dict[str, list[int | None]]:
    ran = transcode(source, destination, *(FAST if verb == "transcode" else ()), *options, "--json", verb=verb)
    assert ran.code == 0, ran.err + ran.out
    return numbers_in(destination)


# ------------------------------------------------------------------------------------------------ ways to write k / fps

WAYS = ("quotient", "sum", "float32", "microseconds", "milliseconds", "hh:mm:ss", "frames")


def written(way: str, edges: list[int], rate: Fraction, folder: Path, source: Path) -> Path:
    """A table of the cuts between these frames. Their times are written as people's programs write them."""
    ids = [f"e{number:03d}" for number in range(len(edges) - 1)]
    spans = list(zip(edges, edges[1:], strict=False))
    step = float(1 / rate)
    if way == "frames":
        rows = [
            {"path": source, "id": i, "start_frame": a, "end_frame": b} for i, (a, b) in zip(ids, spans, strict=True)
        ]
        return table(folder / "t.csv", rows)
    if way == "sum":
        times = [
            float(edges[0] / rate),
            *accumulate([(b - a) * step for a, b in spans], initial=float(edges[0] / rate)),
        ][1:]
    else:
        times = [edge / float(rate) for edge in edges]
    if way == "float32":
        columns = {"path": [str(source)] * len(ids), "id": ids}
        columns |= {"start": pa.array(np.float32(times[:-1])), "end": pa.array(np.float32(times[1:]))}
        pq.write_table(pa.table(columns), folder / "t.parquet")
        return folder / "t.parquet"
    form = {
        "microseconds": "{:.6f}".format,
        "milliseconds": "{:.3f}".format,
        "hh:mm:ss": lambda t: (
            f"{int(t // 3600):02d}:{int(t // 60) % 60:02d}:{round(t * 1000) // 1000 % 60:02d}.{round(t * 1000) % 1000:03d}"
        ),
    }.get(way, repr)
    rows = [
        {"path": source, "id": i, "start": form(a), "end": form(b)}
        for i, a, b in zip(ids, times, times[1:], strict=False)
    ]
    return table(folder / "t.csv", rows)


def cases(seed: int, folder: Path) -> list[str]:
    """One drawn source, cut in every way that WAYS knows, made in a drawn way. Returns what came out wrong."""
    rng = random.Random(seed)
    suffix = rng.choice((".mp4", ".mkv", ".webm", ".avi", ".ts"))
    rate = rng.choice([Fraction(rng.randint(10, 60)), Fraction(rng.randint(10, 60)), NTSC, FILM])
    spread = 0 if suffix == ".avi" else rng.choice((0, 0, 33, 2000))
    source = write(
        folder / f"source{suffix}",
        [Fraction(0), *constant(90, rate, lambda: Fraction(rng.randint(0, spread), 10**6))[1:]],
        rate=rate,
    )
    edges = [rng.randint(0, 8)]
    while edges[-1] < 80:
        edges.append(min(90, edges[-1] + rng.randint(5, 25)))
    way = rng.choice(("own", "same", "half", "third", "double"))
    step = {"own": 1, "same": 1, "half": 2, "third": 3, "double": Fraction(1, 2)}[way]
    options: list[object] = [] if way == "own" else ["--fps", rate / step]
    verb = "burst" if rng.random() < 0.4 else "transcode"
    if verb == "transcode" and rng.random() < 0.25:
        options += [
            "--engine",
            "ffmpeg",
            "--ffmpeg",
            imageio_ffmpeg.get_ffmpeg_exe(),
        ]  # 5.1 does not know when a TS ends
    wrong = []
    for form in WAYS:
        found = made(written(form, edges, rate, folder, source), folder / f"made-{form[:2]}", *options, verb=verb)
        for number, (a, b) in enumerate(zip(edges, edges[1:], strict=False)):
            due = list(range(a, b, int(step))) if step >= 1 else [n for n in range(a, b) for _ in "ab"]
            if found.get(f"e{number:03d}") != due:
                told = found.get(f"e{number:03d}")
                wrong.append(f"{seed} {suffix} {rate} jitter {spread} {verb} {options} {form} [{a}, {b}): {told}")
    return wrong


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_cuts_hold_the_frames_that_were_meant_however_their_times_are_written(seed: int, tmp_path: Path) -> None:
    assert cases(seed, tmp_path) == []


@pytest.mark.slow
def test_two_thousand_cuts_hold_the_frames_that_were_meant(tmp_path: Path) -> None:
    wrong, seed, tried = [], 0, 0
    while tried < 2000:
        folder = tmp_path / str(seed)
        wrong += cases(seed, folder)
        tried += sum(len(manifest(each)) for each in folder.glob("made-*"))
        seed += 1
    print(f"{tried} cuts of {seed} sources, {len(wrong)} wrong")
    assert wrong == []


def test_the_cut_of_the_report_ends_before_the_frame_that_it_names(tmp_path: Path) -> None:
    """35 / 30 as Python writes it was taken for a time behind frame 35, and each such cut was off by one frame."""
    source = write(tmp_path / "a.mp4", constant(60, 30))
    rows = [
        {"path": source, "id": "a", "start": "0.4", "end": "1.1666666666666667"},
        {"path": source, "id": "b", "start": "1.1666666666666667", "end": "1.9"},
    ]
    found = made(table(tmp_path / "t.csv", rows), tmp_path / "made")
    assert found == {"a": list(range(12, 35)), "b": list(range(35, 57))}
    ran = transcode(tmp_path / "t.csv", tmp_path / "made", verb="validate")
    assert ran.code == 0, ran.out


# ------------------------------------------------------------------------------------------------ a constant rate


@pytest.mark.parametrize("verb", ["transcode", "burst"])
@pytest.mark.parametrize(("name", "jitter"), [("a.mp4", 0), ("a.mkv", 0), ("a.mp4", 33), ("a.mp4", 2000)])
def test_half_and_a_third_of_a_rate_are_even(name: str, jitter: int, verb: str, tmp_path: Path) -> None:
    """Every second time lay on a half, where rounding went either way: 0 2 5 6 8 11 12 14 from a Matroska file."""
    rng = random.Random(name)
    times = [Fraction(0), *constant(90, 30, lambda: Fraction(rng.randint(0, jitter), 10**6))[1:]]
    write(tmp_path / name, times)
    assert made(tmp_path / name, tmp_path / "half", "--fps", 15, verb=verb) == {"a": list(range(0, 90, 2))}
    assert made(tmp_path / name, tmp_path / "third", "--fps", 10, verb=verb) == {"a": list(range(0, 90, 3))}


@pytest.mark.parametrize(("rate", "asked"), [(30, 10), (50, 5), (30, 1)])
def test_a_picture_is_shown_at_its_own_time(rate: int, asked: int, tmp_path: Path) -> None:
    """It was late by up to half an output frame, so that sound and sensors looked up by its timestamp were early."""
    write(tmp_path / "a.mp4", constant(3 * rate, rate), rate=Fraction(rate))
    assert made(tmp_path / "a.mp4", tmp_path / "made", "--fps", asked) == {"a": list(range(0, 3 * rate, rate // asked))}
    video = open_store(tmp_path / "made")["a"]
    assert np.allclose(video.source_timestamps, video.timestamps, atol=1e-6)
    assert video.source_frames.tolist() == list(range(0, 3 * rate, rate // asked))
    item = VideoDataset(tmp_path / "made", sequence_length=2)[0]
    assert item["source_frames"].tolist() == [0, rate // asked]
    assert item["source_timestamps"] == pytest.approx([0, 1 / asked])


@pytest.mark.parametrize("kind", ["burst", "gulp", "webdataset", "tensor", "packed"])
def test_every_store_knows_the_times_of_the_source(kind: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.mp4", constant(60, 30))
    rows = [{"path": source, "id": "a", "start": 0.4, "end": 1.4}]
    store = "burst" if kind == "packed" else kind
    made(table(tmp_path / "t.csv", rows), tmp_path / "made", "--fps", 10, "--format", store, verb="burst")
    if kind == "packed":
        assert transcode(tmp_path / "made", tmp_path / "packed", "--to", "webdataset", verb="pack").code == 0
        table(tmp_path / "labels.csv", [{"id": "a", "start": 0.7, "end": 1.0}])
        again = (tmp_path / "packed", tmp_path / "again", "--to", "gulp", "--labels", tmp_path / "labels.csv")
        assert transcode(*again, verb="pack").code == 0
        (row,) = csv.DictReader((tmp_path / "again" / "labels.csv").read_text().splitlines())
        assert (row["first_frame"], row["end_frame"]) == ("3", "6")
    video = open_store(tmp_path / ("packed" if kind == "packed" else "made"))["a"]
    assert video.source_frames.tolist() == list(range(12, 42, 3))
    assert np.allclose(video.source_timestamps, [n / 30 for n in range(12, 42, 3)], atol=1e-4)


# ------------------------------------------------------------------------------------------------ held pictures

HELD = [Fraction(n) for n in (0, 1, 8, 15, 25)]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_held_pictures_are_shown_for_as_long_as_they_are_on_screen(suffix: str, engine: str, tmp_path: Path) -> None:
    """Of a screen recording: [10, 20) showed only the picture from 15 s, and [10, 14) failed with "holds no frame"."""
    source = write(tmp_path / f"a{suffix}", HELD, last=Fraction(5))
    spans = {"all": (0, 10), "middle": (10, 20), "one": (10, 14), "end": (20, 30), "early": (2, 5)}
    rows = [{"path": source, "id": name, "start": a, "end": b} for name, (a, b) in spans.items()]
    chosen = table(tmp_path / "t.csv", rows)
    found = made(chosen, tmp_path / "clock", "--fps", 1, "--engine", engine)
    assert found == {
        "all": [0, 1, 1, 1, 1, 1, 1, 1, 2, 2],
        "middle": [2] * 5 + [3] * 5,
        "one": [2] * 4,
        "end": [3] * 5 + [4] * 5,
        "early": [1] * 3,
    }
    found = made(chosen, tmp_path / "own", "--engine", engine)
    assert found == {"all": [0, 1, 2], "middle": [2, 3], "one": [2], "end": [3, 4], "early": [1]}
    for name, (a, b) in spans.items():
        row = manifest(tmp_path / "own")[name]
        assert row["duration_seconds"] == pytest.approx(b - a), name
        assert "cut_short" not in row["warning_codes"]
    assert open_store(tmp_path / "own")["middle"].timestamps.tolist() == [0.0, 5.0]


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
def test_a_cut_within_one_frame_shows_that_frame(suffix: str, tmp_path: Path) -> None:
    """It failed with "holds no frame" in files whose packets are counted, and was the frame before in others."""
    source = write(tmp_path / f"a{suffix}", constant(50, 25), rate=Fraction(25))
    spans = {
        "inside": (1.012, 1.03),
        "begins": (1.0, 1.008),
        "first": (0, 0.005),
        "second": (0.042, 0.05),
        "late": (1.015, 1.035),
    }
    due = {"inside": [25], "begins": [25], "first": [0], "second": [1], "late": [25]}
    rows = [{"path": source, "id": name, "start": a, "end": b} for name, (a, b) in spans.items()]
    for engine in ("av", "ffmpeg"):
        assert made(table(tmp_path / "t.csv", rows), tmp_path / engine, "--engine", engine) == due
        assert transcode(tmp_path / "t.csv", tmp_path / engine, verb="validate").code == 0
    assert made(tmp_path / "t.csv", tmp_path / "clock", "--fps", "50") == due


def random_cuts(seed: int, tmp_path: Path) -> None:
    """Cuts anywhere, in every container: both rules, by the oracle of tests/time_rules.py, and alike in both engines."""
    rng = random.Random(seed)
    suffix, rate = (
        rng.choice((".mp4", ".mkv", ".webm", ".ts", ".avi")),
        rng.choice((Fraction(25), Fraction(30), NTSC, Fraction(10))),
    )
    source = write(tmp_path / f"a{suffix}", constant(60, rate), rate=rate)
    with av.open(str(source)) as container:
        stream: Any = container.streams.video[0]
        base = Fraction(stream.time_base.numerator, stream.time_base.denominator)
        key = "dts" if suffix == ".avi" else "pts"
        ticks = sorted(getattr(packet, key) for packet in container.demux(stream) if packet.size)
    times = [(tick - ticks[0]) * base for tick in ticks]
    near, last = tolerance_of(times, base, rate), times[-1] + 1 / rate
    spans = []
    for _ in range(12):
        start = round(rng.uniform(0, float(times[-1]) * 0.6), 3)
        # Until the last picture: of a transport stream ffmpeg's fps filter does not know how long that is shown.
        length = rng.choice((0.013, 0.1, 0.33, rng.uniform(0.02, 1)))
        spans.append((start, round(min(start + length, float(times[-1])), 3)))
    rows = [{"path": source, "id": f"c{n:02d}", "start": a, "end": b} for n, (a, b) in enumerate(spans)]
    asked = rng.choice((None, rate, rate / 2, rate * 2, Fraction(120), Fraction(7)))
    due = {}
    for number, (a, b) in enumerate((Fraction(str(a)), Fraction(str(b))) for a, b in spans):
        if asked is not None:
            due[f"c{number:02d}"] = at_rate(times, last, asked, near, lead_of(times, asked, rate), a, b)
            continue
        inside = in_cut(times, a, b, near)
        shown = on_screen(times, a, near)
        is_held = not inside or times[inside[0]] - a > 1 / rate
        due[f"c{number:02d}"] = [shown, *inside] if is_held and shown not in inside else inside
    for engine in ("av", "ffmpeg"):
        options = ("--engine", engine, *(("--fps", asked) if asked else ()))
        found = made(table(tmp_path / "t.csv", rows), tmp_path / engine, *options)
        assert found == due, (seed, suffix, rate, asked, engine, spans)


@pytest.mark.long
@pytest.mark.parametrize("seed", in_turn(range(40), 8))
def test_cuts_anywhere_follow_the_rules_in_both_engines(seed: int, tmp_path: Path) -> None:
    random_cuts(seed, tmp_path)


# ------------------------------------------------------------------------------------------------ labels


def test_labels_in_seconds_and_in_frames_are_the_same_output_frames(tmp_path: Path) -> None:
    """32 of 39 rows were one frame off, and spans in seconds and in frames differed."""
    source = write(tmp_path / "a.mp4", constant(90, 30))
    rows = [{"path": source, "id": "cut", "start": repr(7 / 30), "end": repr(80 / 30)}]
    for options in ((), ("--fps", "10"), ("--fps", "60")):
        name = "-".join(options) or "own"
        made(table(tmp_path / "t.csv", rows), tmp_path / name, *options)
        spans = [(a, a + length) for a, length in zip(range(7, 75, 4), [3, 7, 12] * 6, strict=False)]
        for form, first, last in (("frames", "start_frame", "end_frame"), ("seconds", "start", "end")):
            kind = (lambda n: n) if form == "frames" else (lambda n: f"{n / 30:.3f}")
            labels = [{"id": "cut", first: kind(a), last: kind(b), "what": f"{a} {b}"} for a, b in spans]
            table(tmp_path / f"{form}.csv", labels)
            packed = tmp_path / f"{name}-{form}"
            ran = transcode(
                tmp_path / name, packed, "--to", "frames", "--labels", tmp_path / f"{form}.csv", verb="pack"
            )
            assert ran.code == 0, ran.err
        found = [(tmp_path / f"{name}-{form}" / "labels.csv").read_text() for form in ("frames", "seconds")]
        assert found[0] == found[1]
        shown = open_store(tmp_path / name)["cut"].source_frames.tolist()
        for row in csv.DictReader(found[0].splitlines()):
            a, b = map(int, row["what"].split())
            inside = [n for n, frame in enumerate(shown) if a <= frame < b]
            assert (int(row["first_frame"]), int(row["end_frame"])) == (inside[0], inside[-1] + 1), row


@pytest.mark.parametrize("form", ["{!r}", "{:.3f}", "{:.6f}"])
def test_a_cut_is_found_again_by_times_that_mean_the_same_frames(form: str, tmp_path: Path) -> None:
    """`vidprep label` wanted the identical float, and said of others that they are no videos, which was untrue."""
    source = write(tmp_path / "a.mp4", constant(60, 30))
    spans = [(12, 35), (35, 57)]
    rows = [{"path": source, "start": repr(a / 30), "end": repr(b / 30)} for a, b in spans]
    made(table(tmp_path / "t.csv", rows), tmp_path / "made")
    again = [
        {"path": source, "start": form.format(a / 30), "end": form.format(b / 30), "what": f"{a}"} for a, b in spans
    ]
    ran = transcode(tmp_path / "made", table(tmp_path / "again.csv", again), verb="label")
    assert ran.code == 0, ran.err
    store = open_store(tmp_path / "made")
    assert [store.labels(id_)["what"] for id_ in store.ids] == [12, 35]
    other = [{"path": source, "start": 0.5, "end": 0.7, "what": "x"}]
    assert (
        "0.5 s to 0.7 s, is not a video of"
        in transcode(tmp_path / "made", table(tmp_path / "b.csv", other), verb="label").err
    )


# ------------------------------------------------------------------------------------------------ where the picture begins


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
@pytest.mark.parametrize("rate", [None, 10])
def test_a_cut_can_count_from_the_container(rate: int | None, engine: str, cli: Ffmpeg, tmp_path: Path) -> None:
    """Where sound begins 1.5 s before the picture, the cut was 1.5 s off the clock that a player shows, and nothing said so."""
    silent = write(tmp_path / "silent.mp4", constant(90, 30))
    source = tmp_path / "a.mkv"
    sound = ("-f", "lavfi", "-i", "sine=d=5")
    cli.run(*sound, "-itsoffset", 1.5, "-i", silent, "-map", "0", "-map", "1", "-c:v", "copy", "-c:a", "flac", source)
    rows = [{"path": source, "id": "a", "start": 2, "end": 3}]
    options = ("--engine", engine, *(("--fps", rate) if rate else ()))
    found = made(table(tmp_path / "t.csv", rows), tmp_path / "picture", *options)
    step = 3 if rate else 1
    assert found == {"a": list(range(60, 90, step))}
    row = manifest(tmp_path / "picture")["a"]
    assert "picture_late" in row["warning_codes"] and any("1.500 s after" in text for text in row["warnings"])
    found = made(tmp_path / "t.csv", tmp_path / "container", *options, "--cut-origin", "container")
    assert found == {"a": list(range(15, 45, step))}
    assert "picture_late" not in manifest(tmp_path / "container")["a"]["warning_codes"]


def test_the_last_picture_of_a_cut_is_shown_until_its_end(tmp_path: Path) -> None:
    source = write(tmp_path / "a.mp4", [Fraction(n) for n in range(10)], last=Fraction(1), rate=Fraction(1))
    rows = [{"path": source, "id": "a", "start": 2, "end": "5.5"}]
    for engine in ("av", "ffmpeg"):
        assert made(table(tmp_path / "t.csv", rows), tmp_path / engine, "--engine", engine) == {"a": [2, 3, 4, 5]}
        assert manifest(tmp_path / engine)["a"]["duration_seconds"] == 3.5
        with av.open(str(tmp_path / engine / "a.mp4")) as container:
            stream: Any = container.streams.video[0]
            assert stream.duration * stream.time_base == Fraction(7, 2)


def test_a_cut_in_frames_ends_with_its_sound(cli: Ffmpeg, tmp_path: Path) -> None:
    silent = write(tmp_path / "silent.mp4", constant(90, 30))
    cli.run("-i", silent, "-f", "lavfi", "-i", "sine=d=3", "-c:v", "copy", "-c:a", "aac", tmp_path / "a.mp4")
    rows = [{"path": tmp_path / "a.mp4", "id": "a", "start_frame": 15, "end_frame": 45}]
    for mode in ("copy", "aac"):
        found = made(table(tmp_path / "t.csv", rows), tmp_path / mode, "--audio", mode)
        assert found == {"a": list(range(15, 45))}
        video = open_store(tmp_path / mode)["a"]
        heard = np.flatnonzero(np.abs(video.samples(0, 3)[0]) > 1e-3)
        assert 0.95 < heard[-1] / (video.sample_rate or 1) < 1.1


def test_numbers_on_pictures_are_read_as_they_were_drawn() -> None:
    from tests.numbered_pictures import picture

    assert [number_on(picture(n)) for n in range(4096)] == list(range(4096))
