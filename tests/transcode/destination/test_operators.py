"""What whoever runs a cluster meets: keys that are no paths, permissions, signals, stores behind URLs that are to be proven."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests import points
from tests.helpers import (
    command,
    environment,
    fault,
    leftovers,
    make_clip,
    make_clips,
    manifest,
    start,
    table,
    transcode,
)
from tests.s3 import Bucket, bucket
from tests.transcode.destination.arrays import contents
from tests.transcode.destination.test_locks import mounted, needs_namespaces
from tests.transcode.unit.bursts import burst
from vidprep.formats.errors import StorageError
from vidprep.formats.storage.base import split_url
from vidprep.formats.storage.remote import ObjectStorage


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory):
    with bucket(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clips(tmp_path_factory.mktemp("sources") / "raw", 4, 6)


@pytest.mark.long
def test_a_key_is_no_path(there: Bucket, sources: Path, tmp_path: Path) -> None:
    """Of col/a.mp4 and col//a.mp4 one was made and nothing said of the other; col//b.mp4 was "gone"."""
    there.put(sources / "c00.mp4", "col/a.mp4")
    there.put(sources / "c01.mp4", "col//a.mp4")
    ran = transcode("s3://videos/col", tmp_path / "both", env=there.environment)
    assert ran.code == 1 and all(
        f"is wanted by s3://videos/{key} too" in ran.err for key in ("col/a.mp4", "col//a.mp4")
    )
    there.put(sources / "c01.mp4", "other//b.mp4")
    there.put(sources / "c02.mp4", "other/deep//er/c.mp4")
    assert transcode("s3://videos/other", tmp_path / "made", env=there.environment).code == 0
    assert {id_: row["source"] for id_, row in manifest(tmp_path / "made").items()} == {
        "b": "s3://videos/other//b.mp4",
        "deep/er/c": "s3://videos/other/deep//er/c.mp4",
    }
    named = table(tmp_path / "t.csv", [{"path": "s3://videos/other//b.mp4"}, {"path": "s3://videos/col//a.mp4"}])
    assert transcode(named, tmp_path / "table", env=there.environment).code == 0
    assert {row["num_frames"] for row in manifest(tmp_path / "table").values()} == {7}


def test_how_a_url_is_split() -> None:
    for url, parts in {
        "s3://b/a/c.mp4": ("s3://b/a", "c.mp4"),
        "s3://b/a//c.mp4": ("s3://b/a", "/c.mp4"),
        "s3://b/a///c.mp4": ("s3://b/a", "//c.mp4"),
        "s3://b//a/c.mp4": ("s3://b//a", "c.mp4"),
        "s3://b/c.mp4": ("s3://b", "c.mp4"),
    }.items():
        assert split_url(url) == parts


@pytest.mark.long
def test_a_store_behind_a_url_is_proven_and_reported(there: Bucket, sources: Path, tmp_path: Path) -> None:
    for url, verb in (("s3://videos/encoded", "transcode"), ("S3://videos/frames", "burst")):
        assert transcode(sources, url, verb=verb, env=there.environment).code == 0
        before = there.objects(url.rpartition("/")[2] + "/")
        checked = transcode(
            sources, url, "--cross-check", 0, "--out", tmp_path / verb, verb="validate", env=there.environment
        )
        assert (checked.code, "4 videos read again, 0 faults" in checked.err) == (0, True), checked.out + checked.err
        assert len(pq.read_table(tmp_path / verb / "validation.parquet")) == 4
        refused = transcode(url, verb="report", env=there.environment)
        assert refused.code == 2 and "--out" in refused.err
        assert transcode(url, "--out", tmp_path / verb, verb="report", env=there.environment).code == 0
        for name in ("report.html", "report.md", "report.json"):
            text = (tmp_path / verb / name).read_text()
            assert "s3://videos/" in text and "vidprep-scratch" not in text
        assert there.objects(url.rpartition("/")[2] + "/") == before
        name = next(name for name in before if name.endswith((".mp4", ".bin")))
        there.client.put_object(Bucket=there.name, Key=f"{url.rpartition('/')[2]}/{name}", Body=b"-" + before[name][1:])
        hurt = transcode(url, verb="validate", env=there.environment)
        assert hurt.code == 1 and "s3://videos/" in hurt.out and "vidprep-scratch" not in hurt.out
    nothing = transcode("s3://videos/nothing", verb="validate", env=there.environment)
    assert nothing.code == 2 and "nothing is there" in nothing.err


