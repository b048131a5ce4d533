"""What a column can hold, at its very ends."""

from __future__ import annotations

import pyarrow as pa
import pytest

from vidprep.formats.manifest.row import COLUMNS, ManifestRow, check_row, row_from_dict, row_of_line, unfit_value

INTS = {"int16": 15, "int32": 31, "int64": 63}


def row_with(column: str, value: object) -> ManifestRow:
    row = ManifestRow(id="a", file_name="a.mp4", source="/a")
    setattr(row, column, value)
    return row


def fits(column: str, value: object) -> bool:
    said = unfit_value(row_with(column, value))
    assert said is None or said.startswith(f"{column} is ")
    return said is None


def bounds(column: str, kind: str) -> tuple[int, int]:
    """Times may lie before 1970 and before the first frame shown, and pictures be turned either way; all else is counted."""
    low = 1 if column.endswith(("_num", "_den")) else 0
    signed = column in ("source_mtime_ns", "source_rotation", "pts", "source_pts")
    last = {"frame_crc32": 2**32, "offset": 2**60 + 1, "stored_bytes": 2**60 + 1}
    high = last.get(column, 2 ** INTS[kind])
    return -high if signed else low, high


@pytest.mark.parametrize("column", [name for name, kind in COLUMNS.items() if kind in INTS])
def test_whole_numbers_fit_up_to_their_bounds(column: str) -> None:
    low, end = bounds(column, COLUMNS[column])
    for value, is_held in ((low, True), (low - 1, False), (end - 1, True), (end, False), (1, True), (True, False)):
        assert fits(column, value) == is_held, value


@pytest.mark.parametrize("column", [name for name, kind in COLUMNS.items() if kind.startswith("list<")])
def test_lists_fit_where_each_of_their_values_does(column: str) -> None:
    kind = COLUMNS[column].removeprefix("list<").removesuffix(">")
    if kind in INTS:
        low, high = bounds(column, kind)
        for values in ([], [low], [low, high - 1], [0, 1]):
            assert fits(column, values), values
            assert pa.array([values], pa.list_(getattr(pa, kind)())).to_pylist() == [values]
        for values in ([low - 1], [high], [0, high], [0.5], [0, None], ["0"]):
            assert not fits(column, values), values


def test_a_place_in_a_shard_is_whole_or_none() -> None:
    due = {
        "status": "ok",
        "num_frames": 2,
        "offset": 0,
        "stored_bytes": 9,
        "frame_sizes": [4, 5],
        "frame_crc32": [1, 2],
    }
    row = {"id": "a", "file_name": "a.bin", "source": "/a"} | due
    assert row_from_dict(row).ok
    for name, value in {"stored_bytes": None, "frame_sizes": [9], "frame_crc32": None, "num_frames": 3}.items():
        with pytest.raises(ValueError, match=r"stored_bytes|frame_"):
            row_from_dict(row | {name: value})


def test_doubles_take_whole_numbers_that_they_hold_exactly() -> None:
    for value in (2**53, -(2**53), 0.1, float("inf")):
        assert fits("psnr_y_db", value)
        assert pa.array([value], pa.float64()).to_pylist() == [value]
    assert not fits("psnr_y_db", 2**53 + 1)
    with pytest.raises(pa.ArrowInvalid):
        pa.array([2**53 + 1], pa.float64())


def test_a_row_names_its_source() -> None:
    row = ManifestRow(id="a", file_name="a.mp4", source="/a")
    assert (row.attempts, row.status) == (1, "failed")
    assert row_from_dict({"id": "a", "file_name": "a.mp4", "source": "/a", "target_tried": [18, 20]}).target_tried == [
        18.0,
        20.0,
    ]
    named = ManifestRow(id="ä", file_name="ä.mp4", source="/ä", target_reached_db=[float("inf"), 40.5])
    assert '"id": "ä"' in named.as_json()
    assert '"target_reached_db": ["inf", 40.5]' in named.as_json()
    assert row_of_line(named.as_journal_line().encode()) == named
    with pytest.raises(ValueError, match=r"'?\.\./a'?"):
        row_from_dict({"id": "a", "file_name": "../a", "source": "/a"})


def test_values_that_fit_survive_in_a_row_that_does_not_fit() -> None:
    odd = row_with("width", 2**40)
    kept = check_row(odd)
    assert (kept.status, kept.stage, kept.source) == ("failed", "manifest", odd.source)
