"""PrefetchLoader: every sequence once, in order, whatever happens to its workers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.helpers import open_files, with_peers
from vidprep.formats import PrefetchLoader, VideoDataset, open_store
from vidprep.formats.errors import CrashedError, SettingsError, StoreError
from vidprep.formats.files.local import memory_bytes
from vidprep.formats.stores.encoded import VideoReader, VideoStore
from vidprep.formats.stores.index import FrameIndex
from vidprep.formats.training import worker_pool as loader_crew
from vidprep.formats.training.cache import FrameCache

BOTH = pytest.mark.parametrize("processes", [True, False], ids=["processes", "threads"])
FRAME = 64 * 96 * 3


def names(batches) -> list[tuple[str, int]]:
    """(video, first frame) of every sequence of the batches."""
    return [
        (id_, int(numbers[0])) for batch in batches for id_, numbers in zip(batch["id"], batch["indexes"], strict=True)
    ]


def located(dataset, order) -> list[tuple[str, int]]:
    return [(id_, int(numbers[0])) for id_, numbers in map(dataset.locate, order)]


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "loader_worker" in " ".join(child.cmdline()):
                found.append(child)
    return found


# ------------------------------------------------------------------------------------------------ order and content


@pytest.mark.parametrize(
    ("kind", "processes", "cache_frames"),
    [("burst", False, 100), ("burst", True, 100_000), ("h264", True, 100), ("h264", False, 100_000), ("tensor", False, 100),
     ("webdataset", False, 100_000), ("gulp", False, 100)],
)  # fmt: skip
def test_an_epoch_is_every_sequence_once_in_a_known_order(kind, processes, cache_frames, store_of):
    dataset = VideoDataset(store_of(kind), 4, 2)
    store = open_store(store_of(kind))
    with PrefetchLoader(
        dataset, 3, shuffle=True, seed=9, workers=3, processes=processes, cache_bytes=cache_frames * FRAME
    ) as loader:
        assert len(loader) == -(-len(dataset) // 3)
        orders = []
        for _ in range(3):
            seen = []
            for batch in loader:
                assert batch["frames"].shape == (len(batch["id"]), 4, 64, 96, 3)
                for id_, numbers, frames in zip(batch["id"], batch["indexes"], batch["frames"], strict=True):
                    assert np.array_equal(frames, store[id_].frames(numbers))
                assert batch["label"] == ["sub"] * len(batch["id"])
                assert batch["timestamps"].shape == (len(batch["id"]), 4)
                seen.append(batch)
            orders.append(names(seen))
    every = sorted(located(dataset, range(len(dataset))))
    assert all(sorted(order) == every for order in orders)
    assert orders[0] != orders[1] != orders[2]
    with PrefetchLoader(dataset, 3, shuffle=True, seed=9, workers=1, processes=False) as again:
        assert names(again) == orders[0]
        assert names(again) == orders[1]
    with PrefetchLoader(dataset, 3, shuffle=True, seed=10, workers=1, processes=False) as other:
        assert names(other) != orders[0]


@BOTH
def test_transforms_are_those_of_the_dataset(processes, store_of):
    options = {"crop": (40, 56), "random_crop": True, "flip": True, "dtype": "float32", "normalize": True, "size": 70}
    dataset = VideoDataset(store_of("h264"), 4, **options)
    with PrefetchLoader(dataset, 5, shuffle=True, processes=processes) as loader:
        for epoch in range(2):
            dataset.set_epoch(epoch)
            at = {located(dataset, [n])[0]: n for n in range(len(dataset))}
            for batch in loader:
                for name, frames in zip(names([batch]), batch["frames"], strict=True):
                    assert np.array_equal(frames, dataset[at[name]]["frames"])


def test_a_plain_order_drop_last_and_a_sampler(store_of):
    dataset = VideoDataset(store_of("burst"), 6)
    count = len(dataset)
    with PrefetchLoader(dataset, 7, drop_last=True, processes=False) as loader:
        assert names(loader) == located(dataset, range(count // 7 * 7))
        assert len(loader) == count // 7

    class Sampler:
        def __init__(self):
            self.epochs = []

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

        def __iter__(self):
            return iter([5, 5, 3, self.epochs[-1]])

    sampler = Sampler()
    with PrefetchLoader(dataset, 3, sampler=sampler, processes=False) as loader:
        assert names(loader) == located(dataset, [5, 5, 3, 0])
        assert names(loader) == located(dataset, [5, 5, 3, 1])
    assert sampler.epochs == [0, 1]


@BOTH
def test_a_loop_that_is_left_goes_on_with_the_next_epoch(processes, store_of):
    dataset = VideoDataset(store_of("burst"), 4)
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes) as loader:
        epochs = [names(loader) for _ in range(4)]
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes) as loader:
        left = iter(loader)
        assert names([next(left), next(left)]) == epochs[0][:8]
        assert names(loader) == epochs[1]
        with pytest.raises(SettingsError, match="a newer iteration over this loader began"):
            next(left)
        for batch in loader:
            assert names([batch]) == epochs[2][:4]
            break
        assert names(loader) == epochs[3]


# ------------------------------------------------------------------------------------------------ resume


@pytest.mark.parametrize(("given", "processes"), [(0, False), (1, False), (5, True), (12, False)])
def test_a_state_goes_on_where_it_was_saved(given, processes, store_of):
    dataset = VideoDataset(store_of("burst"), 4, 2, crop=32, random_crop=True)
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "processes": processes}
    with PrefetchLoader(dataset, **options) as loader:
        whole = [[(batch["frames"].tobytes(), names([batch])) for batch in loader] for _ in range(3)]
    with PrefetchLoader(dataset, **options) as loader:
        first = [batch["frames"].tobytes() for batch in loader]
        running = iter(loader)
        for _ in range(given):
            next(running)
        state = json.loads(json.dumps(loader.state_dict()))
    assert first == [frames for frames, _ in whole[0]]
    with PrefetchLoader(dataset, **options) as loader:
        loader.load_state_dict(state)
        assert [(batch["frames"].tobytes(), names([batch])) for batch in loader] == whole[1][given:]
        assert [(batch["frames"].tobytes(), names([batch])) for batch in loader] == whole[2]
        loader.load_state_dict(state)
        assert names(loader) == [name for _, batch in whole[1][given:] for name in batch]


def test_a_state_of_other_batches_is_refused(store_of):
    dataset = VideoDataset(store_of("burst"), 4)
    state = PrefetchLoader(dataset, 4, shuffle=True, seed=3, processes=False).state_dict()
    cropped = PrefetchLoader(VideoDataset(store_of("burst"), 4, crop=32), 4, shuffle=True, seed=3, processes=False)
    with pytest.raises(SettingsError, match=r"saved with transform .*crop=None"):
        cropped.load_state_dict(state)
    for wrong in (None, {}, state | {"epoch": -1}, state | {"batches_given": 1.5}, state | {"batches_given": 10**9}):
        with pytest.raises(
            SettingsError, match=r"is no state of a loader|give a whole number|an epoch of this loader has"
        ):
            PrefetchLoader(dataset, 4, shuffle=True, seed=3, processes=False).load_state_dict(wrong)
    for other in ({"batch_size": 5}, {"seed": 4}, {"shuffle": False}, {"drop_last": True}):
        loader = PrefetchLoader(dataset, **({"batch_size": 4, "shuffle": True, "seed": 3, "processes": False} | other))
        with pytest.raises(SettingsError, match=next(iter(other))):
            loader.load_state_dict(state)


# ------------------------------------------------------------------------------------------------ what is decoded once


def test_what_is_decoded_once_serves_every_request(store_of, monkeypatch):
    """Overlapping sequences in random order want each frame up to 8 times; with room for all, each is made once."""
    made: list[int] = []
    write = VideoReader._write
    monkeypatch.setattr(VideoReader, "_write", lambda self, frame, row: (made.append(1), write(self, frame, row))[1])
    dataset = VideoDataset(store_of("h264"), 8)
    frames = int(dataset.store.sizes()[:, 0].sum())
    with PrefetchLoader(dataset, 4, shuffle=True, workers=1, processes=False) as loader:
        assert len(names(loader)) * 8 > 5 * frames
        assert len(made) == frames
        names(loader)
        assert len(made) == frames, "the next epoch finds all of them"
    made.clear()
    for index in range(len(dataset)):
        _ = dataset[index]
    one_by_one = len(made)
    made.clear()
    # Room for a third of the frames, beside the least of batches.
    cache_bytes = 3 * 4 * 8 * FRAME + frames // 3 * FRAME + 3 * 4096
    with PrefetchLoader(dataset, 4, shuffle=True, workers=1, processes=False, cache_bytes=cache_bytes) as loader:
        assert len(names(loader)) == len(dataset)
    assert len(made) < 0.6 * one_by_one


def test_the_cache_is_as_good_as_one_that_knows_the_future():
    """Against Belady's rule counted out: of what is kept and what comes, that goes whose next use is farthest."""
    rng = random.Random(4)
    for room in (1, 3, 8, 20):
        order = [rng.randrange(30) for _ in range(600)]
        cache, misses = FrameCache(room * 12), 0
        for position, number in enumerate(order):
            cache.announce(("v", number), position)
        for number in order:
            found = cache.take(("v", number))
            if found is None:
                misses += 1
                place = cache.place(("v", number), (2, 2, 3))
                if place is not None:
                    place[...] = number
            else:
                assert (found == number).all()
            assert cache.size_bytes <= room * 12
        kept: set[int] = set()
        due = 0
        for position, number in enumerate(order):
            if number in kept:
                continue
            due += 1
            kept.add(number)
            if len(kept) > room:
                rest = order[position + 1 :]
                kept.remove(max(kept, key=lambda one: rest.index(one) if one in rest else len(rest)))
        assert misses == due


