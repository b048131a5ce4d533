"""Labels that change between two runs, or by `vidprep label`: the same outputs, other labels, all of them or none."""

from __future__ import annotations

import datetime
import json
import shutil
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tests import points
from tests.helpers import (
    Ran,
    environment,
    fault,
    identities,
    make_clip,
    make_clips,
    manifest,
    outputs,
    table,
    transcode,
)
from tests.transcode.destination.arrays import KINDS, contents
from vidprep.formats import open_store
from vidprep.transcode import burst, label, transcode as transcode_here

ALL = list(KINDS)


def run(kind: str, source: object, dst: Path, *more: object, **how: object) -> Ran:
    verb, *options = KINDS[kind]
    return transcode(source, dst, *options, "--json", *more, verb=verb, **how)


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    return make_clips(tmp_path / "src", 3)


def listed(folder: Path, *labels: dict[str, object]) -> Path:
    paths = sorted((folder / "src").glob("*.mp4"))
    return table(folder / "src" / "t.csv", [{"path": path, **each} for path, each in zip(paths, labels, strict=True)])


def labels_in(dst: Path) -> dict[str, dict[str, object]]:
    store = open_store(dst)
    return {id_: store.labels(id_) for id_ in store.ids}


@pytest.mark.parametrize("kind", ALL)
def test_labels_of_done_videos_follow_the_table_without_encoding(kind, clips, tmp_path, dst):
    assert run(kind, listed(tmp_path, *({"label": x} for x in ("walk", "rnu", "walk"))), dst).code == 0
    before, shown = contents(dst), identities(dst)
    again = run(kind, listed(tmp_path, *({"label": x, "n": n} for n, x in enumerate(("walk", "run", "walk")))), dst)
    assert again.code == 0 and again.rows == {} and again.summary["relabelled"] == 3
    due = {f"c{n:02d}": {"label": x, "n": n} for n, x in enumerate(("walk", "run", "walk"))}
    assert labels_in(dst) == due == {id_: row["labels"] for id_, row in manifest(dst).items()}
    assert contents(dst) == before
    if kind == "h264":
        assert identities(dst) == shown
    fewer = run(kind, listed(tmp_path, *({"n": n} for n in range(3))), dst)
    assert fewer.summary["relabelled"] == 0 and "labels kept that these sources do not give: label" in fewer.err
    assert labels_in(dst) == due, "a column that is not given is kept"
    assert run(kind, listed(tmp_path, *({"n": n} for n in range(3))), dst).summary["relabelled"] == 0
    assert transcode(clips, dst, "--quiet", verb="validate").code == 0


@pytest.mark.parametrize("kind", ["h264", "burst"])
def test_a_forgotten_option_removes_no_label(kind, tmp_path, dst):
    """A run without --label-from-folder removed the labels of the run before it."""
    src = tmp_path / "src"
    for folder in ("walk", "run"):
        make_clips(src / folder, 2)
    assert run(kind, src, dst, "--label-from-folder", "--split-by", "a=0.5,b=0.5").code == 0
    before = labels_in(dst)
    assert {each["label"] for each in before.values()} == {"walk", "run"} and {"split"} < before["walk/c00"].keys()
    again = run(kind, src, dst)
    assert labels_in(dst) == before and again.summary["relabelled"] == 0
    assert "labels kept that these sources do not give: label,split; `vidprep label --remove` removes them" in again.err
    make_clips(src / "walk", 3)
    assert "label,split; 1 new video without them" in run(kind, src, dst).err
    more = run(kind, src, dst, "--label-from-folder", "--split-by", "a=0.5,b=0.5")
    assert "changed split" not in more.err and "labels kept" not in more.err
    assert {id_: labels for id_, labels in labels_in(dst).items() if id_ in before} == before
    assert transcode(dst, "--remove", "split", verb="label").code == 0
    assert {tuple(each) for each in labels_in(dst).values()} == {("label",)}
    assert "labels kept" not in run(kind, src, dst, "--overwrite").err
    assert set(map(str, labels_in(dst).values())) == {"{}"}, "it starts over"


def test_splits_are_drawn_by_the_classes_that_are_kept(tmp_path, dst):
    """--split-by without --label-from-folder put all videos into one split."""
    src = tmp_path / "src"
    for folder in ("walk", "run"):
        make_clips(src / folder, 2)
    assert transcode(src, dst, "--label-from-folder").code == 0
    assert transcode(src, dst, "--split-by", "train=0.5,val=0.5").code == 0
    found = Counter((each["label"], each["split"]) for each in labels_in(dst).values())
    assert found == dict.fromkeys(((label, split) for label in ("walk", "run") for split in ("train", "val")), 1)