@pytest.mark.long
def test_dead_bytes_go_behind_a_url_too(there: Bucket, sources: Path, tmp_path: Path) -> None:
    src, url = Path(shutil.copytree(sources, tmp_path / "src")), "s3://videos/again"
    assert burst(src, url, "--format", "webdataset", env=there.environment).code == 0
    make_clip(src / "c01.mp4", 9, seed=70)
    assert burst(src, url, "--format", "webdataset", env=there.environment).code == 0
    assert burst(src, url, "--format", "webdataset", "--overwrite", env=there.environment).code == 0
    assert [name for name in there.objects("again/") if name.endswith(".tar")] == ["data-00003-00000.tar"]
    assert transcode(url, verb="compact", env=there.environment).code == 0
    checked = transcode(src, url, "--cross-check", 0, verb="validate", env=there.environment)
    assert checked.code == 0, checked.out


CHANGES_THERE = (
    points.OBJECT_STORAGE_PUT,
    points.OBJECT_STORAGE_SWAP,
    points.OBJECT_STORAGE_SEND,
    points.OBJECT_STORAGE_REMOVE,
)


@pytest.mark.long
@pytest.mark.parametrize("verb", ["compact", "merge"])
def test_a_kill_before_any_change_behind_a_url_leaves_a_complete_store(
    verb: str, there: Bucket, sources: Path, tmp_path: Path
) -> None:
    src, first = Path(shutil.copytree(sources, tmp_path / "src")), f"first-{verb}"
    parts: list[tuple[str, ...]] = [("--partition", "0/2"), ("--partition", "1/2")] if verb == "merge" else [(), ()]
    for part in parts:
        assert burst(src, f"s3://videos/{first}", *part, env=there.environment).code == 0
        if verb == "compact":
            make_clip(src / "c01.mp4", 9, seed=70)
    before = there.objects(f"{first}/")
    assert transcode(f"s3://videos/{first}", verb=verb, env=there.environment).code == 0
    due = fetched_contents(there, f"{first}/", tmp_path / first)
    keys = {name: value for name, value in there.environment.items() if name.startswith("AWS_")}
    kills = 0
    for point in CHANGES_THERE:
        for at in range(1, 15):
            for name in there.objects("killed/"):
                there.client.delete_object(Bucket=there.name, Key=f"killed/{name}")
            for name, data in before.items():
                there.client.put_object(Bucket=there.name, Key=f"killed/{name}", Body=data)
            kill = fault(*point, at=at, code="os.killpg(0, signal.SIGKILL)", only="parent")
            ran = transcode("s3://videos/killed", verb=verb, env=environment(tmp_path / "hook", kill, **keys))
            if ran.code == 0:
                break
            kills += 1
            where = f"before {point} {at}"
            if verb == "compact":
                assert fetched_contents(there, "killed/", tmp_path / f"{point[1]}{at}") == due, where
            assert transcode("s3://videos/killed", verb=verb, env=there.environment).code == 0, where
            assert fetched_contents(there, "killed/", tmp_path / f"{point[1]}{at}-again") == due, where
            if at % 3 == 1:
                checked = transcode(
                    src, "s3://videos/killed", "--cross-check", 0, verb="validate", env=there.environment
                )
                assert checked.code == 0, checked.out
    assert kills >= 8


def fetched_contents(there: Bucket, prefix: str, copy: Path) -> dict[str, bytes]:
    for name, data in there.objects(prefix).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
    return contents(copy)


