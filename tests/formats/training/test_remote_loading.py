"""Training from stores behind URLs: the same items by torch and by PrefetchLoader, each once, whatever the server does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tests.formats.training.test_dataset import UNDER_TORCH
from tests.helpers import make_clips, transcode, with_peers
from tests.web import Web, web_of
from vidprep.formats import PrefetchLoader, VideoDataset, open_store
from vidprep.formats.stores.base import ComingClip
from vidprep.formats.training._worker import Ahead, FetchAhead
from vidprep.formats.training.dataset import Clip

KINDS = ("h264", "shards", "burst", "gulp", "webdataset", "tensor")


@pytest.fixture
def web(tmp_path: Path, store_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for kind in KINDS:
        store_of(kind)
    with web_of(store_of("h264").parent, tmp_path / "web") as found:
        yield found


@pytest.mark.long
def test_torch_gets_the_same_from_a_url_forked_and_spawned(web: Web, tmp_path: Path) -> None:
    script = tmp_path / "loads.py"  # spawn needs a file
    script.write_text(UNDER_TORCH)
    web.behave(every=7, delay=0.002)
    said = with_peers(script, f"{web.url}/shards", f"{web.url}/burst", needs=["torch"])
    assert said.count("equal") == 2


@pytest.mark.parametrize("processes", [True, False], ids=["processes", "threads"])
def test_a_loader_has_the_same_batches_by_few_requests(
    processes: bool, web: Web, store_of: Callable[[str], Path]
) -> None:
    here = VideoDataset(store_of("shards"), 4, step=4)
    there = VideoDataset(f"{web.url}/shards", 4, step=4)
    web.behave(every=9)
    before = len(web.requests())
    with (
        PrefetchLoader(here, 3, shuffle=True, workers=2, processes=processes) as one,
        PrefetchLoader(there, 3, shuffle=True, workers=2, processes=processes) as other,
    ):
        for _ in range(2):
            for batch, same in zip(one, other, strict=True):
                assert batch["id"] == same["id"] and np.array_equal(batch["frames"], same["frames"])
                assert np.array_equal(batch["indexes"], same["indexes"])
    answered = [each for each in web.requests()[before:] if each[3] == "ok"]
    assert len(answered) <= 2 * len(here)


@pytest.mark.long
def test_runs_take_far_fewer_requests(web: Web, store_of: Callable[[str], Path], tmp_path: Path) -> None:
    src = make_clips(tmp_path / "src", 12, 64, size=(320, 240))
    folder = store_of("h264").parent / "large"
    assert transcode(src, folder, "--format", "burst", "--quality", 95, verb="burst").code == 0
    dataset = VideoDataset(f"{web.url}/large", 4, step=4)
    counts = {}
    for shuffle in (True, "runs"):
        before, seen = len(web.requests()), list[tuple[str, int]]()
        with PrefetchLoader(dataset, 4, shuffle=shuffle, workers=1, processes=False) as loader:
            for batch in loader:
                seen += [(id_, int(numbers[0])) for id_, numbers in zip(batch["id"], batch["indexes"], strict=True)]
        assert len(seen) == len(set(seen)) == len(dataset)
        counts[shuffle] = len(web.requests()) - before
    assert 3 * counts["runs"] <= counts[True], counts


RANK = """
import json, os, sys
from vidprep.formats import PrefetchLoader, VideoDataset
from vidprep.formats.training import loader as loader_module
loader_module.RUN_BYTES = 10_000
url, rank, world_size, shuffle, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
dataset = VideoDataset(url, 2, rank=rank, world_size=world_size, tail="pad")
loader = PrefetchLoader(dataset, 3, shuffle="runs" if shuffle == "runs" else True, workers=1, window_bytes=30_000)
start = 0
if os.path.exists(path) and (lines := open(path).read().splitlines()):
    state = json.loads(lines[-1])["state"]
    loader.load_state_dict(state)
    start = state["epoch"]
with open(path, "a") as file:
    for epoch in range(start, 3):
        loader.set_epoch(epoch)
        for batch in loader:
            items = [(id_, int(numbers[0])) for id_, numbers, real in
                     zip(batch["id"], batch["indexes"], batch["item_mask"], strict=True) if real]
            file.write(json.dumps({"epoch": epoch, "items": items, "state": loader.state_dict()}) + "\\n")
            file.flush()