def test_a_cell_that_turns_numbers_to_text_is_named(clips, tmp_path, dst):
    codes = listed(
        tmp_path,
        *({"code": code, "zip": place} for code, place in zip(("7", "007", "9"), ("01", "02", "03"), strict=True)),
    )
    for ran in (transcode(codes, dst, "--dry-run"), run("h264", codes, dst), transcode(dst, codes, verb="label")):
        assert "note: column code is kept as text, since row 2 has '007' among numbers" in ran.err
        assert "zip" not in ran.err, "no cell of it is a number"
    assert [each["code"] for each in labels_in(dst).values()] == ["7", "007", "9"]


def test_a_dry_run_shows_labels_splits_and_classes(tmp_path, dst):
    src = tmp_path / "src"
    for folder in ("walk", "run"):
        make_clips(src / folder, 4)
    options = ("--label-from-folder", "--split-by", "train=0.75,val=0.25")
    shown = transcode(src, dst, *options, "--dry-run")
    as_json = [json.loads(line) for line in transcode(src, dst, *options, "--dry-run", "--json").out.splitlines()]
    assert not dst.exists()
    assert transcode(src, dst, *options).code == 0
    made = labels_in(dst)
    assert {each["id"]: each["labels"] for each in as_json if each.get("what") == "to do"} == made
    for id_, labels in made.items():
        assert f"{id_}.mp4  [label={labels['label']}, split={labels['split']}]" in shown.out
    assert "label: run 4, walk 4" in shown.err or "label: walk 4, run 4" in shown.err
    for split in ("train", "val"):
        inside = Counter(each["label"] for each in made.values() if each["split"] == split)
        counts = ", ".join(f"{name} {count}" for name, count in inside.most_common())
        assert any(
            f"split {split}: {inside.total()} ({text})" in shown.err
            for text in (counts, ", ".join(counts.split(", ")[::-1]))
        )


@pytest.mark.parametrize("kind", ALL)
def test_label_from_folder_added_later_labels_finished_videos(kind, clips, dst):
    assert run(kind, clips, dst).code == 0
    again = run(kind, clips, dst, "--label-from-folder")
    assert again.rows == {} and again.summary["relabelled"] == 3
    assert labels_in(dst) == {f"c{n:02d}": {"label": "src"} for n in range(3)}


def test_other_peoples_files_have_the_labels_of_now(clips, tmp_path):
    for kind in ("gulp", "webdataset"):
        assert run(kind, listed(tmp_path, *({"label": x} for x in "abc")), tmp_path / kind).code == 0
        assert run(kind, listed(tmp_path, *({"label": x} for x in "xbc")), tmp_path / kind).code == 0
    (meta,) = (tmp_path / "gulp").glob("*.gmeta")
    said = {id_: entry["meta_data"][0]["label"] for id_, entry in json.loads(meta.read_text()).items()}
    assert said == {"c00": "x", "c01": "b", "c02": "c"}
    assert json.loads((tmp_path / "gulp" / "label2idx.json").read_text()) == {"b": 0, "c": 1, "x": 2}
    found = {}
    for path in (tmp_path / "webdataset").glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".json"):
                    assert member.name not in found, "no sample appears twice"
                    found[member.name] = json.load(tar.extractfile(member))["label"]
    assert found == {"c00.json": "x", "c01.json": "b", "c02.json": "c"}
    make_clip(clips / "c01.mp4", 9, seed=50)
    again = run("webdataset", listed(tmp_path, *({"label": x} for x in "xbc")), tmp_path / "webdataset")
    assert set(again.rows) == {"c01"} and again.rows["c01"]["labels"] == {"label": "b"}, (
        "one that is made again has them too"
    )
    said = {}
    for path in (tmp_path / "webdataset").glob("*.tar"):
        with tarfile.open(path) as tar:
            said |= {
                name: json.load(tar.extractfile(name))["label"] for name in tar.getnames() if name.endswith(".json")
            }
    assert said == found


