"""One run at a time holds a destination: in a folder of several hosts, without flock, and behind a URL."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests import points
from tests.helpers import KILL_ALL, command, environment, fault, leftovers, make_clips, manifest, outputs, transcode
from tests.s3 import Bucket, bucket
from tests.sampling import in_turn
from vidprep.formats.errors import DestinationError
from vidprep.formats.storage.local import LocalStorage
from vidprep.transcode.destination.lease import Holder, Lease, LeaseEntry, LeasePlace, first_live_holder, myself
from vidprep.transcode.sources.outputs import STATE_DIR

SLOW = pytest.mark.slow
# What stands in the place of flock.
FLOCKS = {
    "no flock": "importlib.import_module('fcntl').flock = lambda *_: (_ for _ in ()).throw(OSError(38, 'not implemented'))",
    "flock of one host": "importlib.import_module('fcntl').flock = lambda *_: None",
}


def place_in(folder: Path) -> LeasePlace:
    """Where the leases of a destination stand."""
    (folder / STATE_DIR).mkdir(parents=True, exist_ok=True)
    return LeasePlace(LocalStorage(folder), STATE_DIR)


def hooked(hook: Path, *codes: str, more: Sequence[str] = (), **variables: str) -> dict[str, str]:
    """An environment in which the parent does this before it takes a destination."""
    faults = [fault(*points.DESTINATION_LOCK, code="; ".join(codes), only="parent")]
    return environment(hook, *(faults if codes else ()), *more) | variables


def on_host(name: str, *args: object, verb: str = "transcode") -> list[str]:
    """A command on what looks like another machine that sees the same folders."""
    return ["unshare", "-m", "-u", "sh", "-c", f'hostname {name}; exec "$@"', "sh", *command(*args, verb=verb)]


needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces are root's, and Linux's"
)


def mounted(mount: str, *args: object, verb: str) -> list[str]:
    """A command that sees a mount of its own."""
    return ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *command(*args, verb=verb)]


def start(arguments: Sequence[str], env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def ended(*runs: subprocess.Popen[str]) -> list[tuple[int, str]]:
    told = [run.communicate(timeout=300)[1] for run in runs]
    assert not any("Traceback" in text for text in told), told
    return [(run.returncode, text) for run, text in zip(runs, told, strict=True)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clips(tmp_path_factory.mktemp("sources") / "raw", 6, 8)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory):
    with bucket(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def s3(there: Bucket):
    there.behave()
    yield there
    there.behave()


def differing(objects: dict[str, bytes]) -> list[str]:
    """Objects that are not what the manifest says."""
    rows = pq.read_table(io.BytesIO(objects["manifest.parquet"])).to_pylist()
    return [row["file_name"] for row in rows if hashlib.sha256(objects[row["file_name"]]).hexdigest() != row["sha256"]]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=SLOW) for n in range(2, 21))])
def test_of_two_runs_that_start_in_one_bucket_at_once_one_makes_everything(
    seed: int, s3: Bucket, sources: Path
) -> None:
    """A lock from an old listing, written whatever was there, let both end well; 7 of 60 objects were not the manifest's."""
    s3.behave(delay=0.15)
    url, offset = f"s3://videos/pair{seed}", random.Random(seed).uniform(0, 1.5)
    first = start(command(sources, url, "--gop", 4), s3.environment)
    time.sleep(offset)
    second = start(command(sources, url, "--gop", 8), s3.environment)
    told = ended(first, second)
    s3.behave()
    assert sorted(code for code, _ in told) == [0, 2], told
    loser = next(text for code, text in told if code == 2)
    assert "in use by process" in loser or "was made with different settings" in loser
    made = s3.objects(f"pair{seed}/")
    assert differing(made) == []
    gop = 4 if told[0][0] == 0 else 8
    assert json.loads(made[".vidprep/run.json"])["settings"]["encoder"]["gop"] == gop
    assert pq.read_schema(io.BytesIO(made["manifest.parquet"])).metadata[b"vidprep.fence"] == (
        next(name for name in made if "/lease-" in name)[-6:].lstrip("0").encode()
    )


