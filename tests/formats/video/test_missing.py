"""Packets that are missing from a regular stream are counted, with the numbers of the frames behind them."""

from __future__ import annotations

import random
from collections.abc import Collection
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import av
import pyarrow as pa
import pytest

from tests.numbered_pictures import constant, write
from vidprep.formats.video.source import Source
from vidprep.transcode import burst

GOP = {"g": "15", "bf": "0"}
CONTAINERS = (".mp4", ".mkv", ".flv", ".ts")


def without(path: Path, numbers: Collection[int]) -> Path:
    """A copy that lacks the packets of these numbers; the others keep their times."""
    made = path.with_stem(f"{path.stem}_without")
    with av.open(str(path)) as source, av.open(str(made), "w") as target:
        stream = source.streams.video[0]
        out: Any = target.add_stream_from_template(stream, opaque=True)
        for number, packet in enumerate(packet for packet in source.demux(stream) if packet.size):
            if number not in numbers:
                packet.stream = out
                target.mux(packet)
    return made


def read(path: Path) -> tuple[list[str], str | None]:
    """What is damaged, and what is missing besides."""
    with Source(path, max_pixels=10**6) as source:
        for _ in source.decode(source.packets()):
            pass
        return source.damage(read_to_end=True), source.missing_frames(read_to_end=True)


@pytest.mark.parametrize("suffix", CONTAINERS)
def test_a_lost_reference_of_h264_is_damage_up_to_the_next_keyframe(suffix: str, tmp_path: Path) -> None:
    """Frames 20 to 23 showed 19, 18 and 19 again, and nothing said so."""
    path = write(tmp_path / f"a{suffix}", constant(60, 25), rate=Fraction(25), codec="libx264", **GOP)
    damage, missing = read(without(path, [20]))
    assert "1 packet missing before frame 20 (frames 20 to 28 are wrong)" in damage and missing is None
    damage, _ = read(without(path, [20, 33]))
    assert any("2 packets missing before frame 20" in line and "before frame 32" in line for line in damage)
    assert read(path) == ([], None)


@pytest.mark.parametrize("name", ["mjpeg.mov", "mjpeg.mkv", "ffv1.mkv", "libvpx-vp9.webm", "mpeg4.mp4"])
def test_a_lost_packet_of_a_codec_that_does_not_count_is_named(name: str, tmp_path: Path) -> None:
    codec, _, suffix = name.partition(".")
    path = write(
        tmp_path / f"a.{suffix}",
        constant(60, 30),
        codec=codec,
        tick=Fraction(1, 30) if codec == "mpeg4" else None,
        g="15",
    )
    _, missing = read(without(path, [20]))
    wrong = " (frames 20 to 28 may be wrong)" if codec in ("libvpx-vp9", "mpeg4") else ""
    assert missing == f"1 packet missing before frame 20{wrong}" or (codec == "ffv1" and "may be wrong" in str(missing))
    assert read(path)[1] is None


def test_a_lost_frame_that_no_other_refers_to_is_missing_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", constant(60, 25), rate=Fraction(25), bf="2", g="60", b_adapt="0")
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    number = next(n for n, packet in enumerate(packets) if n > 20 and bytes(packet)[4] & 0x60 == 0)
    place = sorted(packet.pts for packet in packets).index(packets[number].pts)
    assert read(without(path, [number])) == ([], f"1 packet missing before frame {place}")


@pytest.mark.parametrize("seed", range(4))
def test_frames_that_a_camera_left_out_are_no_loss(seed: int, tmp_path: Path) -> None:
    """Its rate varies as such: many steps are longer, or none is equal to another to the tick."""
    rng = random.Random(seed)
    kept = [Fraction(n, 30) for n in range(120) if rng.random() < 0.8]
    uneven = [Fraction(n, 30) + Fraction(rng.randint(0, 900), 90_000) for n in range(120) if n % 40 != 39]
    for name, times in (("kept", kept), ("uneven", uneven)):
        path = write(tmp_path / f"{name}.mp4", [time - times[0] for time in times])
        assert read(path) == ([], None)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_cut_of_an_intact_video_misses_nothing(suffix: str, tmp_path: Path) -> None:
    """Frames that are shown between the last ones that were read were taken for missing ones."""
    path = write(tmp_path / f"a{suffix}", constant(60, 25), rate=Fraction(25), bf="3", g="60", b_adapt="0")
    broken = without(path, [20])
    for count in range(1, 60):
        for video, is_intact in ((path, True), (broken, False)):
            with Source(video, max_pixels=10**6) as source:
                for _ in islice(source.decode(source.packets()), count):
                    pass
                damage, missing = source.damage(read_to_end=False), source.missing_frames(read_to_end=False)
            if is_intact:
                assert (damage, missing) == ([], None), count
            elif count > 40:
                assert damage or missing, count


def test_a_row_of_a_cut_has_no_warning_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", constant(60, 25), rate=Fraction(25), bf="3", g="60", b_adapt="0")
    cuts = pa.table(
        {
            "path": [str(path)] * 50,
            "id": [str(n) for n in range(50)],
            "start_frame": [n // 2 for n in range(50)],
            "end_frame": [n // 2 + 3 + n % 9 for n in range(50)],
        }
    )
    made = burst(cuts, tmp_path / "made")
    assert made.ok == 50 and "frame_missing" not in made.warnings and "damaged" not in made.warnings