@BOTH
def test_f27_memory_stays_within_its_bound(processes, store_of, tmp_path):
    """A consumer that never comes back for more, and one that is slow."""
    dataset = VideoDataset(store_of("tensor"), 8)
    cache_bytes, said = 150 * FRAME, tmp_path / "events"
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes, cache_bytes=cache_bytes, events=said) as loader:
        for _ in range(2):
            for number, _ in enumerate(loader):
                if number % 5 == 0:
                    time.sleep(0.05)
        arena = loader._places * loader._batch_bytes
    told = [line for line in map(json.loads, said.read_text().splitlines()) if line["event"] == "batch"]
    assert max(line["cache_bytes"] for line in told) + arena <= cache_bytes
    assert max(line["cache_bytes"] for line in told) > 0.5 * (cache_bytes - arena), "and it is used"


def test_too_little_room_is_refused_with_what_is_needed(store_of):
    dataset = VideoDataset(store_of("burst"), 8)
    with pytest.raises(SettingsError, match=r"3 batches of 1,179,648 bytes must fit: give 3,538,944 or more"):
        PrefetchLoader(dataset, 8, cache_bytes=1_000_000)
    with pytest.raises(SettingsError, match="no full batch of 1000"):
        PrefetchLoader(dataset, 1000, drop_last=True)
    with pytest.raises(SettingsError, match="give one of them"):
        PrefetchLoader(dataset, 2, shuffle=True, sampler=[1])
    for options, said in (
        ({"workers": 0}, "workers is 0"), ({"batch_size": "4"}, "batch_size is '4'; give a whole number, 1 or more"),
        ({"seed": -1}, "seed is -1"), ({"sampler": 5}, "sampler is 5"), ({"sampler": iter([1, 2])}, "anew in each epoch"),
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=said):
            PrefetchLoader(dataset, **options)
    with pytest.raises(SettingsError, match="is no VideoDataset"):
        PrefetchLoader(store_of("burst"), 2)
    for sampler, said in (
        ([0, 10**6], "the sampler gives 1000000"),
        ([[0, 1], [2]], r"the sampler gives \[0, 1\]"),
        ([0, -1], "gives -1"),
    ):
        with (
            PrefetchLoader(dataset, 2, sampler=sampler, processes=False) as loader,
            pytest.raises(SettingsError, match=said),
        ):
            iter(loader)


