"""Tables of sources: ids, cuts, labels, and rows that say nothing useful."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from tests.transcode.sources.trees import find_sources, ids, labels_of, names, touch
from tests.transcode.sources.written_tables import write_table
from vidprep.formats.errors import SourceError
from vidprep.formats.model import Cut

FORMATS = [".csv", ".parquet", ".jsonl"]


ROWS: list[dict[str, Any]] = [
    {"path": "a/x.mp4", "label": "run", "split": 1, "score": 0.5, "good": True},
    {"path": "y.mkv", "label": None, "split": 2, "score": None, "good": False},
]


@pytest.mark.parametrize("suffix", [*FORMATS, ".CSV"])
def test_a_table_gives_a_unit_per_row_with_its_labels(src: Path, dst: Path, suffix: str) -> None:
    touch(src / "a" / "x.mp4", 2)
    touch(src / "y.mkv")
    table = write_table(src / f"list{suffix}", ROWS)
    found = find_sources(table, dst)
    assert [(unit.id, unit.path) for unit in found.units] == [("a/x", f"{src}/a/x.mp4"), ("y", f"{src}/y.mkv")]
    assert labels_of(found) == [
        {"label": "run", "split": 1, "score": 0.5, "good": True},
        {"label": None, "split": 2, "score": None, "good": False},
    ]
    kinds = [type(value) for value in labels_of(found)[0].values()]
    assert kinds == [str, int, float, bool]


@pytest.mark.parametrize("suffix", FORMATS)
def test_cuts_of_one_film_are_named_by_their_milliseconds(src: Path, dst: Path, suffix: str) -> None:
    touch(src / "a" / "film.mp4")
    times = [(1.5, 2.0), (None, 3.25), (4.0, None), (None, None), (0.0, 1.0005), (1.0015, 36000.0)]
    rows = [{"path": "a/film.mp4", "start": start, "end": end} for start, end in times]
    found = find_sources(write_table(src / f"cuts{suffix}", rows), dst)
    assert {unit.id: (unit.cut.start_seconds, unit.cut.end_seconds) for unit in found.units} == {
        "a/film_00001500_00002000": (1.5, 2.0),
        "a/film_00000000_00003250": (None, 3.25),
        "a/film_00004000_end": (4.0, None),
        "a/film": (None, None),
        "a/film_00000000_00001001": (0.0, 1.0005),
        "a/film_00001002_36000000": (1.0015, 36000.0),
    }
    assert found.labels is None


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_id_names_the_output_and_a_row_without_one_falls_back(src: Path, dst: Path, suffix: str) -> None:
    touch(src / "x.mp4")
    rows: list[dict[str, Any]] = [
        {"path": "x.mp4", "id": "own/näme one", "start": 1.0, "end": 2.0},
        {"path": "x.mp4", "id": "007", "start": None, "end": None},
        {"path": "x.mp4", "id": None, "start": 1.0, "end": 2.0},
    ]
    assert ids(find_sources(write_table(src / f"t{suffix}", rows), dst)) == [
        "007",
        "own/näme one",
        "x_00001000_00002000",
    ]


def test_whole_numbers_are_good_ids(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    for suffix in FORMATS:
        assert ids(find_sources(write_table(src / f"t{suffix}", [{"path": "x.mp4", "id": 12}]), dst)) == ["12"]


def test_relative_paths_start_at_the_table_and_others_give_their_base_name(
    src: Path, dst: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    touch(src / "a" / "x.mp4")
    other = touch(tmp_path / "other" / "y.mp4")
    rows: list[dict[str, Any]] = [
        {"path": "./a/../a/x.mp4"},
        {"path": "../other/y.mp4", "start": 1},
        {"path": str(other)},
        {"path": f"{src}/a/x.mp4", "end": 2},
    ]
    found = find_sources(write_table(src / "t.csv", rows), dst)
    assert {unit.id: unit.path for unit in found.units} == {
        "a/x": f"{src}/a/x.mp4",
        "y_00001000_end": str(other),
        "y": str(other),
        "a/x_00000000_00002000": f"{src}/a/x.mp4",
    }


def test_any_extension_may_stand_in_a_table_and_suffixes_can_be_kept(src: Path, dst: Path) -> None:
    touch(src / "x.dat")
    touch(src / "x.bin")
    table = write_table(src / "t.csv", [{"path": "x.dat"}, {"path": "x.bin", "start": 1}])
    assert ids(find_sources(table, dst)) == ["x", "x_00001000_end"]
    assert ids(find_sources(table, dst, keep_source_suffix=True)) == ["x.bin_00001000_end", "x.dat"]


def test_globs_choose_rows_of_a_table(src: Path, dst: Path) -> None:
    for name in ("a/x.mp4", "b/y.mp4", "b/z.mkv"):
        touch(src / name)
    table = write_table(src / "t.csv", [{"path": name} for name in ("a/x.mp4", "b/y.mp4", "b/z.mkv")])
    found = find_sources(table, dst, include=["*.mp4"], exclude=["a/*"])
    assert ids(found) == ["b/y"]
    assert names(found.ignored) == {"x.mp4": "t.csv row 1: excluded", "z.mkv": "t.csv row 3: not included"}


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_that_name_no_readable_file_are_problems_not_the_end(src: Path, dst: Path, suffix: str) -> None:
    touch(src / "x.mp4")
    os.mkfifo(src / "fifo.mp4")
    (src / "link.mp4").symlink_to("nowhere")
    rows: list[dict[str, Any]] = [
        {"path": name} for name in ("x.mp4", "gone.mp4", "fifo.mp4", ".", "link.mp4", "x.mp4/y.mp4")
    ]
    found = find_sources(write_table(src / f"t{suffix}", rows), dst)
    assert ids(found) == ["x"]
    assert dict(found.problems) == {
        f"{src}/gone.mp4": f"t{suffix} row 2: no such file or folder",
        f"{src}/fifo.mp4": f"t{suffix} row 3: not a regular file: a FIFO",
        f"{src}": f"t{suffix} row 4: a folder; --source-fps R takes a folder of numbered pictures as a video",
        f"{src}/link.mp4": f"t{suffix} row 5: broken link: no such file or folder",
        f"{src}/x.mp4/y.mp4": f"t{suffix} row 6: no such file or folder",
    }


def test_a_table_of_missing_files_only_is_a_list_of_problems(src: Path, dst: Path) -> None:
    found = find_sources(write_table(src / "t.csv", [{"path": "gone.mp4"}]), dst)
    assert (found.units, len(found.problems)) == ((), 1)


BAD_CELLS: list[tuple[dict[str, Any], str]] = [
    ({"start": 2.0, "end": 2.0}, r"start 2\.0 is not before end 2\.0"),
    ({"start": 3.0, "end": 2.0}, r"start 3\.0 is not before end 2\.0"),
    ({"end": 0.0}, r"start 0\.0 is not before end 0\.0"),
    ({"start": -1.0}, "start is .*-1"),
    ({"end": -1.0}, "end is .*-1"),
    ({"end": float("inf")}, "end is .*inf"),
    ({"start": "00:61:30"}, "start is '00:61:30'; give seconds"),
    ({"start_frame": 1.5}, "start_frame is .*1.5.*; give the number of a frame"),
    ({"start_frame": 5, "end_frame": 5}, "start_frame 5 is not before end_frame 5"),
    ({"start": 1, "start_frame": 5}, "gives `start`.* and `start_frame`"),
    ({"start": "1_000"}, "start is '1_000'"),
    ({"id": "/abs"}, "id '/abs' is not a plain relative name"),
    ({"id": "../up"}, r"id '\.\./up' is not a plain"),
    ({"id": "a/../../up"}, "is not a plain"),
    ({"id": "a/./b"}, "is not a plain"),
    ({"id": "a//b"}, "is not a plain"),
    ({"id": "a/"}, "is not a plain"),
    ({"id": " "}, "is not a plain"),
    ({"id": "a\\b"}, "has a backslash"),
    ({"id": "a\nb"}, "has a backslash, a control"),
    ({"id": "a\x7fb"}, "has a backslash, a control"),
    ({"id": ".vidprep/x"}, "reserved for vidprep"),
    ({"path": ""}, "path is "),
]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(("cells", "message"), BAD_CELLS)
def test_a_malformed_row_stops_with_table_row_and_value(
    src: Path, dst: Path, suffix: str, cells: dict[str, Any], message: str
) -> None:
    touch(src / "x.mp4")
    good = {**dict.fromkeys(cells), "path": "x.mp4"}
    table = write_table(src / f"t{suffix}", [good, {"path": "x.mp4", **cells}])
    with pytest.raises(SourceError, match=f"row 2: .*{message}") as error:
        find_sources(table, dst)
    assert error.value.path == str(table)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"id": ""}, "id '' is not a plain"),
        ({"id": True}, "id True"),
        ({"id": "a\0b"}, "has a backslash, a control"),
        ({"id": "\ud800"}, "not Unicode"),
        ({"start": True}, "start is True"),
        ({"start": [1]}, r"start is \[1\]"),
        ({"start": 10**400}, "start is 10"),
        ({"path": 7}, "path is 7"),
        ({"path": None}, "path is empty"),
        ({"path": "a\0b"}, "path is 'a.x00b'"),
        ({"path": "\ud800.mp4"}, "can't encode"),
        ({"label": "\udcff"}, "label is '.udcff'"),
        ({"label": 2**63}, "label is 9223372036854775808"),
    ],
)
def test_json_values_that_mean_nothing_are_refused(src: Path, dst: Path, cells: dict[str, Any], message: str) -> None:
    touch(src / "x.mp4")
    with pytest.raises(SourceError, match=f"row 1: .*{message}"):
        find_sources(write_table(src / "t.jsonl", [{"path": "x.mp4", **cells}]), dst)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [("1", 2, "text"), (1, "2", "numbers"), (True, 1, "true and false"), (1.5, False, "numbers"), ([1], "a", "lists")],
)
def test_a_label_column_of_two_kinds_is_refused(src: Path, dst: Path, first: object, second: object, kind: str) -> None:
    """The manifest holds one type per column: found now, not after the last video."""
    touch(src / "x.mp4")
    rows = [{"path": "x.mp4", "id": "a", "label": first}, {"path": "x.mp4", "id": "b", "label": second}]
    with pytest.raises(SourceError, match=f"row 2: label is {second!r} in a column of {kind}"):
        find_sources(write_table(src / "t.jsonl", rows), dst)


def test_whole_numbers_and_fractions_may_share_a_label_column(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    rows: list[dict[str, Any]] = [{"path": "x.mp4", "id": name} for name in "abc"]
    rows[0]["n"], rows[1]["n"] = 1, 1.5
    found = find_sources(write_table(src / "t.jsonl", rows), dst)
    assert labels_of(found) == [{"n": 1.0}, {"n": 1.5}, {"n": None}]


def test_a_parquet_column_may_hold_anything(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    for value in ([1.0, 2.0], datetime.date(2024, 1, 2), b"bytes", {"a": [1]}):
        table = write_table(src / "t.parquet", [{"path": "x.mp4", "extra": value}])
        assert labels_of(find_sources(table, dst)) == [{"extra": value}]


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "-2", ""], [1, -2, None]),
        (["1", "2.5", "1e-05"], [1.0, 2.5, 1e-05]),
        (["1.0", "2.5", "-3.0"], [1.0, 2.5, -3.0]),
        (["1.10", "1.1", "1.100"], ["1.10", "1.1", "1.100"]),
        (["1e5", "100000"], ["1e5", "100000"]),
        (["1.0", "1"], ["1.0", "1"]),
        (["true", "False", ""], [True, False, None]),
        (["007", "8", "9"], ["007", "8", "9"]),
        (["12345678901234567890", "1", "2"], ["12345678901234567890", "1", "2"]),
        (["2024-01-02", "", "x"], ["2024-01-02", None, "x"]),
        (["nan", "1", "2"], ["nan", "1", "2"]),
        (["", "", ""], [None, None, None]),
        (["a,b", 'say "x"', "two\nlines"], ["a,b", 'say "x"', "two\nlines"]),
    ],
)
def test_csv_labels_get_the_type_of_all_cells_without_loss(
    src: Path, dst: Path, cells: list[str], values: list[object]
) -> None:
    touch(src / "x.mp4")
    rows = [{"path": "x.mp4", "id": str(number), "label": cell} for number, cell in enumerate(cells)]
    found = find_sources(write_table(src / "t.csv", rows), dst)
    read = [labels["label"] for labels in labels_of(found)]
    assert [(type(value), value) for value in read] == [(type(value), value) for value in values]


def test_csv_as_spreadsheets_and_pandas_write_it(src: Path, dst: Path) -> None:
    """Byte order mark, CRLF, blank lines, spaces in the header, a first column without a name."""
    touch(src / "x.mp4")
    (src / "t.csv").write_bytes("\ufeff, path ,start, end\r\n0,x.mp4,1, 2\r\n\r\n1,x.mp4,,\r\n".encode())
    found = find_sources(src / "t.csv", dst)
    assert ids(found) == ["x", "x_00001000_00002000"]
    assert found.labels is None
    assert found.ignored == ((str(src / "t.csv"), "a column without a name"),)


@pytest.mark.parametrize(("name", "mark"), [("t.csv", ";"), ("t.tsv", "\t"), ("t.csv", "\t"), ("t.csv", ",")])
def test_cells_may_be_apart_by_semicolons_and_tabs(src: Path, dst: Path, name: str, mark: str) -> None:
    (src / "a.mp4").write_bytes(b"x")
    (src / name).write_text(f"path{mark}start{mark}label\na.mp4{mark}1.5{mark}walk\n")
    found = find_sources(src / name, dst)
    assert (found.units[0].cut.start_seconds, labels_of(found)) == (1.5, [{"label": "walk"}])


NAMES = {
    "time_start": "time_end",
    "from_timestamp": "to_timestamp",
    "start_timestamp": "stop_timestamp",
    "Start": "End",
    "t_start": "t_end",
    "Start Time (seconds)": "End Time (seconds)",
    "start": "stop",
    "startTime": "endTime",
    "start_sec": "end_sec",
    "begin": "end",
    "clip_start_sec": "clip_end_sec",
    "t0": "t1",
    "videos/front/from_timestamp": "videos/front/to_timestamp",
    "onset": "end_time",
}


@pytest.mark.parametrize("start", NAMES)
def test_cuts_are_known_by_the_names_that_data_sets_give_them(src: Path, dst: Path, start: str) -> None:
    """They were taken for labels, and whole films were made."""
    (src / "a.mp4").write_bytes(b"x")
    (src / "t.csv").write_text(f"path,{start},{NAMES[start]},what\na.mp4,1.5,00:01:02.25,walk\n")
    found = find_sources(src / "t.csv", dst)
    assert found.units[0].cut == Cut(1.5, 62.25) and labels_of(found) == [{"what": "walk"}]


@pytest.mark.parametrize(
    ("start", "end"), [("start_frame", "end_frame"), ("Start Frame", "stop frame"), ("begin_frame", "end_frame")]
)
def test_cuts_may_be_given_in_frames(src: Path, dst: Path, start: str, end: str) -> None:
    (src / "a.mp4").write_bytes(b"x")
    (src / "t.csv").write_text(f"path,{start},{end}\na.mp4,12,35\na.mp4,35,\n")
    found = find_sources(src / "t.csv", dst)
    assert {unit.id: unit.cut for unit in found.units} == {
        "a_f00000012_f00000035": Cut(start_frame=12, end_frame=35),
        "a_f00000035_end": Cut(start_frame=35),
    }


def test_a_duration_beside_a_start_is_where_the_cut_ends(src: Path, dst: Path) -> None:
    """The cut ran to the end of the film."""
    (src / "a.mp4").write_bytes(b"x")
    (src / "t.csv").write_text("path,start,duration\na.mp4,0.1,0.2\n")
    assert find_sources(src / "t.csv", dst).units[0].cut == Cut(0.1, 0.3)
    (src / "t.csv").write_text("path,duration\na.mp4,12.5\n")
    assert labels_of(find_sources(src / "t.csv", dst)) == [{"duration": 12.5}]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("path,start_ms,end", "column `start_ms`.*divide it by 1000 and call it `start`"),
        ("path,onset,offset", "column `offset`.*call it `end`"),
        ("path,from,to", "column `to`.*call it `end`"),
        ("path,start_time,t_start", "columns `start_time` and `t_start`.*call the one that does `start`"),
    ],
)
def test_ambiguous_columns_are_refused_with_the_remedy(src: Path, dst: Path, header: str, said: str) -> None:
    (src / "a.mp4").write_bytes(b"x")
    (src / "t.csv").write_text(f"{header}\na.mp4,1,2\n")
    with pytest.raises(SourceError, match=said):
        find_sources(src / "t.csv", dst)


def test_other_columns_stay_labels(src: Path, dst: Path) -> None:
    (src / "a.mp4").write_bytes(b"x")
    names = ("end_state", "start_frame_path", "from", "time", "frame", "number_of_stops", "beginner")
    (src / "t.csv").write_text(f"path,start,{','.join(names)}\na.mp4,1,{','.join('x' * len(names))}\n")
    found = find_sources(src / "t.csv", dst)
    assert found.units[0].cut == Cut(1.0) and labels_of(found) == [dict.fromkeys(names, "x")]


def test_all_faults_of_a_table_are_counted_and_the_first_20_shown(src: Path, dst: Path) -> None:
    (src / "a.mp4").write_bytes(b"x")
    (src / "t.csv").write_text("path,start\n" + "a.mp4,no\n" * 23 + "a.mp4,1\n")
    with pytest.raises(SourceError) as refused:
        find_sources(src / "t.csv", dst)
    told = str(refused.value).splitlines()
    assert ["row 1:" in told[0], "row 20:" in told[19], told[20].strip()] == [True, True, "and 3 more"]


def test_nan_in_json_lines_is_no_value(src: Path, dst: Path) -> None:
    (src / "a.mp4").write_bytes(b"x")
    (src / "t.jsonl").write_text('{"path": "a.mp4", "end": NaN, "weight": NaN, "text": "NaN"}\n')
    found = find_sources(src / "t.jsonl", dst)
    assert found.units[0].cut.end_seconds is None and labels_of(found) == [{"weight": None, "text": "NaN"}]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_nan_elsewhere_is_no_time(src: Path, dst: Path, suffix: str) -> None:
    (src / "a.mp4").write_bytes(b"x")
    table = write_table(src / f"t{suffix}", [{"path": "a.mp4", "start": float("nan")}])
    with pytest.raises(SourceError, match=r"row 1: start is .*nan"):
        find_sources(table, dst)