loader.close()
"""


@pytest.mark.long
@pytest.mark.parametrize("shuffle", ["items", "runs"])
def test_four_ranks_that_are_killed_and_resumed_see_every_item_once_in_each_epoch(
    shuffle: str, web: Web, tmp_path: Path
) -> None:
    web.behave(every=11, delay=0.001)
    rng, seen = random.Random(shuffle), Counter[tuple[int, str, int]]()
    for rank in range(4):
        path = tmp_path / f"rank-{rank}"
        command = [sys.executable, "-c", RANK, f"{web.url}/shards", str(rank), "4", shuffle, str(path)]
        process = subprocess.Popen(command)
        after = rng.randint(1, 12)
        while process.poll() is None and (not path.exists() or path.read_text().count("\n") < after):
            pass
        process.kill()
        process.wait()
        whole = "".join(line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))
        path.write_text(whole)
        assert subprocess.run(command, check=False, timeout=300).returncode == 0
        for line in path.read_text().splitlines():
            said = json.loads(line)
            seen.update((said["epoch"], *item) for item in said["items"])
    whole_set = VideoDataset(f"{web.url}/shards", 2)
    due = {(id_, int(numbers[0])) for id_, numbers in map(whole_set.locate, range(len(whole_set)))}
    assert {each[1:] for each in seen} == due and len(seen) == 3 * len(due) and set(seen.values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_random_sequences_of_every_format_are_equal_whatever_the_server_does(
    kind: str, web: Web, store_of: Callable[[str], Path], tmp_path: Path
) -> None:
    here, there = open_store(store_of(kind)), open_store(f"{web.url}/{kind}", cache_dir=tmp_path / "copies")
    rng = np.random.default_rng(1)
    ids = list(here.ids)
    web.behave(every=15)
    for number in range(400):
        if number == 350:
            web.behave(every=5, kinds="rc", delay=0.2)
        if number == 360:
            web.behave(every=30, kinds="s")
        id_ = ids[int(rng.integers(len(ids)))]
        first = int(rng.integers(len(here[id_]) - 8))
        assert np.array_equal(here[id_].frames(range(first, first + 8)), there[id_].frames(range(first, first + 8)))


TEN_THOUSAND = """
import sys
import threading
import numpy as np
from torch.utils.data import DataLoader
from vidprep.formats import VideoDataset

if __name__ == "__main__":
    here, there = VideoDataset(sys.argv[1], 8), VideoDataset(sys.argv[2], 8)
    known = {}
    for method in ("fork", "spawn"):
        items = np.random.default_rng(1).integers(len(here), size=10_000).tolist()
        loader = DataLoader(there, 32, sampler=items, num_workers=4, multiprocessing_context=method)
        seen = 0
        for batch in loader:
            for item, frames in zip(items[seen:], batch["frames"].numpy()):
                if item not in known:
                    known[item] = here[item]["frames"]
                assert np.array_equal(frames, known[item]), item
                seen += 1
        print(method, seen, "equal")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_sequences_of_every_format_are_equal(
    kind: str, web: Web, store_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """While one request in 12 is refused, cut off or not answered, and all answers of each second second are 0.2 s late."""
    script, over = tmp_path / "loads.py", threading.Event()
    script.write_text(TEN_THOUSAND)

    def weather() -> None:
        for number in count():
            web.behave(every=12, delay=0.2 * (number % 2))
            if over.wait(1.0):
                return

    thread = threading.Thread(target=weather)
    thread.start()
    try:
        said = with_peers(script, store_of(kind), f"{web.url}/{kind}", needs=["torch"])
    finally:
        over.set()
        thread.join()
    assert said.split("\n") == ["fork 10000 equal", "spawn 10000 equal", ""]
    assert {"ok", "r", "c", "d"} == {each[3] for each in web.requests()}


def test_the_bound_of_what_is_fetched_ahead_holds_when_little_is_needed() -> None:
    """After a group of clips whose frames were decoded already, 20,000 were fetched at once."""
    asked = list[int]()

    class Store:
        keeps_read = False

        def announce(self, done: int, clips: list[ComingClip]) -> list[int]:
            sizes = [100_000 if clip.numbers else 0 for clip in clips]
            asked.append(sum(sizes))
            return sizes

    decoded = {("v", number) for number in range(1000)}
    ahead = FetchAhead(Store(), Ahead(), decoded)  # type: ignore[arg-type]
    ahead.add([(at, Clip("v", np.array([at]), None)) for at in range(20_000)])
    for position in range(3000):
        before = sum(asked)
        ahead.advance(position)
        assert sum(asked) - before <= Ahead().limit_bytes + Ahead().num_clips * 100_000
    assert sum(asked) > 2000 * 100_000