def test_no_shared_memory_is_told_with_what_to_do(store_of):
    with pytest.raises(SettingsError, match="smaller cache_bytes or processes=False"):
        PrefetchLoader(VideoDataset(store_of("burst"), 8), 1 << 22, cache_bytes=1 << 60)


@BOTH
def test_batches_that_are_kept_stay_as_they_were(processes, store_of):
    dataset = VideoDataset(store_of("tensor"), 4)
    with PrefetchLoader(dataset, 4, cache_bytes=8 * 4 * 4 * FRAME, processes=processes) as loader:
        kept = [(batch["frames"], batch["frames"].copy()) for batch in loader]
        kept += [(batch["frames"], batch["frames"].copy()) for batch in loader]
    assert len(kept) > 30
    assert all(np.array_equal(now, then) for now, then in kept), "also after the loader is closed"


@BOTH
def test_memory_is_flat_over_epochs(processes, store_of):
    dataset = VideoDataset(store_of("h264"), 4, 1, 4)
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes, cache_bytes=200 * FRAME) as loader:
        seen = []
        for epoch in range(51):
            for _ in loader:
                pass
            if epoch in (3, 50):
                seen.append((memory_bytes(), len(open_files()), threading.active_count()))
    (early, files, threads), (late, later_files, later_threads) = seen
    assert late - early < 4_000_000
    assert later_files <= files
    assert later_threads == threads