@pytest.mark.long
@pytest.mark.parametrize("conditions", ["ignored", "refused"])
def test_a_store_without_conditional_writes_is_named_and_looked_at_again(
    conditions: str, s3: Bucket, sources: Path, tmp_path: Path
) -> None:
    s3.behave(conditions=conditions)
    env = hooked(tmp_path / "hook", f"importlib.import_module({points.LEASE_TIMES!r}).STORE_SETTLE_SECONDS = 3") | {
        name: s3.environment[name] for name in s3.environment if name.startswith("AWS_")
    }
    runs = [start(command(sources, f"s3://videos/{conditions}", "--gop", gop), env) for gop in (4, 8)]
    told = ended(*runs)
    assert sorted(code for code, _ in told) == [0, 2], told
    assert all("no conditional writes" in text for code, text in told if code == 0)
    assert differing(s3.objects(f"{conditions}/")) == []


@pytest.mark.long
@needs_namespaces
@pytest.mark.parametrize("flock", in_turn(FLOCKS, 2))
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=SLOW) for n in range(2, 21))])
def test_of_two_runs_on_two_hosts_one_makes_the_store_whatever_flock_does(
    seed: int, flock: str, sources: Path, tmp_path: Path
) -> None:
    """Where flock was local to a host both ended well, and the store had hundreds of faults."""
    made, env = tmp_path / "made", hooked(tmp_path / "hook", FLOCKS[flock])
    first = start(on_host("one", sources, made, "--quality", 70, verb="burst"), env)
    time.sleep(random.Random(seed).choice((0.0, random.Random(-seed).uniform(0, 1.0))))
    second = start(on_host("two", sources, made, "--quality", 80, verb="burst"), env)
    told = ended(first, second)
    assert sorted(code for code, _ in told) == [0, 2], told
    loser = next(text for code, text in told if code == 2)
    assert "in use by process" in loser or "was made with different settings" in loser
    assert leftovers(made) == []
    checked = transcode(made, verb="validate")
    assert (checked.code, "6 videos read again, 0 faults" in checked.err) == (0, True), checked.out


@pytest.mark.long
@needs_namespaces
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_run_that_was_paused_until_another_took_over_publishes_nothing_more(
    place: str, s3: Bucket, sources: Path, tmp_path: Path
) -> None:
    impatient = (
        f"m = importlib.import_module({points.LEASE_TIMES!r}); m.FOLDER_GONE_SECONDS = m.STORE_GONE_SECONDS = 2; "
        "m.FOLDER_BEAT_SECONDS = m.STORE_BEAT_SECONDS = 0.5"
    )
    keys = {name: value for name, value in s3.environment.items() if name.startswith("AWS_")}
    slow = fault(*points.RUN_JOB, at=-2, code="time.sleep(1.5)", only="child")
    paused_env = hooked(tmp_path / "one", impatient, FLOCKS["no flock"], more=[slow], **keys)
    made = str(tmp_path / "made") if place == "folder" else "s3://videos/paused"
    paused = start(on_host("one", sources, made, "--jobs", 1, "--gop", 4), paused_env)
    deadline = time.monotonic() + 60
    while not (s3.objects("paused/") if place == "bucket" else {*Path(made).glob("*.mp4")}).__len__() > 2:
        assert time.monotonic() < deadline and paused.poll() is None
        time.sleep(0.1)
    os.killpg(paused.pid, signal.SIGSTOP)
    try:
        env = hooked(tmp_path / "two", impatient, FLOCKS["no flock"], **keys)
        ((code, said),) = ended(start(on_host("two", sources, made, "--gop", 8, "--overwrite"), env))
        assert code == 0, said
        assert "held by process" in said and "on one since" in said
        after = s3.objects("paused/") if place == "bucket" else outputs(Path(made))
    finally:
        os.killpg(paused.pid, signal.SIGCONT)
    ((code, said),) = ended(paused)
    assert code == 3, said
    assert "was taken over by process" in said and "on two since" in said
    if place == "bucket":
        assert s3.objects("paused/") == after
        assert differing(after) == []
    else:
        assert outputs(Path(made)) == after
        rows = manifest(Path(made)).values()
        assert [row for row in rows if hashlib.sha256(after[row["file_name"]]).hexdigest() != row["sha256"]] == []


