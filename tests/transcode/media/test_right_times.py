"""Times that are right stay with their pictures, whatever the order of the file or of the decoder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from tests.helpers import manifest, transcode
from tests.numbered_pictures import numbers_in, write
from vidprep.formats import open_store

PIECE = 12


def pieces(folder: Path, order: Sequence[int], count: int = PIECE) -> Path:
    """Pieces of a transport stream, as HLS has them, behind each other in this order."""
    data = []
    for number in order:
        numbers = range(number * count, (number + 1) * count)
        times = [Fraction(each + 25, 25) for each in numbers]
        data.append(write(folder / f"piece{number}.ts", times, rate=Fraction(25), numbers=numbers, bf="0").read_bytes())
    (folder / "src").mkdir()
    (folder / "src" / "a.ts").write_bytes(b"".join(data))
    return folder / "src"


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (1, 0, 2), (0, 1, 3, 2)])
def test_pieces_in_the_wrong_order_are_shown_at_their_times(order: tuple[int, ...], tmp_path: Path) -> None:
    """24 pictures were half a second off: they had the times of each other."""
    assert transcode(pieces(tmp_path, order), tmp_path / "made").code == 0
    assert numbers_in(tmp_path / "made") == {"a": list(range(PIECE * len(order)))}
    row = manifest(tmp_path / "made")["a"]
    assert any("1 timestamp ran backwards; sorted with their pictures" in text for text in row["warnings"])
    times = open_store(tmp_path / "made")["a"].timestamps.tolist()
    assert times == pytest.approx([n / 25 for n in range(PIECE * len(order))], abs=1e-4)


def test_pieces_that_are_too_long_to_be_put_in_order_are_told_with_the_jump(tmp_path: Path) -> None:
    assert transcode(pieces(tmp_path, (0, 2, 1, 3), 40), tmp_path / "made").code == 0
    assert numbers_in(tmp_path / "made")["a"] == [*range(40), *range(80, 120), *range(40, 80), *range(120, 160)]
    (told,) = [text for text in manifest(tmp_path / "made")["a"]["warnings"] if "jumped" in text]
    assert "jumped back 1 time, by up to 3.16 s" in told


def test_pictures_that_a_decoder_returns_late_behind_a_loss_keep_their_times(tmp_path: Path) -> None:
    """Behind lost packets with keyframes the decoder gave picture 65 before 46, and it was shown 19 frames early."""
    times = [Fraction(n + 25, 25) for n in range(100)]
    data = write(
        tmp_path / "a.ts", times, rate=Fraction(25), bf="3", g="10", preset="veryfast", b_pyramid="none"
    ).read_bytes()
    packets = [data[at : at + 188] for at in range(0, len(data), 188)]
    video = [n for n, packet in enumerate(packets) if (packet[1] & 31) << 8 | packet[2] == 0x100]
    (tmp_path / "src").mkdir()
    for first in range(len(video) // 4, len(video) - 40, 9):
        lost = set(video[first : first + 16])
        rest = b"".join(packet for n, packet in enumerate(packets) if n not in lost)
        (tmp_path / "src" / f"{first:04d}.ts").write_bytes(rest)
    assert transcode(tmp_path / "src", tmp_path / "made").code == 0
    store, rows = open_store(tmp_path / "made"), manifest(tmp_path / "made")
    assert len(rows) > 3
    for id_, numbers in numbers_in(tmp_path / "made").items():
        off = [n - time * 25 for n, time in zip(numbers, store[id_].timestamps, strict=True) if n is not None]
        right = sum(abs(each - off[0]) < 0.1 for each in off)
        assert right > len(off) - 12, (id_, numbers)  # the pictures of a hurt GOP are wrong
        assert "damaged" in rows[id_]["warning_codes"]
        assert all(one < other for one, other in itertools.pairwise(store[id_].timestamps))


@pytest.mark.parametrize("suffix", [".flv", ".ts"])
def test_a_last_picture_behind_a_pause_is_not_shown_as_long_as_the_pause(suffix: str, tmp_path: Path) -> None:
    """Its duration is not stored, and the step before it was taken: 259 frames came out for 135."""
    times = [Fraction(n, 25) for n in range(10)] + [Fraction(134, 25)]
    write(tmp_path / "src" / f"a{suffix}", times, rate=Fraction(25), codec="libx264", bf="0")
    assert transcode(tmp_path / "src", tmp_path / "made", "--fps", 25).code == 0
    assert numbers_in(tmp_path / "made") == {"a": [*range(10), *[9] * 124, 10]}
    assert transcode(tmp_path / "src", tmp_path / "own").code == 0
    assert manifest(tmp_path / "own")["a"]["duration_seconds"] == pytest.approx(5.4, abs=0.01)