# ------------------------------------------------------------------------------------------------ what goes wrong


@BOTH
def test_an_error_comes_with_its_batch_and_the_rest_goes_on(processes, store_of, tmp_path):
    folder = tmp_path / "hurt"
    shutil.copytree(store_of("burst"), folder)
    shard = folder / "data-00000.bin"
    data = bytearray(shard.read_bytes())
    data[FrameIndex(folder, "burst").places("sub/c02").offsets[9] + 200] ^= 0xFF
    shard.write_bytes(data)
    dataset = VideoDataset(folder, 4, 1, 4)
    hurt = []
    for index in range(len(dataset)):
        try:
            dataset[index]
        except StoreError:
            hurt.append(index // 2)
    assert len(hurt) == 1
    with PrefetchLoader(dataset, 2, processes=processes) as loader:
        running, seen, said = iter(loader), [], []
        while True:
            try:
                seen.append(next(running))
            except StoreError as error:
                said.append((len(seen), str(error)))
            except StopIteration:
                break
    assert [number for number, _ in said] == hurt
    assert "data-00000.bin: frame" in said[0][1]
    assert "is damaged" in said[0][1]
    assert len(names(seen)) == len(dataset) - 2


def test_a_killed_worker_loses_and_doubles_nothing(store_of):
    dataset = VideoDataset(store_of("h264"), 4)
    with PrefetchLoader(dataset, 4, shuffle=True, seed=2, processes=False) as loader:
        due = [(batch["frames"].copy(), names([batch])) for _ in range(4) for batch in loader]
    with PrefetchLoader(dataset, 4, shuffle=True, seed=2, cache_bytes=300 * FRAME) as loader:
        seen, killed = [], 0
        for _ in range(4):
            for number, batch in enumerate(loader):
                if number % 6 == 3:
                    os.kill(random.Random(number).choice(children()).pid, signal.SIGKILL)
                    killed += 1
                seen.append((batch["frames"].copy(), names([batch])))
    assert killed > 8
    assert [names for _, names in seen] == [names for _, names in due]
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(seen, due, strict=True))


class DeadlyStore(VideoStore):
    """Kills the process that reads one of its videos."""

    def fill(self, id_, numbers, rows):
        if id_ == "sub/c01" and 3 in numbers:
            os.kill(os.getpid(), signal.SIGKILL)
        super().fill(id_, numbers, rows)


class AbsentStore(VideoStore):
    """Cannot be read back from a pickle in another process."""

    def __setstate__(self, state):
        raise RuntimeError("no such thing here")


def test_what_was_meant_for_a_killed_worker_reaches_no_other(store_of, monkeypatch):
    closed_early = []

    class Slow(Connection):
        """Between asking for the descriptor and writing to it another thread runs."""

        def _send(self, buf, write=os.write):
            descriptor = self.fileno()
            time.sleep(0.01)
            closed_early.append(self.closed or self.fileno() != descriptor)
            if not closed_early[-1]:
                super()._send(buf, write)

    def pipe():
        ours, theirs = Pipe()
        return Slow(os.dup(ours.fileno())), theirs

    monkeypatch.setattr(loader_crew, "Pipe", pipe)
    with PrefetchLoader(VideoDataset(store_of("h264"), 4), 2) as loader:
        for number, _ in enumerate(loader):
            if number % 5 == 1 and (alive := children()):
                random.Random(number).choice(alive).kill()
    assert len(closed_early) > 20
    assert not any(closed_early)


def test_a_sequence_that_kills_its_worker_fails_alone(store_of):
    dataset = VideoDataset(DeadlyStore(store_of("h264")), 4, 1, 4)
    with PrefetchLoader(dataset, 2, processes=True, cache_bytes=1_000_000) as loader:
        running, seen, said = iter(loader), [], []
        while True:
            try:
                seen.append(next(running))
            except CrashedError as error:
                said.append(str(error))
            except StopIteration:
                break
    assert len(said) == 1
    assert "3 workers died at frames 0 to 3 of sub/c01, the last by signal 9" in said[0]
    assert len(names(seen)) == len(dataset) - 2