@pytest.mark.parametrize("kind", ALL)
def test_label_command_adds_changes_and_removes_without_the_sources(kind, clips, tmp_path, dst):
    assert run(kind, listed(tmp_path, *({"label": x, "old": 1} for x in "abc")), dst).code == 0
    shutil.rmtree(clips)
    before = contents(dst)
    given = table(tmp_path / "g.csv", [{"id": "c01", "label": "B", "note": "seen"}])
    dry = transcode(dst, given, "--remove", "old", "--dry-run", verb="label")
    assert dry.code == 0 and "c01: label: 'b' -> 'B'" in dry.out and "3 videos would be relabelled" in dry.err
    assert labels_in(dst)["c01"] == {"label": "b", "old": 1}
    assert transcode(dst, given, "--remove", "old", verb="label").code == 0
    assert labels_in(dst) == {
        "c00": {"label": "a", "note": None},
        "c01": {"label": "B", "note": "seen"},
        "c02": {"label": "c", "note": None},
    }
    assert contents(dst) == before


def test_label_command_ignores_empty_cells(clips, tmp_path, dst):
    assert run("h264", listed(tmp_path, *({"label": x, "n": 1} for x in "abc")), dst).code == 0
    given = table(tmp_path / "g.csv", [{"id": "c00", "label": "", "n": 2}, {"id": "c01", "label": "B", "n": ""}])
    done = transcode(dst, given, verb="label")
    assert done.code == 0 and "2 videos relabelled" in done.err, done.err
    assert labels_in(dst) == {
        "c00": {"label": "a", "n": 2},
        "c01": {"label": "B", "n": 1},
        "c02": {"label": "c", "n": 1},
    }
    twice = [{"id": "c02", "label": "", "n": 5}, {"id": "c02", "label": "C", "n": 5}]
    assert transcode(dst, table(tmp_path / "t.csv", twice), verb="label").code == 0
    assert labels_in(dst)["c02"] == {"label": "C", "n": 5}
    empty = table(tmp_path / "e.csv", [{"id": "c00", "label": "", "new": ""}])
    assert "0 videos relabelled; added: new" in transcode(dst, empty, verb="label").err
    assert labels_in(dst)["c00"] == {"label": "a", "n": 2, "new": None}
    assert run("h264", listed(tmp_path, *({"n": 1} for _ in range(3))), dst).code == 0
    assert set(labels_in(dst)["c00"]) == {"n", "new", "label"}, "what the command gave stays"


def test_label_command_refuses_ambiguous_and_empty_tables(clips, tmp_path, dst):
    assert run("h264", clips, dst).code == 0
    rows = [{"id": "c00", "path": clips / "c01.mp4", "x": 1}, {"id": "c02", "path": "elsewhere/c02.mp4", "x": 2}]
    refused = transcode(dst, table(tmp_path / "g.csv", rows), verb="label")
    assert refused.code == 2 and "row 1: its id is 'c00', and its path is that of 'c01'" in refused.err
    assert transcode(dst, tmp_path / "g.csv", "--on-bad-row", "skip", verb="label").code == 0
    assert labels_in(dst) == {"c00": {"x": None}, "c01": {"x": None}, "c02": {"x": 2}}
    nothing = transcode(dst, table(tmp_path / "n.csv", [{"id": "c00"}]), verb="label")
    assert nothing.code == 2 and "has no labels; columns: id" in nothing.err


@pytest.mark.parametrize(
    ("values", "due"),
    [
        ([["a"], ["b"], ["c", 1]], "column x: row 3 is ['c', 1], which has no type in common with the rows before it"),
        ([{}, {}, {}], "column x: values of Arrow's type struct<> cannot be stored in Parquet"),
    ],
)
def test_nested_values_that_cannot_be_kept_are_named(values, due, clips, tmp_path, dst):
    assert run("h264", clips, dst).code == 0
    given = tmp_path / "g.jsonl"
    given.write_text("".join(json.dumps({"id": f"c{n:02d}", "x": value}) + "\n" for n, value in enumerate(values)))
    refused = transcode(dst, given, verb="label")
    assert refused.code == 2 and due in refused.err, refused.err


def test_labels_that_only_the_command_gave_outlive_a_run(clips, tmp_path, dst):
    source = listed(tmp_path, *({"label": x} for x in "abc"))
    assert run("h264", source, dst).code == 0
    label(dst, pa.table({"id": ["c00", "c01"], "label": ["A", "b"], "vector": [[0.5], [1.5]]}))
    assert labels_in(dst)["c00"] == {"label": "A", "vector": [0.5]}
    (clips / "c00.mp4").rename(clips / "z.mp4")
    again = run(
        "h264", table(clips / "t.csv", [{"path": path, "label": "x"} for path in sorted(clips.glob("*.mp4"))]), dst
    )
    assert again.summary["moved"] == 1
    assert labels_in(dst) == {
        "c01": {"label": "x", "vector": [1.5]},
        "c02": {"label": "x", "vector": None},
        "z": {"label": "x", "vector": [0.5]},
    }


