"""Names that are long or hostile, links that lead in circles, and an output that has no room."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.helpers import command, environment, make_clip, manifest, table, transcode
from tests.sampling import in_turn
from tests.transcode.sources.trees import find_sources
from vidprep.formats import open_store
from vidprep.formats.errors import StoreError
from vidprep.transcode.choose.bench.places import find_place

QUICK = ("--gop", 4, "--preset", "ultrafast", "--jobs", 1, "--quiet")
ESCAPE = "\x1b[31m\x1b]0;owned\x07"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clip(tmp_path_factory.mktemp("small") / "raw" / "a.mp4", 3, (32, 32))


def copied(clip: Path, *names: Path) -> None:
    for name in names:
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_bytes(clip.read_bytes())


def test_a_name_as_long_as_names_can_be_goes_into_a_burst(clip: Path, tmp_path: Path) -> None:
    long = "n" * 251
    copied(clip, tmp_path / "raw" / f"{long}.mp4", tmp_path / "raw" / "short.mp4", tmp_path / "raw" / f"{'m' * 252}.ts")
    done = transcode(tmp_path / "raw", tmp_path / "out", "--jobs", 1, "--quiet", verb="burst")
    assert done.code == 0, done.err
    store = open_store(tmp_path / "out")
    assert sorted(map(len, store.ids)) == [5, 251, 252]
    assert len(store[long].frames()) == 3
    assert transcode(tmp_path / "raw", tmp_path / "out", "--quiet", "--cross-check", 0, verb="validate").code == 0


def test_a_source_whose_output_cannot_be_named_costs_its_row(clip: Path, tmp_path: Path) -> None:
    long = "n" * 251
    copied(
        clip,
        tmp_path / "raw" / f"{long}.mp4",
        tmp_path / "raw" / "short.mp4",
        tmp_path / "raw" / "manifest.parquet" / "b.mp4",
    )
    done = transcode(
        tmp_path / "raw", tmp_path / "out", *QUICK, "--container", "webm", "--codec", "vp9", "--preset", "8"
    )
    assert done.code != 2, done.err
    rows = {row["source"].rpartition("/")[2]: row for row in manifest(tmp_path / "out").values()}
    assert {name: row["status"] for name, row in rows.items()} == {
        f"{long}.mp4": "failed",
        "short.mp4": "ok",
        "b.mp4": "failed",
    }
    assert "256 bytes" in rows[f"{long}.mp4"]["message"]
    assert rows[f"{long}.mp4"]["error"] == "SourceError"


def test_an_id_that_is_too_long_costs_its_row(clip: Path, tmp_path: Path) -> None:
    rows = [{"path": clip, "id": "i" * 300}, {"path": clip, "id": "fine"}]
    found = find_sources(table(tmp_path / "t.csv", rows), tmp_path / "out")
    assert [unit.id for unit in found.units] == ["fine"]
    assert len(found.problems) == 1
    assert len(find_sources(tmp_path / "t.csv", tmp_path / "out", extension="frames").units) == 2


def test_a_path_that_no_system_takes_costs_its_row(clip: Path, tmp_path: Path) -> None:
    deep = "/".join(["d" * 250] * 17)
    rows = [{"path": clip, "id": deep}, {"path": clip, "id": "fine"}]
    done = transcode(table(tmp_path / "t.csv", rows), tmp_path / "out", *QUICK)
    found = manifest(tmp_path / "out")
    assert done.code == 1
    assert (found["fine"]["status"], found[deep]["status"], found[deep]["error"]) == (
        "ok",
        "failed",
        "DestinationError",
    )
    assert "internal" not in found[deep]["message"] and ".py" not in found[deep]["message"]


@pytest.mark.parametrize("verb", ["transcode", "burst"])
def test_a_dry_run_shows_escapes_and_does_not_obey_them(clip: Path, tmp_path: Path, verb: str) -> None:
    copied(clip, tmp_path / "raw" / f"{ESCAPE}.mp4", tmp_path / "raw" / f"{ESCAPE}.txt")
    done = transcode(tmp_path / "raw", tmp_path / "out", "--dry-run", verb=verb)
    assert done.code == 0
    for said in (done.out, done.err):
        assert "owned" in said
        assert not {"\x1b", "\x07"} & set(said)


def test_errors_show_escapes_of_ids_and_do_not_obey_them(tmp_path: Path) -> None:
    """Of a store that came from elsewhere."""
    import json

    for number, id_ in enumerate((f"../{ESCAPE}", f"{ESCAPE} x")):
        store = tmp_path / f"{number}{ESCAPE}"
        store.mkdir()
        (store / "meta_0.gmeta").write_text(json.dumps({id_: {"frame_info": [[0, 0, 4]], "meta_data": [{}]}}))
        (store / "data_0.gulp").write_bytes(b"none")
        for kind in ("burst", "frames", "mmaction", "hf"):
            done = transcode(store, tmp_path / f"{number}{kind}", "--to", kind, verb="pack")
            assert done.code == 2
            assert "owned" in done.err
            assert not {"\x1b", "\x07"} & set(done.err + done.out)


def test_bench_follows_links_but_not_in_circles(clip: Path, tmp_path: Path) -> None:
    copied(clip, tmp_path / "raw" / "x" / "a.mp4", tmp_path / "raw" / "y" / "b.mp4", tmp_path / "far" / "c.mp4")
    for name in ("x", "y"):
        for other in ("x", "y", ".", ".."):
            (tmp_path / "raw" / name / f"to{other}").symlink_to(tmp_path / "raw" / other)
    (tmp_path / "raw" / "far").symlink_to(tmp_path / "far")
    place = find_place(tmp_path / "raw")
    assert sorted(id_.rpartition("/")[2] for id_ in place.ids) == ["a", "b", "c"]
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "self").symlink_to(tmp_path / "none")
    with pytest.raises(StoreError, match="nothing that can be read"):
        find_place(tmp_path / "none")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    ("verb", "how"),
    in_turn(
        [
            ("transcode", ("OUT", "--json", *QUICK)),
            ("transcode", ("OUT", "--dry-run")),
            ("bench", ("--seconds", 0.01, "--loader", "vidprep", "--pattern", "single")),
            ("transcode", ("--help",)),
            ("bench", ("--seconds", 0.01, "--loader", "vidprep", "--pattern", "single", "--json")),
        ],
        3,
    ),
)
def test_a_command_that_cannot_print_says_so_once(
    clip: Path, tmp_path: Path, verb: str, how: tuple[object, ...], unbuffered: bool
) -> None:
    env = environment() | dict(os.environ) | ({"PYTHONUNBUFFERED": "1"} if unbuffered else {})
    with Path("/dev/full").open("w") as full:
        asked = command(clip.parent, *(tmp_path / "out" if word == "OUT" else word for word in how), verb=verb)
        done = subprocess.run(asked, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False, env=env)
    assert done.stderr.count("No space left on device") == 1
    assert "Exception ignored" not in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == 2
    if verb == "transcode" and "--json" in how:
        assert "the manifest has them" in done.stderr
        assert {row["status"] for row in manifest(tmp_path / "out").values()} == {"ok"}


def test_who_stops_listening_ends_nothing(clip: Path, tmp_path: Path) -> None:
    asked = " ".join(map(str, command(clip.parent, tmp_path / "out", "--json", *QUICK)))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{asked} | true"], capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert done.returncode == 0, done.stderr
    assert {row["status"] for row in manifest(tmp_path / "out").values()} == {"ok"}


@pytest.mark.long
def test_a_named_pipe_without_a_reader_is_reported(clip: Path, tmp_path: Path) -> None:
    """It waited for ever."""
    os.mkfifo(tmp_path / "pipe")
    ran = transcode(clip.parent, tmp_path / "out", "--events", tmp_path / "pipe", env=environment())
    assert ran.code == 2 and "without a reader; start `vidprep monitor`" in ran.err
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        assert transcode(clip.parent, tmp_path / "out", "--events", tmp_path / "pipe", env=environment()).code == 0
        assert reader.stdout is not None and '"event": "ended"' in reader.stdout.read()


def test_a_label_without_a_valid_name_is_refused_before_any_work(clip: Path, tmp_path: Path) -> None:
    """Every row failed after its video had been encoded."""
    (tmp_path / "t.jsonl").write_text(json.dumps({"path": str(clip), "\ud800": 1}))
    ran = transcode(tmp_path / "t.jsonl", tmp_path / "out")
    assert ran.code == 2 and r"a column \ud800, whose name is not valid Unicode" in ran.err, ran.err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.parametrize("missing", in_turn(["keyframe_interval_max", "codec"], 2))
def test_a_manifest_without_a_column_is_one_of_an_older_version(clip: Path, tmp_path: Path, missing: str) -> None:
    made = tmp_path / "made"
    assert transcode(clip.parent, made, *QUICK).code == 0
    older = pq.read_table(made / "manifest.parquet").drop_columns(missing).replace_schema_metadata(None)
    pq.write_table(older, made / "manifest.parquet")
    benched = transcode(made, "--seconds", 0.01, "--loader", "vidprep", verb="bench")
    again = transcode(clip.parent, made, *QUICK)
    assert again.code == 0, again.err
    assert benched.code == 0 or (benched.code == 2 and f"has no {missing}" in benched.err)