def test_workers_that_cannot_start_are_an_error_at_once(store_of, capfd):
    loader = PrefetchLoader(VideoDataset(AbsentStore(store_of("h264")), 4), 2)
    with pytest.raises(CrashedError, match="a worker ended with exit code 1; what it said stands on stderr"):
        next(iter(loader))
    loader.close()
    assert "no such thing here" in capfd.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for open files in /proc")
@pytest.mark.parametrize("kind", ["burst", "h264"])
def test_nothing_is_left_behind(kind, store_of, without_gc):
    folder = store_of(kind)
    with PrefetchLoader(VideoDataset(folder, 4), 2) as loader:  # what is opened once in a process is open after this
        next(iter(loader))
    del loader
    threads, everything = threading.active_count(), open_files()
    for processes in (True, False):
        loader = PrefetchLoader(VideoDataset(folder, 4), 2, processes=processes)
        running = iter(loader)
        next(running)
        assert len(children()) == (2 if processes else 0)
        loader.close()
        loader.close()
        del loader, running
        assert children() == []
    with PrefetchLoader(VideoDataset(folder, 4), 2) as loader:
        next(iter(loader))
    del loader
    deadline = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() == threads
    assert [path for path in open_files(folder) if path.startswith(str(folder))] == []
    assert len(open_files()) == len(everything), (everything, open_files())


@BOTH
def test_a_loader_is_of_one_process_and_not_used_when_closed(processes, store_of):
    loader = PrefetchLoader(VideoDataset(store_of("burst"), 4), 4, processes=processes)
    running = iter(loader)
    next(running)
    child = os.fork()
    if child == 0:  # it must not wait for ever, nor take what is its parent's
        said = 0
        for use in (lambda: next(running), lambda: iter(loader)):
            try:
                use()
            except SettingsError as error:
                said += f"belongs to process {os.getppid()}" in str(error)
        os._exit(said)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert len(list(running)) == len(loader) - 1
    loader.close()
    for use in (lambda: next(running), lambda: iter(loader)):
        with pytest.raises(SettingsError, match="this loader is closed"):
            use()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_the_program_that_had_them(signal_number, store_of):
    script = (
        "import sys, time; from vidprep.formats import *\n"
        "loader = PrefetchLoader(VideoDataset(sys.argv[1], 4), 2)\n"
        "for batch in loader:\n    print('going', flush=True); time.sleep(60)"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", script, str(store_of("burst"))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "going\n"
    workers = psutil.Process(program.pid).children()
    assert len(workers) == 2
    program.send_signal(signal_number)
    _, err = program.communicate(timeout=20)
    assert err.count("Traceback") <= 1
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []


def test_a_loader_that_is_not_closed_ends_with_its_program(store_of, tmp_path):
    script = (
        "import sys; from vidprep.formats import *\n"
        "for processes in (True, False):\n"
        "    loader = PrefetchLoader(VideoDataset(sys.argv[1], 4), 2, processes=processes, events=sys.argv[2])\n"
        "    print(len(next(iter(loader))['id']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(store_of("burst")), tmp_path / "events"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n2\n", "")
    said = [json.loads(line)["event"] for line in (tmp_path / "events").read_text().splitlines()]
    assert sorted(said) == ["batch", "batch", "closed", "closed"], "and says that it is over"


# ------------------------------------------------------------------------------------------------ events


@BOTH
def test_events_tell_every_batch(processes, store_of, tmp_path):
    dataset = VideoDataset(store_of("h264"), 4)
    said = tmp_path / "events.jsonl"
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes, events=said) as loader:
        for _ in range(2):
            for _ in loader:
                pass
    *lines, last = [json.loads(line) for line in said.read_text().splitlines()]
    assert last["event"] == "closed"
    assert [(line["epoch"], line["batch"]) for line in lines] == [(e, n) for e in range(2) for n in range(len(loader))]
    assert sum(line["frames"] for line in lines) == 2 * 4 * len(dataset)
    assert all(0 <= line["hits"] <= line["frames"] for line in lines)
    second = [line for line in lines if line["epoch"] == 1]
    assert sum(line["hits"] for line in second) == sum(line["frames"] for line in second), (
        "all of it fits, so all is there"
    )
    assert all(
        line["wait_ms"] >= 0 and line["memory_bytes"] > 10_000_000 and line["ready"] <= line["places"] for line in lines
    )