@pytest.mark.long
def test_a_shard_that_does_not_reach_its_url_is_named_by_no_manifest(there: Bucket, tmp_path: Path) -> None:
    """Neither of a run whose bucket refuses one, nor of a part that was killed before its shard was whole."""
    src = make_clips(tmp_path / "src", 6, 12, size=(160, 120), noise=True)
    keys = {name: value for name, value in there.environment.items() if name.startswith("AWS_")}
    options = ("--format", "tensor", "--shard-size", "1MiB", "--jobs", 1)
    refused = fault(
        *points.OBJECT_STORAGE_PUT,
        at=2,
        only="parent",
        code="raise importlib.import_module('vidprep.formats.errors').StorageError('refused')",
    )
    kill = fault(
        *points.JOURNAL_APPEND, at=2, when="after", code="time.sleep(6); os.killpg(0, signal.SIGKILL)", only="parent"
    )
    ran = burst(src, "s3://videos/takes-nothing", *options, env=environment(tmp_path / "one", refused, **keys))
    assert ran.code in (0, 3), ran.err
    for part, env in ((0, environment(tmp_path / "two", kill, **keys)), (1, there.environment)):
        burst(src, "s3://videos/parts", *options, "--partition", f"{part}/2", env=env)
    merged = transcode("s3://videos/parts", verb="merge", env=there.environment)
    assert merged.code == 1 and "1 of 2 partitions did not finish (0)" in merged.err, merged.err
    for name in ("refused", "parts"):
        checked = transcode(f"s3://videos/{name}", "--cross-check", 0, verb="validate", env=there.environment)
        assert all(": no row: partition 0 of 2 did not finish" in line for line in checked.out.splitlines()), (
            checked.out
        )
        assert burst(src, f"s3://videos/{name}", *options, env=there.environment).code == 0
        checked = transcode(src, f"s3://videos/{name}", "--cross-check", 0, verb="validate", env=there.environment)
        assert checked.code == 0, checked.out + checked.err