def test_rows_without_a_video_are_reported_or_skipped(clips, tmp_path, dst):
    assert run("h264", clips, dst).code == 0
    given = table(tmp_path / "g.csv", [{"id": "c00", "x": 1}, *({"id": f"no{n}", "x": 1} for n in range(22))])
    refused = transcode(dst, given, verb="label")
    assert refused.code == 2 and "row 2: 'no0' is not a video" in refused.err and "and 2 more" in refused.err
    assert "row 22" not in refused.err and labels_in(dst)["c00"] == {}
    assert transcode(dst, given, "--on-bad-row", "skip", verb="label").code == 0
    assert labels_in(dst)["c00"] == {"x": 1}
    (tmp_path / "g.csv").write_text("x\n1\n")
    assert "has no column `id` or `path`" in transcode(dst, tmp_path / "g.csv", verb="label").err
    (tmp_path / "g.csv").write_text("id,x\n")
    assert "has no rows" in transcode(dst, tmp_path / "g.csv", verb="label").err
    assert "there is no label nope" in transcode(dst, "--remove", "nope", verb="label").err
    assert transcode(dst, verb="label").code == 2


def test_cuts_are_relabelled_by_path_start_and_end(clips, tmp_path, dst):
    cuts = [{"path": clips / "c00.mp4", "start": s, "end": e, "label": "a"} for s, e in ((0, 0.08), (0.08, 0.2))]
    assert run("h264", table(clips / "t.csv", cuts), dst).code == 0
    cuts[1]["label"] = "b"
    assert transcode(dst, table(clips / "t.csv", cuts), verb="label").code == 0
    assert [each["label"] for each in labels_in(dst).values()] == ["a", "b"]


@pytest.mark.parametrize("make", [transcode_here, burst])
def test_tables_in_memory_are_taken_wherever_a_table_is(make, clips, tmp_path, dst):
    rows = {
        "path": [str(path) for path in sorted(clips.glob("*.mp4"))],
        "day": [datetime.date(2024, 1, n) for n in (1, 2, 3)],
    }
    arrow = pa.table(rows).append_column("tags", pa.array([["a"], [], None], pa.list_(pa.string())))
    assert make(arrow, dst).ok == 3
    due = {f"c{n:02d}": {"day": rows["day"][n], "tags": [["a"], [], None][n]} for n in range(3)}
    assert labels_in(dst) == due
    for name in ("pandas", "polars"):
        library = pytest.importorskip(name)
        frame = library.DataFrame({"path": rows["path"], name: [0, 1, 2], "tags": [["x"], ["y"], []]})
        assert make(frame, dst).done_before == 3
        assert labels_in(dst)["c01"].items() >= {name: 1, "day": rows["day"][1], "tags": ["y"]}.items()


CHANGES = [
    points.JOURNAL_APPEND,
    ("os", "replace"),
    ("os", "unlink"),
    ("pathlib", "Path.replace"),
    ("pathlib", "Path.unlink"),
    points.SHARD_WRITER_APPEND,
]


@pytest.mark.long
@pytest.mark.parametrize("by", ["run", "label"])
@pytest.mark.parametrize("kind", ["h264", "burst", "webdataset", "gulp"])
def test_a_killed_relabelling_leaves_the_old_or_the_new(kind, by, clips, tmp_path):
    """Killed before and after each of its file changes."""
    made, old, new = tmp_path / "made", {f"c{n:02d}": {"label": "old"} for n in range(3)}, {}
    assert run(kind, listed(tmp_path, *[{"label": "old"}] * 3), made).code == 0
    again = listed(tmp_path, *({"label": f"new {n}"} for n in range(3)))
    new = {f"c{n:02d}": {"label": f"new {n}"} for n in range(3)}
    killed = 0
    for where, name in CHANGES:
        for at in range(1, 9):
            for when in ("before", "after"):
                one = tmp_path / f"{name}-{at}-{when}"
                shutil.copytree(made, one)
                env = environment(tmp_path / f"hook-{one.name}", fault(where, name, at=at, when=when, only="parent"))
                ran = run(kind, again, one, env=env) if by == "run" else transcode(one, again, verb="label", env=env)
                assert labels_in(one) in (old, new), (name, at, when)
                killed += ran.code != 0
                done = run(kind, again, one) if by == "run" else transcode(one, again, verb="label")
                assert done.code == 0 and labels_in(one) == new, (name, at, when)
                shutil.rmtree(one)
            if ran.code == 0:
                break
    assert killed >= 4