def test_a_pipe_that_nobody_reads_holds_up_nothing(store_of, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with PrefetchLoader(VideoDataset(store_of("tensor"), 4), 1, processes=False, events=pipe) as loader:
        for _ in range(30):
            for _ in loader:
                pass
        with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
            lines = [json.loads(line) for line in reader.read(1 << 20).splitlines()]
    assert len(lines) > 100
    assert {line["event"] for line in lines} == {"batch"}
    with (
        pytest.warns(RuntimeWarning, match="/dev/full: no more events are written: No space left on device"),
        PrefetchLoader(VideoDataset(store_of("tensor"), 4), processes=False, events="/dev/full") as loader,
    ):
        assert len(list(loader)) == len(loader)
    with pytest.raises(SettingsError, match="events is 5; give the path"):
        PrefetchLoader(VideoDataset(store_of("tensor"), 4), events=5)
    with pytest.raises(SettingsError, match="events cannot be written"):
        PrefetchLoader(VideoDataset(store_of("tensor"), 4), events=tmp_path / "absent" / "file")


# ------------------------------------------------------------------------------------------------ soak


def soak(folder: Path, seconds: float) -> tuple[int, int]:
    """Epochs and kills: workers are killed now and then, and each epoch is every sequence once, with the right frames."""
    dataset = VideoDataset(folder, 4)
    every = sorted(located(dataset, range(len(dataset))))
    right = {name: dataset[n]["frames"].tobytes() for n, name in enumerate(located(dataset, range(len(dataset))))}
    rng, memory, epochs, kills = random.Random(1), [], 0, 0
    over = time.monotonic() + seconds
    with PrefetchLoader(dataset, 4, shuffle=True, cache_bytes=400 * FRAME) as loader:
        while time.monotonic() < over:
            seen = []
            for batch in loader:
                assert [frames.tobytes() for frames in batch["frames"]] == [right[name] for name in names([batch])]
                seen += names([batch])
                if rng.random() < 0.01 and (alive := children()):
                    rng.choice(alive).kill()
                    kills += 1
            assert sorted(seen) == every
            epochs += 1
            if not kills % 4:
                memory.append((psutil.Process().memory_info().rss, len(open_files())))
    early, late = memory[len(memory) // 4], memory[-1]
    assert late[0] - early[0] < 8_000_000
    assert late[1] - early[1] <= 2
    return epochs, kills


@pytest.mark.slow
def test_workers_that_are_killed_all_the_time(store_of):
    epochs, kills = soak(store_of("h264"), 15)
    assert epochs > 8
    assert kills > 4


@pytest.mark.slow
def test_half_an_hour_of_killed_workers(store_of):
    epochs, kills = soak(store_of("h264"), 1800)
    print(f"{epochs} epochs, {kills} workers killed")
    assert kills > 500


# ------------------------------------------------------------------------------------------------ devices

ON_A_DEVICE = """
import sys, torch
from vidprep.formats import PrefetchLoader, VideoDataset
from vidprep.formats.errors import MissingError
dataset = VideoDataset(sys.argv[1], 4)
for name in ("cuda", "cpu", "nonsense"):
    try:
        with PrefetchLoader(dataset, 2, processes=False, device=name) as loader:
            batch = next(iter(loader))
            assert batch["frames"].device.type == name
            assert (batch["frames"].cpu().numpy()[1] == dataset[1]["frames"]).all()
            print(name, "works")
    except MissingError as error:
        print(name, "is missing:", error)
print("there" if torch.cuda.is_available() else "absent")
"""


def test_batches_come_on_the_device_or_it_is_said_that_there_is_none(store_of):
    said = with_peers(ON_A_DEVICE, store_of("burst"), needs=["torch"]).splitlines()
    assert said[0].startswith(
        "cuda works" if said[-1] == "there" else "cuda is missing: torch finds no device 'cuda' here"
    )
    assert said[1] == "cpu works"
    assert said[2].startswith("nonsense is missing")


@pytest.mark.logs_errors
def test_hardware_that_is_not_there_is_told(store_of):
    try:
        store = open_store(store_of("h264"), hardware="cuda")
    except StoreError as error:
        assert "cannot be decoded by cuda here" in str(error)
        assert "leave hardware out" in str(error)
    else:
        plain = open_store(store_of("h264"))
        for id_ in plain.ids:
            error = store[id_].frames().astype(float) - plain[id_].frames()
            assert 10 * np.log10(255**2 / np.mean(error**2)) > 40
    with pytest.raises(StoreError, match="hardware is for encoded videos"):
        open_store(store_of("burst"), hardware="cuda")