def test_missing_permissions_end_with_3(there: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in there.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    folder = ObjectStorage("s3://videos/denied")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(type(folder._fs), "find", denied)
    with pytest.raises(StorageError, match="could not be listed: PermissionError: Forbidden") as raised:
        folder.files()
    assert raised.value.exit_code == 3


def test_a_url_with_one_slash_makes_no_folder(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = transcode(sources, "s3:/bucket/made")
    assert ran.code == 2 and "would be a folder named s3: here; give s3://bucket/made" in ran.err
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGXCPU])
def test_hangup_and_the_limit_of_cpu_time_end_a_run_as_sigterm_does(
    number: signal.Signals, sources: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    slow = fault(*points.RUN_JOB, at=-1, code="time.sleep(0.5)", only="child")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests under nohup inherit as ignored
    try:
        running = start(sources, made, "--jobs", 1, env=environment(tmp_path / "hook", slow))
    finally:
        signal.signal(signal.SIGHUP, before)
    while not (made / ".vidprep" / "journal.jsonl").exists():
        assert running.poll() is None
        time.sleep(0.02)
    (os.killpg if number == signal.SIGHUP else os.kill)(running.pid, number)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 143, said
    assert all(row["status"] == "ok" for row in manifest(made).values()) and leftovers(made) == []
    assert transcode(sources, made).code == 0


def test_nohup_goes_on(sources: Path, tmp_path: Path) -> None:
    slow = fault(*points.RUN_JOB, at=-1, code="time.sleep(0.2)", only="child")
    running = subprocess.Popen(
        ["nohup", *command(sources, tmp_path / "made", "--jobs", 1)],
        env=environment(tmp_path / "hook", slow),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not (tmp_path / "made" / ".vidprep" / "journal.jsonl").exists():
        assert running.poll() is None
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGHUP)
    assert running.wait(timeout=300) == 0
    assert len(manifest(tmp_path / "made")) == 4


@needs_namespaces
def test_a_folder_that_can_hold_no_more_files_says_so(sources: Path, tmp_path: Path) -> None:
    """It was "10358784 bytes are free"."""
    made = tmp_path / "made"
    made.mkdir()
    small = f"mount -t tmpfs -o size=100m,nr_inodes=9 none {made}"
    ran = subprocess.run(
        mounted(small, sources, made, verb="transcode"), env=environment(), capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 3 and "can hold no more files (all 9 inodes are taken)" in ran.stderr, ran.stderr


def test_a_lease_that_somebody_removed_is_said(sources: Path, tmp_path: Path) -> None:
    """It was "gave no sign for 30 s"."""
    made = tmp_path / "made"
    gone = "[path.unlink() for path in __import__('pathlib').Path(args[0].path).parent.glob('lease-*')]"
    env = environment(tmp_path / "hook", fault(*points.JOURNAL_APPEND, at=2, code=gone, only="parent"))
    ran = transcode(sources, made, "--jobs", 1, env=env)
    assert ran.code == 3 and "the lease of this run was removed" in ran.err, ran.err
    assert transcode(sources, made).code == 0


COMMANDS_OF_A_RUN = {
    "label": ("label", "{made}/dst", "{labels}"),
    "compact": ("compact", "{made}/dst"),
    "overwrite": ("burst", "{sources}", "{made}/dst", "--overwrite"),
    "again": ("burst", "{more}", "{made}/dst"),
}


@needs_namespaces
@pytest.mark.parametrize("kilobytes", [0, 8])
@pytest.mark.parametrize("name", COMMANDS_OF_A_RUN)
def test_a_full_destination_is_said_by_every_command_and_nothing_of_it_is_done_later(
    name: str, kilobytes: int, sources: Path, tmp_path: Path
) -> None:
    """They ended with 2 and "[Errno 28] No space left on device"; labels that had failed were there after the next run."""
    made, more = tmp_path / "made", Path(shutil.copytree(sources, tmp_path / "more"))
    make_clip(more / "new.mp4", 12, (256, 256), noise=True)
    transcode(sources, tmp_path / "dst", verb="burst")
    made.mkdir()
    labels = table(tmp_path / "labels.csv", [{"id": "c00", "label": "late"}])
    verb, *given = (
        part.format(made=made, labels=labels, sources=sources, more=more) for part in COMMANDS_OF_A_RUN[name]
    )
    full = (
        f"mount -t tmpfs -o size=1m none {made} && cp -r {tmp_path / 'dst'} {made} && "
        f"head -c $(( ($(df -k --output=avail {made} | tail -1) - {kilobytes}) * 1024 )) /dev/zero > {made}/fill"
    )
    after = f'"$@"; code=$?; rm {made}/fill; cp -r {made}/dst {tmp_path}/after; exit $code'
    shell = ["unshare", "-m", "sh", "-c", f"{full} && {{ {after}; }}", "sh", *command(*given, verb=verb)]
    ran = subprocess.run(shell, env=environment(), capture_output=True, text=True, timeout=300)
    if ran.returncode == 0:
        assert name == "compact" and kilobytes, "it had nothing to write"
        return
    assert ran.returncode == 3, ran.stderr
    assert "no room left" in ran.stderr and "bytes are free" in ran.stderr and "make room" in ran.stderr
    assert re.search(r"(needs|hold) [1-9]\d* bytes", ran.stderr), ran.stderr
    again = transcode(sources, tmp_path / "after", verb="burst")
    assert again.code == 0, again.err
    rows = manifest(tmp_path / "after").values()
    assert all("labels" not in row for row in rows), "what failed is not done by the next run"
    assert transcode(tmp_path / "after", verb="validate").code == 0


@pytest.mark.long
def test_a_store_that_takes_nothing_is_given_up_in_a_minute_or_so(there: Bucket, sources: Path) -> None:
    """After 231 s."""
    there.behave(refused="PUT")
    ran = transcode(sources, "s3://videos/takes-nothing", env=there.environment, timeout=300)
    there.behave()
    assert ran.code == 3, ran.err
    seconds = int(re.search(r"could not be written in \d+ tr(?:y|ies) and (\d+) s", ran.err)[1])
    assert seconds < 150


@pytest.mark.long
def test_unreadable_files_behind_a_url_are_named(there: Bucket, sources: Path) -> None:
    """It was a file of a scratch folder that was gone by then."""
    assert transcode(sources, "s3://videos/hurt", env=there.environment).code == 0
    for name in ("manifest.parquet", ".vidprep/manifest.json", ".vidprep/run.json"):
        before = there.objects("hurt/")[name]
        there.client.put_object(Bucket=there.name, Key=f"hurt/{name}", Body=b"garbage")
        for more in ((), ("--dry-run",)):
            ran = transcode(sources, "s3://videos/hurt", *more, env=there.environment)
            if name != ".vidprep/manifest.json" or not more:
                assert ran.code == 2 and f"s3://videos/hurt/{name}: cannot be read" in ran.err, ran.err
        there.client.put_object(Bucket=there.name, Key=f"hurt/{name}", Body=before)
    there.client.put_object(Bucket=there.name, Key="hurt/manifest.parquet", Body=b"garbage")
    assert transcode(sources, "s3://videos/hurt", "--overwrite", env=there.environment).code == 0
    assert transcode(sources, "s3://videos/hurt", "--cross-check", 0, verb="validate", env=there.environment).code == 0
