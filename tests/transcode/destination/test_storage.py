"""Sources and destinations behind URLs: what is made there is what is made in a folder, whatever the other side does."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests import points
from tests.cluster import dask
from tests.helpers import command, environment, fault, make_clip, make_clips, manifest, outputs, table, transcode
from tests.s3 import Bucket, bucket
from tests.sampling import in_turn
from tests.transcode.destination.arrays import KINDS
from vidprep.formats import open_store
from vidprep.formats.storage import remote

NOT_COMPARED = {"source", "source_mtime_ns", "encode_seconds", "cpu_seconds"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    folder = make_clips(tmp_path_factory.mktemp("sources") / "raw", 6, 8)
    make_clip(folder / "deep" / "er" / "d ü+%.mp4", 5, seed=77)
    (folder / "torn.mp4").write_bytes(b"no video")
    (folder / "notes.txt").write_text("no video either")
    return folder


@pytest.fixture(scope="module")
def there(tmp_path_factory, sources):
    with bucket(tmp_path_factory.mktemp("s3")) as running:
        for path in sources.rglob("*"):
            if path.is_file():
                running.put(path, f"raw/{path.relative_to(sources)}")
        running.put(sources / "c00.mp4", "raw/.hidden/c00.mp4")
        yield running


@pytest.fixture
def s3(there):
    there.fail_every(0)
    yield there
    there.fail_every(0)


@pytest.fixture(scope="module")
def here(sources, tmp_path_factory):
    made = tmp_path_factory.mktemp("here") / "made"
    assert transcode(sources, made, "--gop", 4).code == 1
    return made


def results(objects: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in objects.items() if not name.startswith((".vidprep", "manifest", "gops"))}


def rows(objects: dict[str, bytes]) -> dict[str, dict[str, object]]:
    found = pq.read_table(io.BytesIO(objects["manifest.parquet"])).to_pylist()
    by_id = {row["id"]: {k: v for k, v in row.items() if k not in NOT_COMPARED} for row in found}
    assert len(by_id) == len(found)
    return by_id


def check_tidy(objects: dict[str, bytes], *, merged: bool = False) -> None:
    """Nothing but results, one manifest and its number, the settings, a lease that nobody holds, and what `merge` has joined."""
    lease, *others = sorted(name for name in objects if name.startswith((".vidprep", "manifest")))
    joined = [".vidprep/merged.json"] * merged
    assert others == [".vidprep/manifest.json", *joined, ".vidprep/run.json", "manifest.parquet"]
    assert not [name for name in objects if name.startswith("gops-")]
    assert lease.startswith(".vidprep/lease-") and json.loads(objects[lease])["released"]


@pytest.mark.long
@pytest.mark.parametrize("every", in_turn([0, 3], 2))
def test_a_bucket_gets_the_same_as_a_folder(every, s3: Bucket, here):
    """Also when each third request is refused, answered with an error after it was done, or cut short."""
    name = f"made{every}"
    s3.fail_every(every)
    ran = transcode("s3://videos/raw", f"s3://videos/{name}/", "--gop", 4, "--jobs", 2, env=s3.environment)
    s3.fail_every(0)
    assert ran.code == 1, ran.err
    assert "1 failed" in ran.err
    made = s3.objects(f"{name}/")
    assert results(made) == outputs(here)
    check_tidy(made)
    expected = {id_: {k: v for k, v in row.items() if k not in NOT_COMPARED} for id_, row in manifest(here).items()}
    assert rows(made) == expected
    assert set(s3.failures) == ({"a", "b", "c"} if every else set())


@pytest.mark.long
def test_finished_videos_behind_a_url_are_not_processed_again(s3, here):
    for expected in (7, 0):
        ran = transcode("s3://videos/raw", "s3://videos/twice", "--gop", 4, "--json", env=s3.environment)
        assert ran.summary["ok"] == expected, ran.err
    assert ran.summary["done_before"] == 7
    assert results(s3.objects("twice/")) == outputs(here)


@pytest.mark.long
@pytest.mark.parametrize("store", in_turn(["burst", "webdataset", "gulp", "tensor"], 4))
def test_a_store_of_frames_goes_there_shard_by_shard(store, s3, tmp_path):
    src = make_clips(tmp_path / "src", 4, 8, size=(256, 256), noise=True)
    options = ("--format", store, "--shard-size", "1MiB", "--jobs", 1)
    s3.fail_every(5)
    first = transcode(src, f"s3://videos/{store}", *options, "--limit", 3, verb="burst", env=s3.environment)
    s3.fail_every(0)
    assert first.code == 0, first.err
    assert transcode(src, tmp_path / "first", *options, "--limit", 3, verb="burst").code == 0
    made = s3.objects(f"{store}/")
    check_tidy(made)
    assert results(made) == outputs(tmp_path / "first")
    again = transcode(src, f"s3://videos/{store}", *options, "--json", verb="burst", env=s3.environment)
    assert (again.summary["ok"], again.summary["done_before"]) == (1, 3), again.err
    made = s3.objects(f"{store}/")
    copy = tmp_path / "copy"
    for name, data in made.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
    checked = transcode(src, copy, verb="validate")
    assert checked.code == 0, checked.out
    assert "4 videos read again, 0 faults" in checked.err


@pytest.mark.long
def test_a_table_names_videos_anywhere(s3, sources, tmp_path):
    given = [
        {"path": "s3://videos/raw/c01.mp4", "id": "cut", "start": 0.1, "end": 0.24},
        {"path": sources / "c02.mp4", "id": "whole"},
        {"path": "s3://videos/raw/none.mp4", "id": "none"},
    ]
    ran = transcode(table(tmp_path / "clips.csv", given), tmp_path / "made", env=s3.environment)
    assert ran.code == 1
    found = manifest(tmp_path / "made")
    assert found["cut"]["num_frames"] == 3
    assert found["cut"]["source"] == "s3://videos/raw/c01.mp4"
    assert found["whole"]["status"] == "ok"
    assert "no such file" in next(row["message"] for row in found.values() if row["status"] == "failed")
    assert not list((tmp_path / "made" / ".vidprep" / "partial").iterdir())


@pytest.mark.long
def test_include_exclude_labels_and_one_file(s3, tmp_path):
    ran = transcode(
        "s3://videos/raw",
        tmp_path / "a",
        "--exclude",
        "deep",
        "--include",
        "c0[12]*",
        "--label-from-folder",
        env=s3.environment,
    )
    assert ran.code == 0, ran.err
    assert {id_: row["labels"]["label"] for id_, row in manifest(tmp_path / "a").items()} == {
        "c01": "raw",
        "c02": "raw",
    }
    assert transcode("s3://videos/raw/c03.mp4", tmp_path / "b", env=s3.environment).code == 0
    assert list(manifest(tmp_path / "b")) == ["c03"]
    dry = transcode("s3://videos/raw", tmp_path / "c", "--dry-run", env=s3.environment)
    assert "unknown extension" in dry.err and "hidden name" in dry.err
    assert "8 to do" in dry.err


@pytest.mark.long
@pytest.mark.parametrize("kind", ["h264", "shards", "burst", "webdataset"])
def test_moves_removals_and_labels_apply_behind_a_url(kind, s3, tmp_path):
    verb, *options = KINDS[kind]
    src, url = make_clips(tmp_path / "src", 3), f"s3://videos/living-{kind}"

    def run(*more):
        ran = transcode(src, url, *options, "--label-from-folder", "--json", *more, verb=verb, env=s3.environment)
        assert ran.code == 0, ran.err
        return ran.summary

    assert run()["ok"] == 3
    (src / "to").mkdir()
    (src / "c00.mp4").rename(src / "to" / "c00.mp4")
    (src / "c01.mp4").unlink()
    again = run("--prune")
    assert {name: again[name] for name in ("ok", "moved", "removed", "relabelled")} == {
        "ok": 0,
        "moved": 1,
        "removed": 1,
        "relabelled": 1,
    }
    given = table(tmp_path / "t.csv", [{"id": "c02", "note": "seen"}])
    assert transcode(url, given, verb="label", env=s3.environment).code == 0
    copy = tmp_path / "copy"
    for name, data in s3.objects(f"living-{kind}/").items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
    assert not list(copy.glob(".vidprep/labels*")) and transcode(copy, "--quiet", verb="validate").code == 0
    store = open_store(copy)
    assert {id_: store.labels(id_) for id_ in store.ids} == {
        "c02": {"label": "src", "note": "seen"},
        "to/c00": {"label": "to", "note": None},
    }
    if kind == "h264":
        assert {path.relative_to(copy).as_posix() for path in copy.rglob("*.mp4")} == {"c02.mp4", "to/c00.mp4"}


@pytest.mark.long
def test_parts_there_are_merged_there(s3, here):
    for index in (0, 1):
        ran = transcode(
            "s3://videos/raw", "s3://videos/parts", "--gop", 4, "--partition", f"{index}/2", env=s3.environment
        )
        assert ran.code in (0, 1), ran.err
    whole = transcode("s3://videos/raw", "s3://videos/parts", "--gop", 4, env=s3.environment)
    assert whole.code == 2
    assert "vidprep merge s3://videos/parts" in whole.err
    assert transcode("s3://videos/parts", verb="merge", env=s3.environment).code == 1
    made = s3.objects("parts/")
    check_tidy(made, merged=True)
    assert results(made) == outputs(here)
    assert rows(made).keys() == manifest(here).keys()


@pytest.mark.long
def test_parts_of_a_store_there_are_merged_there(s3, tmp_path):
    src = make_clips(tmp_path / "src", 4, 8, size=(64, 64))
    for index in (0, 1):
        ran = transcode(src, "s3://videos/shards", "--partition", f"{index}/2", verb="burst", env=s3.environment)
        assert ran.code == 0, ran.err
    assert transcode("s3://videos/shards", verb="merge", env=s3.environment).code == 0
    for name, data in s3.objects("shards/").items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    checked = transcode(src, tmp_path / "copy", verb="validate")
    assert "4 videos read again, 0 faults" in checked.err, checked.out


@pytest.mark.long
def test_workers_of_a_cluster_need_no_folder_in_common(s3, here, tmp_path):
    """Scratch folders of the workers are their own."""
    (tmp_path / "elsewhere").mkdir()
    with dask(tmp_path, 2, s3.environment | {"TMPDIR": str(tmp_path / "elsewhere")}) as (address, _):
        on_dask = ("--backend", "dask", "--cluster-address", address)
        ran = transcode("s3://videos/raw", "s3://videos/dask", "--gop", 4, *on_dask, env=s3.environment)
        refused = transcode("s3://videos/raw", "s3://videos/x", *on_dask, verb="burst", env=s3.environment)
        long = make_clip(tmp_path / "long.mp4", 120, (64, 48))
        split = transcode(long, "s3://videos/long", "--segment", 1, *on_dask, env=s3.environment)
    assert ran.code == 1, ran.err
    assert not list((tmp_path / "elsewhere").glob("vidprep-scratch-*")), "an empty one stayed on the workers' host"
    made = s3.objects("dask/")
    check_tidy(made)
    assert results(made) == outputs(here)
    assert (refused.code, "all workers see" in refused.err) == (2, True)
    assert split.code == 0, split.err
    assert transcode(long, tmp_path / "segments", "--segment", 1).code == 0
    assert results(s3.objects("long/")) == outputs(tmp_path / "segments")


@pytest.mark.long
def test_a_long_video_there_is_split_too(s3, tmp_path):
    long = make_clip(tmp_path / "long.mp4", 120, (64, 48))
    s3.put(long, "long/long.mp4")
    ran = transcode("s3://videos/long", "s3://videos/split", "--segment", 1, "--jobs", 2, env=s3.environment)
    assert ran.code == 0, ran.err
    assert transcode(long, tmp_path / "here", "--segment", 1).code == 0
    made = s3.objects("split/")
    check_tidy(made)
    assert results(made) == outputs(tmp_path / "here")


@pytest.mark.long
def test_segments_share_one_copy_of_a_source_there(s3, tmp_path):
    s3.put(make_clip(tmp_path / "long.mp4", 120, (64, 48)), "once/long.mp4")
    told = fault(*points.FETCH, at=-1, code="print('FETCHED', file=__import__('sys').stderr)", only="parent")
    env = s3.environment | environment(tmp_path / "hook", told)
    ran = transcode("s3://videos/once", tmp_path / "made", "--segment", 1, "--jobs", 2, env=env)
    assert (ran.code, ran.err.count("FETCHED")) == (0, 1), ran.err
    assert not list((tmp_path / "made" / ".vidprep").rglob("*.source*"))


@pytest.mark.long
@pytest.mark.parametrize("lease", ["lease-000001", "lock"], ids=["as it was made", "as earlier versions named it"])
def test_a_killed_run_goes_on_and_its_lease_is_forgotten(lease, s3, here, tmp_path):
    killed = fault(*points.JOURNAL_APPEND, at=4, only="parent")
    env = s3.environment | environment(tmp_path / "hook", killed)
    url = f"s3://videos/killed-{lease}"
    assert transcode("s3://videos/raw", url, "--gop", 4, env=env).code == -9
    found = json.loads(s3.objects(f"killed-{lease}/")[".vidprep/lease-000001"])
    s3.client.delete_object(Bucket=s3.name, Key=f"killed-{lease}/.vidprep/lease-000001")
    far = json.dumps(found | {"machine": "another", "beat": 9})
    s3.client.put_object(Bucket=s3.name, Key=f"killed-{lease}/.vidprep/{lease}", Body=far)
    patience = fault(
        *points.DESTINATION_LOCK,
        only="parent",
        code=f"importlib.import_module({points.LEASE_TIMES!r}).STORE_GONE_SECONDS = 2",
    )
    env = s3.environment | environment(tmp_path / "hook", patience)
    again = transcode("s3://videos/raw", url, "--gop", 4, env=env)
    assert again.code == 1 and "watching for up to 2 s" in again.err
    made = s3.objects(f"killed-{lease}/")
    check_tidy(made)
    assert results(made) == outputs(here)


@pytest.mark.long
def test_a_stopped_run_leaves_its_rows_there(s3, here, tmp_path):
    slow = fault(*points.FETCH, at=-3, code="time.sleep(1)", only="parent")
    env = s3.environment | environment(tmp_path / "hook", slow)
    arguments = ("s3://videos/raw", "s3://videos/stopped", "--gop", 4, "--jobs", 1)
    run = subprocess.Popen(
        command(*arguments, "--json"), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout
    for _ in range(3):
        run.stdout.readline()
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=300)
    assert run.returncode == 143
    again = transcode(*arguments, "--json", env=s3.environment)
    assert again.summary["done_before"] >= 2
    made = s3.objects("stopped/")
    check_tidy(made)
    assert results(made) == outputs(here)


@pytest.mark.long
def test_unwritable_outputs_fail_no_source_and_are_retried(s3, here, tmp_path):
    refuse = fault(
        *points.OBJECT_STORAGE_PUT,
        at=-1,
        only="parent",
        code="if args[2].endswith('c01.mp4'): raise PermissionError(13, 'Access Denied')",
    )
    env = s3.environment | environment(tmp_path / "hook", refuse)
    ran = transcode("s3://videos/raw", "s3://videos/refused", "--gop", 4, env=env)
    assert ran.code == 3
    assert "1 failed" in ran.err and "1 not started" in ran.err, "the torn source alone"
    assert "Access Denied" in ran.err and "c01" not in rows(s3.objects("refused/"))
    assert "c01.mp4" not in s3.objects("refused/")
    assert transcode("s3://videos/raw", "s3://videos/refused", "--gop", 4, env=s3.environment).code == 1
    assert results(s3.objects("refused/")) == outputs(here)


@pytest.mark.long
def test_a_source_that_changes_after_it_was_listed_is_no_output(s3, tmp_path):
    change = fault(
        *points.FETCH,
        at=1,
        only="parent",
        code="importlib.import_module('fsspec').filesystem('s3').pipe_file('videos/moving/a.mp4', b'0' * 2000)",
    )
    s3.put(make_clip(tmp_path / "a.mp4"), "moving/a.mp4")
    env = s3.environment | environment(tmp_path / "hook", change)
    ran = transcode("s3://videos/moving", tmp_path / "made", env=env)
    assert ran.code == 1
    assert "changed since it was listed" in ran.err


@pytest.mark.long
def test_usage_errors_name_the_missing_part(s3, tmp_path):
    for source, said in (
        ("s3://videos/nothing", "nothing is there"),
        ("s3://no-such-bucket/x", "nothing is there"),
        ("simplecache::s3://videos/raw", "no such file"),
        ("nonsense://a/b", "nonsense"),
        ("s3://videos/raw/clips.csv", "a table must be a file here"),
    ):
        ran = transcode(source, tmp_path / "made", env=s3.environment)
        assert ran.code == 2, ran.err
        assert said in ran.err
    started = time.monotonic()
    anonymous = {k: v for k, v in s3.environment.items() if not k.startswith("AWS_") or k == "AWS_ENDPOINT_URL"}
    anonymous |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    ran = transcode("s3://videos/raw", "s3://videos/x", env=anonymous)
    assert ran.code == 2
    assert "s3://videos" in ran.err and "credentials" in ran.err.lower()
    assert time.monotonic() - started < 200


def test_memory_is_a_place_like_any(sources, here, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(sources), "/raw", recursive=True)
    ran = transcode("memory://raw", "memory://made", "--gop", 4)
    assert ran.code == 1, ran.err
    made = {name.removeprefix("/made/"): memory.cat_file(name) for name in memory.find("/made")}
    memory.rm("/raw", recursive=True)
    memory.rm("/made", recursive=True)
    assert results(made) == outputs(here)
    check_tidy(made)


@pytest.mark.parametrize(
    ("failing", "error", "calls"),
    [
        (2, ConnectionResetError("by peer"), 3),
        (99, TimeoutError("no answer"), remote.TRIES),
        (99, PermissionError(13, "Access Denied"), 1),
    ],
)
def test_temporary_errors_are_retried_with_growing_pauses_and_others_are_not(
    failing, error, calls, tmp_path, monkeypatch
):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    src = make_clips(tmp_path / "src", 2)
    tried: list[str] = []
    pauses: list[float] = []
    put = type(memory).put_file

    def flaky(self, path, target, **more):
        if target.endswith("c01.mp4"):
            tried.append(target)
            if len(tried) <= failing:
                raise error
        return put(self, path, target, **more)

    monkeypatch.setattr(type(memory), "put_file", flaky)
    monkeypatch.setattr(remote.time, "sleep", pauses.append)
    ran = transcode(src, "memory://flaky", "--json", "--jobs", 1)
    made = {name.removeprefix("/flaky/") for name in memory.find("/flaky") if name.endswith(".mp4")}
    memory.rm("/flaky", recursive=True)
    assert len(tried) == calls
    waited = [pause for pause in pauses if pause >= remote.FIRST_PAUSE_SECONDS / 2]
    assert len(waited) == calls - 1 and all(long > 0.99 * short for short, long in pairwise(waited))
    assert ran.rows["c00"]["status"] == "ok"
    if failing < calls:
        assert ran.code == 0 and made == {"c00.mp4", "c01.mp4"}
    else:
        assert ran.code == 3 and made == {"c00.mp4"}
        assert "c01" not in ran.rows, "no source is to blame"
        assert f"{type(error).__name__}: " in ran.err
        assert (f"in {remote.TRIES} tries" in ran.err) == (calls > 1)


def test_without_the_driver_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "hook" / "s3fs").mkdir(parents=True)
    (tmp_path / "hook" / "s3fs" / "__init__.py").write_text("raise ImportError('none here')")
    env = environment(PYTHONPATH=str(tmp_path / "hook"))
    ran = transcode("s3://videos/raw", tmp_path / "made", env=env)
    assert ran.code == 2
    assert "pip install 'vidprep[s3]'" in ran.err


@pytest.mark.long
@pytest.mark.parametrize("verb", ["transcode", "burst"])
def test_outputs_of_a_bucket_are_checked_and_shown_against_it(verb, s3, sources, tmp_path):
    s3.put(sources / "c00.mp4", f"{verb}/a.mp4")
    s3.put(sources / "c01.mp4", f"{verb}/b.mp4")
    src, made = f"s3://videos/{verb}", tmp_path / "made"
    assert transcode(src, made, verb=verb, env=s3.environment).code == 0
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {**s3.environment, "TMPDIR": str(scratch)}
    checked = transcode(src, made, verb="validate", env=env)
    assert checked.code == 0, checked.err
    shown = transcode(made, "--out", tmp_path / "report", verb="report", env=env)
    assert shown.code == 0, shown.err
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.count("data:image/jpeg") >= 2 * 3
    s3.put(sources / "c02.mp4", f"{verb}/a.mp4")
    told = transcode(src, made, verb="validate", env=env)
    assert told.code == 1 and f"{src}/a.mp4 changed after it was read" in told.out and "b.mp4" not in told.out, told.out
    told = transcode(made, "--out", tmp_path / "report", verb="report", env=env)
    assert "changed since" in (tmp_path / "report" / "report.html").read_text()
    assert not [path for path in scratch.iterdir() if path.name != "vidprep"]
