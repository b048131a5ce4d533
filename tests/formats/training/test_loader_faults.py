"""PrefetchLoader when something goes wrong: workers killed, errors, what is left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.formats.training.loading import BOTH, FRAME, children, located, names
from tests.helpers import open_files
from tests.sampling import in_turn
from vidprep.formats import PrefetchLoader, VideoDataset, processes as processes_module
from vidprep.formats.errors import CrashedError, SettingsError, StoreError
from vidprep.formats.stores._index import FrameIndex
from vidprep.formats.stores.encoded import VideoStore


@BOTH
def test_an_error_comes_with_its_batch_and_the_rest_goes_on(processes, store_of, tmp_path):
    folder = tmp_path / "hurt"
    shutil.copytree(store_of("burst"), folder)
    shard = folder / "data-00001-00000.bin"
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
    assert "data-00001-00000.bin: frame" in said[0][1]
    assert "is damaged" in said[0][1]
    assert len(names(seen)) == len(dataset) - 2


@pytest.mark.long
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


@pytest.mark.long
def test_messages_for_a_killed_worker_reach_no_other(store_of, monkeypatch):
    closed_early, killed = [], 0

    class Slow(processes_module.Channel):
        """Between asking for the descriptor and writing to it another thread runs."""

        def send(self, message):
            time.sleep(0.01)
            closed_early.append(self._socket.fileno() == -1)
            super().send(message)

    monkeypatch.setattr(processes_module, "Channel", Slow)
    with PrefetchLoader(VideoDataset(store_of("h264"), 4), 2) as loader:
        for number, _ in enumerate(loader):
            if number % 5 == 1 and (alive := children()):
                random.Random(number).choice(alive).kill()
                killed += 1
    assert killed > 2 and closed_early and not any(closed_early)


@pytest.mark.long
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


@pytest.mark.long
def test_workers_that_cannot_start_are_an_error_at_once(store_of, capfd):
    loader = PrefetchLoader(VideoDataset(AbsentStore(store_of("h264")), 4), 2)
    running = iter(loader)
    for _ in range(3):
        with pytest.raises(CrashedError, match="a worker cannot go on: RuntimeError: no such thing here"):
            next(running)
    loader.close()
    assert capfd.readouterr().err == ""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for open files in /proc")
@pytest.mark.parametrize("kind", in_turn(["burst", "h264"], 2))
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
        assert threading.active_count() == threads, "a thread in a decoder kills the program that ends around it"
        del loader, running
        assert children() == []
    with PrefetchLoader(VideoDataset(folder, 4), 2) as loader:
        next(iter(loader))
    assert threading.active_count() == threads
    del loader
    assert [path for path in open_files(folder) if path.startswith(str(folder))] == []
    assert len(open_files()) == len(everything), (everything, open_files())


@BOTH
def test_a_loader_is_of_one_process_and_not_used_when_closed(processes, store_of):
    loader = PrefetchLoader(VideoDataset(store_of("burst"), 4), 4, processes=processes)
    running = iter(loader)
    next(running)
    workers = {each.pid for each in children()}
    assert len(workers) == (2 if processes else 0)
    child = os.fork()
    if child == 0:  # it must not wait for ever, nor take what is its parent's
        said = 0
        for use in (lambda: next(running), lambda: iter(loader)):
            try:
                use()
            except SettingsError as error:
                said += f"belongs to process {os.getppid()}" in str(error)
        loader.close()
        os._exit(said)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert {each.pid for each in children()} == workers, "a fork that closes the loader ends no worker of its parent"
    assert len(list(running)) == len(loader) - 1
    loader.close()
    for use in (lambda: next(running), lambda: iter(loader)):
        with pytest.raises(SettingsError, match="this loader is closed"):
            use()


@pytest.mark.long
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_the_program_that_had_them(signal_number, store_of):
    script = (
        "import sys, time; from vidprep.formats import *\n"
        "loader = PrefetchLoader(VideoDataset(sys.argv[1], 4), 2)\n"
        "for batch in loader:\n    print('going', flush=True); time.sleep(60)"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", script, str(store_of("burst"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "going\n"
    workers = psutil.Process(program.pid).children()
    assert len(workers) == 2
    program.send_signal(signal_number)
    _, err = program.communicate(timeout=300)
    assert err.count("Traceback") <= 1
    _, alive = psutil.wait_procs(workers, timeout=300)
    assert alive == []


@pytest.mark.long
def test_a_loader_that_is_not_closed_ends_with_its_program(store_of, tmp_path):
    script = (
        "import sys; from vidprep.formats import *\n"
        "for processes in (True, False):\n"
        "    loader = PrefetchLoader(VideoDataset(sys.argv[1], 4), 2, processes=processes, events=sys.argv[2])\n"
        "    print(len(next(iter(loader))['id']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(store_of("burst")), tmp_path / "events"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n2\n", "")
    said = [json.loads(line)["event"] for line in (tmp_path / "events").read_text().splitlines()]
    assert sorted(said) == ["batch", "batch", "closed", "closed"], "and says that it is over"


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