def test_partitions_relabel_finished_videos(clips, tmp_path, dst):
    for kind in ("h264", "webdataset"):
        made = tmp_path / kind
        assert run(kind, clips, made).code == 0
        for part in range(2):
            assert run(kind, clips, made, "--label-from-folder", "--partition", f"{part}/2").code == 0
        assert transcode(made, verb="merge").code == 0
        assert labels_in(made) == {f"c{n:02d}": {"label": "src"} for n in range(3)}
        assert transcode(clips, made, "--quiet", verb="validate").code == 0


def test_the_same_cut_twice_is_encoded_once(clips, tmp_path, dst):
    cut = {"path": clips / "c00.mp4", "start": 0, "end": 0.1, "label": "a"}
    ran = run("h264", table(clips / "t.csv", [cut, cut]), dst)
    assert ran.summary["ok"] == 1 and "the same cut again" in ran.err
    refused = run("h264", table(clips / "t.csv", [cut, cut | {"label": "b"}]), tmp_path / "other")
    assert refused.code == 2 and "row 2: the same cut as row 1, with other labels" in refused.err


def test_labels_chooses_columns_and_on_bad_row_skips(clips, tmp_path, dst):
    rows = [{"path": clips / "c00.mp4", "a": 1, "b": 2}, {"path": "", "a": 1, "b": 2}]
    given = table(clips / "t.csv", rows)
    assert "row 2: path is" in run("h264", given, dst).err
    ran = run("h264", given, dst, "--on-bad-row", "skip", "--labels", "b")
    assert ran.code == 0 and labels_in(dst) == {"c00": {"b": 2}}
    assert "has no column c; its labels: a, b" in run("h264", given, dst, "--labels", "b,c").err


def test_cuts_of_one_source_count_its_bytes_once(clips, tmp_path, dst):
    """453 cuts of one film of 4 MB were said to be 1.87 GB."""
    cuts = table(
        tmp_path / "t.csv", [{"path": clips / "c00.mp4", "start": n * 0.04, "end": n * 0.04 + 0.04} for n in range(5)]
    )
    size = (clips / "c00.mp4").stat().st_size
    dry = transcode(cuts, dst, "--dry-run")
    assert f"Sources to do: {size // 5 * 5 / 1e3:.1f} kB" in dry.err
    ran = run("h264", cuts, dst)
    assert ran.summary["bytes_before"] == size // 5 * 5
    assert run("h264", cuts, dst).summary["bytes_before"] == size // 5 * 5


def test_rows_are_json_whatever_their_labels_are(clips, tmp_path, dst):
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    given = pa.table({"path": [str(clips / "c00.mp4")], "day": [datetime.date(2024, 1, 2)], "e": [[1.0, float("nan")]]})
    told = []
    assert transcode_here(given, dst, on_row=lambda row: told.append(row.as_json())).ok == 1
    assert json.loads(told[0], parse_constant=refuse)["labels"] == {"day": "2024-01-02", "e": [1.0, "nan"]}


def test_labels_may_have_the_names_of_facts(clips, tmp_path, dst):
    names = ("frames", "width", "status", "indexes", "labels", "class_id", "source", "num_frames")
    assert run("h264", listed(tmp_path, *({name: f"{name} {n}" for name in names} for n in range(3))), dst).code == 0
    assert labels_in(dst)["c01"] == {name: f"{name} 1" for name in names}
    assert manifest(dst)["c01"]["status"] == "ok" and manifest(dst)["c01"]["width"] == 64
    assert outputs(dst)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["h264", "burst"])
def test_validate_beside_a_relabelling_says_so_and_reports_no_fault(kind, clips, tmp_path, dst):
    """It read the manifest before, and the index behind, and said that their labels differ."""
    assert run(kind, clips, dst).code == 0
    labels = table(tmp_path / "late.csv", [{"id": id_, "label": "late"} for id_ in manifest(dst)])
    arguments = [sys.executable, "-m", "vidprep.transcode", "label", str(dst), str(labels)]
    code = f"__import__('subprocess').run({arguments!r}, check=True)"
    at = fault(*points.ROWS_TO_READ, when="after", code=code, only="parent")
    ran = transcode(dst, verb="validate", env=environment(tmp_path / "hook", at))
    assert ran.code == 2 and "was changed by a run or `label` while it was checked; validate again" in ran.err
    assert "labels differ" not in ran.out
    assert transcode(dst, verb="validate").code == 0
