"""What a column can hold, at its very ends."""

from __future__ import annotations

import pyarrow as pa
import pytest

from vidprep.formats.manifest.row import COLUMNS, ManifestRow, checked, row_from_dict, row_of_line, what_does_not_fit

INTS = {"int16": 15, "int32": 31, "int64": 63}
UNSIGNED = {"uint32": 32}


def row_with(column: str, value: object) -> ManifestRow:
    row = ManifestRow(id="a", file_name="a.mp4", source="/a")
    setattr(row, column, value)
    return row


def fits(column: str, value: object) -> bool:
    said = what_does_not_fit(row_with(column, value))
    assert said is None or said.startswith(f"{column} is ")
    return said is None


@pytest.mark.parametrize("column", [name for name, kind in COLUMNS.items() if kind in INTS])
def test_whole_numbers_fit_up_to_the_ends_of_their_type(column: str) -> None:
    end = 2 ** INTS[COLUMNS[column]]
    for value, is_held in ((-end, True), (-end - 1, False), (end - 1, True), (end, False), (0, True), (True, False)):
        assert fits(column, value) == is_held, value


@pytest.mark.parametrize("column", [name for name, kind in COLUMNS.items() if kind.startswith("list<")])
def test_lists_fit_where_each_of_their_values_does(column: str) -> None:
    kind = COLUMNS[column].removeprefix("list<").removesuffix(">")
    if kind in INTS | UNSIGNED:
        low, high = (0, 2 ** UNSIGNED[kind]) if kind in UNSIGNED else (-(2 ** INTS[kind]), 2 ** INTS[kind])
        for values in ([], [low], [low, high - 1], [0, 1]):
            assert fits(column, values), values
            assert pa.array([values], pa.list_(getattr(pa, kind)())).to_pylist() == [values]
        for values in ([low - 1], [high], [0, high], [0.5], [0, None], ["0"]):
            assert not fits(column, values), values


def test_doubles_take_whole_numbers_that_they_hold_exactly() -> None:
    for value in (2**53, -(2**53), 0.1, float("inf")):
        assert fits("psnr_y_db", value)
        assert pa.array([value], pa.float64()).to_pylist() == [value]
    assert not fits("psnr_y_db", 2**53 + 1)
    with pytest.raises(pa.ArrowInvalid):
        pa.array([2**53 + 1], pa.float64())


def test_a_row_says_what_it_was_made_of() -> None:
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


def test_what_fits_of_a_row_that_does_not_stays() -> None:
    odd = row_with("width", 2**40)
    kept = checked(odd)
    assert (kept.status, kept.stage, kept.source) == ("failed", "manifest", odd.source)