@pytest.mark.long
@needs_namespaces
@pytest.mark.parametrize("store", in_turn(["burst", "webdataset", "gulp", "tensor"], 4))
def test_a_run_that_wakes_inside_a_shard_changes_nothing_of_its_successor(
    store: str, sources: Path, tmp_path: Path
) -> None:
    """It cut the shard back to where it had begun to write: 24 of 30 videos of the other were gone."""
    impatient = (
        f"m = importlib.import_module({points.LEASE_TIMES!r}); m.FOLDER_GONE_SECONDS, m.FOLDER_BEAT_SECONDS = 1.5, 0.3"
    )
    stop = fault(
        *points.WRITTEN,
        at=40 if store == "webdataset" else 5,
        code="os.kill(os.getpid(), signal.SIGSTOP)",
        only="parent",
    )
    made = tmp_path / "made"
    env = hooked(tmp_path / "one", impatient, more=[stop])
    paused = start(on_host("one", sources, made, "--jobs", 1, "--format", store, verb="burst"), env)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{paused.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert time.monotonic() < deadline and paused.poll() is None
        time.sleep(0.1)
    try:
        env = hooked(tmp_path / "two", impatient)
        ((code, said),) = ended(start(on_host("two", sources, made, "--format", store, verb="burst"), env))
        assert code == 0, said
        after = outputs(made)
    finally:
        os.killpg(paused.pid, signal.SIGCONT)
    ((code, said),) = ended(paused)
    assert code == 3 and "was taken over by process" in said and "on two since" in said, said
    now = outputs(made)  # its own shard may have grown by bytes that no row names
    assert now.keys() == after.keys() and all(now[name].startswith(data) for name, data in after.items())
    checked = transcode(sources, made, "--cross-check", 0, verb="validate")
    assert checked.code == 0, checked.out


@pytest.mark.long
@pytest.mark.parametrize("place", in_turn(["folder", "bucket"], 2))
def test_a_run_that_was_killed_is_taken_up_at_once_on_its_own_host(
    place: str, s3: Bucket, sources: Path, tmp_path: Path
) -> None:
    keys = {name: value for name, value in s3.environment.items() if name.startswith("AWS_")}
    killed = fault(*points.JOURNAL_APPEND, at=3, code=KILL_ALL, only="parent")
    made = str(tmp_path / "made") if place == "folder" else "s3://videos/killed"
    env = hooked(tmp_path / "hook", FLOCKS["no flock"], more=[killed], **keys)
    assert transcode(sources, made, env=env).code == -9
    again = transcode(sources, made, env=hooked(tmp_path / "hook", FLOCKS["no flock"], **keys))
    assert again.code == 0, again.err
    assert "watching" not in again.err


@pytest.mark.long
def test_a_lease_is_judged_by_its_process_here_and_by_its_beat_elsewhere(tmp_path: Path) -> None:
    def place(holder: Holder) -> LeasePlace:
        folder = tmp_path / holder.token
        folder.mkdir()
        found = place_in(folder)
        found.gone_seconds = 1.0
        assert found.claim(holder, lambda _text: None)
        return found

    said: list[str] = []
    mine = myself(1)
    assert first_live_holder([place(mine)], said.append) == str(mine)
    others = {"token": "b", "started": "1"}, {"token": "c", "machine": "another boot"}, {"token": "d", "released": True}
    reused, elsewhere, released = (
        Holder(**{name: getattr(mine, name) for name in Holder.__slots__} | each) for each in others
    )
    assert (
        first_live_holder([place(reused), place(released)], said.append) is None
    )  # its number has another process now
    assert said == []
    far = place(elsewhere)
    assert first_live_holder([far], said.append) is None
    assert "watching for up to 1 s" in said[0]
    ticking = Ticking(far, elsewhere)
    assert (first_live_holder([ticking], said.append) or "").endswith("since 1999-01-01 00:00:00")


class Ticking(LeasePlace):
    """One whose holder counts on, and whose clock is years behind."""

    def __init__(self, place: LeasePlace, holder: Holder) -> None:
        self.__dict__ |= place.__dict__
        self._holder, self._reads = holder, 0

    def read(self) -> LeaseEntry | None:
        self._reads += 1
        if self._reads == 3:
            beaten: dict[str, Any] = {name: getattr(self._holder, name) for name in Holder.__slots__} | {
                "beat": 7,
                "since": "1999-01-01 00:00:00",
            }
            assert self.renew(Holder(**beaten))
        return super().read()


def test_of_many_that_claim_a_lease_at_once_one_gets_it_and_the_number_goes_up(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    place = place_in(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        for number in range(1, 6):
            claims = [threads.submit(place.claim, myself(number), lambda _text: None) for _ in range(8)]
            assert sum(claim.result() for claim in claims) == 1
            now = place.read()
            assert now is not None and now.number == number
    assert [path.name for path in (tmp_path / STATE_DIR).iterdir()] == ["lease-000005"]
    lease = Lease(place_in(tmp_path / "new"), "made", print)
    with pytest.raises(DestinationError, match="of number 1000000000000, which no run wrote"):
        lease.take(10**12)
    assert not place.claim(myself(3), lambda _text: None)  # it looked before, and comes too late
    assert [path.name for path in (tmp_path / STATE_DIR).iterdir()] == ["lease-000005"]


@pytest.mark.long
@needs_namespaces
def test_the_folder_that_is_full_is_named_not_the_bucket(s3: Bucket, tmp_path: Path) -> None:
    """A full TMPDIR was "no room left in s3://…", and the free bytes of TMPDIR were told as the bucket's."""
    src, temporary = make_clips(tmp_path / "src", 3, 8, size=(512, 512), noise=True), tmp_path / "tmp"
    temporary.mkdir()
    env = s3.environment | {"TMPDIR": str(temporary)}
    small = f"mount -t tmpfs -o size=1m none {temporary}"
    ((code, said),) = ended(start(mounted(small, src, "s3://videos/full", verb="burst"), env))
    assert code == 3, said
    assert f"no room left in {temporary} (TMPDIR), where outputs wait until they are in s3://videos/full" in said
    dry = transcode(src, "s3://videos/dry", "--dry-run", env=env, verb="burst")
    assert f"free in {temporary} (TMPDIR), where outputs wait" in dry.err
    assert s3.objects("dry/") == {}


@needs_namespaces
@pytest.mark.parametrize(("verb", "option"), [("report", "--out"), ("bench", "--out"), ("pack", "another folder")])
def test_a_read_only_folder_is_reported_with_the_remedy(verb: str, option: str, sources: Path, tmp_path: Path) -> None:
    """`report` decoded everything, and then ended in "[Errno 30] …/.report.html.partial"."""
    made = tmp_path / "made"
    made.mkdir()
    store = tmp_path / "store" if verb == "pack" else made
    assert transcode(sources, store, "--limit", 1).code == 0
    given = {"report": [made], "bench": [made, "--out", made], "pack": [store, made, "--to", "burst"]}[verb]
    read_only = f"mount --bind {made} {made} && mount -o remount,ro,bind {made}"
    ((code, said),) = ended(start(mounted(read_only, *given, verb=verb), environment()))
    assert code == 2 and "[Errno" not in said, said
    assert f"{made}: cannot be written: Read-only file system; give" in said and option in said


@pytest.mark.long
def test_a_bucket_that_is_not_there_is_named(s3: Bucket, sources: Path) -> None:
    for url in ("s3://no-such-bucket/made", "s3://videos-too"):
        ran = transcode(sources, url, env=s3.environment)
        assert ran.code == 2 and f"{url}/.vidprep/lease-000001: could not be written" in ran.err, ran.err


def test_a_run_at_work_that_sweeps_up_is_no_file_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another was about to claim with went with the leftovers; "cannot be written: No such file or directory" said nothing."""
    place, link = place_in(tmp_path), os.link
    held = myself(1)

    def swept(source: Path, target: Path) -> None:
        monkeypatch.undo()
        assert place.claim(held, print)
        source.unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", swept)
    with pytest.raises(DestinationError, match="in use by process"):
        Lease(place, "made", print).take()
