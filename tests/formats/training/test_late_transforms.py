"""Transforms whose import takes long: workers decode meanwhile, and the program finishes what they decode."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.formats.training.loading import children
from tests.helpers import with_peers
from vidprep.formats import PrefetchLoader, VideoDataset, clips_at_random_indices
from vidprep.formats.errors import CrashedError

SLOW = """
import os, random, time
import numpy as np
PARENT = {parent}
if os.getpid() != PARENT:
    {in_worker}

def noisy(frames):
    '''Frames with random numbers in the first frame, and in the last one who made them.'''
    made = np.array(frames)
    made[0] = np.random.default_rng(random.getrandbits(32)).integers(0, 255, made[0].shape)
    made[-1] = 1 if os.getpid() == PARENT else 2
    return made
"""


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A function that makes the module of a transform, with what it does when a worker imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(in_worker: str):
        name = f"slow_{random.getrandbits(40):x}"
        (tmp_path / f"{name}.py").write_text(SLOW.format(parent=os.getpid(), in_worker=in_worker))
        return importlib.import_module(name)

    yield made
    for name in [name for name in sys.modules if name.startswith("slow_")]:
        del sys.modules[name]


def who(batch) -> list[int]:
    return batch["frames"][:, -1].max(axis=(1, 2, 3)).tolist()


@pytest.mark.long
@pytest.mark.parametrize("clips_per_video", [1, 2])
def test_the_program_finishes_items_until_workers_have_imported(clips_per_video, slow, store_of):
    clips = clips_at_random_indices(num_clips=8, num_frames_per_clip=4)
    options = {"crop": 40, "random_crop": True, "clips_per_video": clips_per_video}
    dataset = VideoDataset(store_of("h264"), clips=clips, transform=slow("time.sleep(1)").noisy, **options)
    with PrefetchLoader(dataset, 4, shuffle=True, workers=2) as loader:
        makers = []
        for epoch in range(200):
            dataset.set_epoch(epoch)
            items = {
                (item["id"], item["clip"]): item["frames"] for item in map(dataset.__getitem__, range(len(dataset)))
            }
            for batch in loader:
                for id_, clip, frames in zip(batch["id"], batch["clip"], batch["frames"], strict=True):
                    expected = items[id_, int(clip)]
                    makers.append(frames.reshape(clips_per_video, 4, -1)[:, -1].max())
                    parts = zip(
                        frames.reshape(clips_per_video, 4, -1), expected.reshape(clips_per_video, 4, -1), strict=True
                    )
                    assert all(np.array_equal(own[:-1], other[:-1]) for own, other in parts)
            if makers[-32:] == [2] * 32:
                break
    assert makers[:4] == [1] * 4, "the first batch waits for no import"
    assert makers[-32:] == [2] * 32, "workers do it themselves once they can"


@pytest.mark.long
def test_workers_that_are_killed_while_they_import_lose_nothing(slow, store_of):
    dataset = VideoDataset(store_of("burst"), 4, transform=slow("time.sleep(0.5)").noisy)
    count = len(dataset)
    with PrefetchLoader(dataset, 2, shuffle=True, workers=2) as loader:
        for epoch in range(2):
            seen = []
            for number, batch in enumerate(loader):
                seen += zip(batch["id"], batch["indexes"][:, 0].tolist(), strict=True)
                if number % 9 == 2 and (alive := children()):
                    os.kill(alive[number % len(alive)].pid, signal.SIGKILL)
            assert len(seen) == len(set(seen)) == count, epoch


def test_a_transform_that_cannot_be_imported_is_named(slow, store_of):
    dataset = VideoDataset(store_of("burst"), 4, transform=slow("raise ImportError('no such library')").noisy)
    with PrefetchLoader(dataset, 2, workers=1) as loader, pytest.raises(CrashedError, match="no such library"):
        for _ in range(1000):
            list(islice(loader, 2))


TORCH = """
import sys
import torch
from torchvision.transforms import v2
from vidprep.formats import PrefetchLoader, VideoDataset
made = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
dataset = VideoDataset(sys.argv[1], 4, 2, transform=made, layout="TCHW", tensors=True)
dataset.set_epoch(0)
items = [dataset[number]["frames"] for number in range(len(dataset))]
with PrefetchLoader(dataset, 4, num_workers=2) as loader:
    try:
        VideoDataset(sys.argv[1], 4, transform=made)
    except Exception as error:
        assert "give tensors=True" in str(error), error
    else:
        raise AssertionError("a transform that would do nothing was taken")
    for _ in range(3):
        loader.set_epoch(0)
        found = torch.cat([batch["frames"] for batch in loader])
        assert torch.equal(found, torch.stack(items))
print("equal")
"""


@pytest.mark.long
def test_transforms_of_torchvision(store_of, tmp_path):
    script = tmp_path / "late.py"
    script.write_text(TORCH)
    assert "equal" in with_peers(script, store_of("h264"), needs=["torch", "torchvision"])


OF_THE_PROGRAM = """
import os, signal, sys
import numpy as np
from vidprep.formats import PrefetchLoader, VideoDataset
sys.path.insert(0, sys.argv[2])
from tests.formats.training.loading import children

def lighter(frames):
    return np.minimum(frames + 1, 255).astype(np.uint8)

if __name__ == "__main__":
    dataset = VideoDataset(sys.argv[1], 4, transform=lighter)
    with PrefetchLoader(dataset, 4, workers=2) as loader:
        for epoch in range(3):
            count = 0
            for number, batch in enumerate(loader):
                count += len(batch["id"])
                if number in (3, 9):
                    os.kill(children()[0].pid, signal.SIGKILL)
            assert count == len(dataset), count
    print("nothing lost")
"""


@pytest.mark.long
def test_a_transform_of_the_program_itself_when_workers_are_killed(store_of, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(OF_THE_PROGRAM)
    root = Path(__file__).parents[3]
    assert "nothing lost" in with_peers(script, store_of("burst"), root, needs=["numpy"])


@pytest.mark.parametrize(
    ("in_worker", "said"),
    [
        ("import sys; sys.exit('no licence')", "no licence"),
        ("import signal; signal.signal(signal.SIGUSR1, print)", None),
    ],
)
def test_what_a_module_may_do_when_it_is_imported(in_worker, said, slow, store_of):
    dataset = VideoDataset(store_of("burst"), 4, transform=slow(in_worker).noisy)
    with PrefetchLoader(dataset, 4, workers=1) as loader:
        if said is None:
            assert sum(len(batch["id"]) for _ in range(3) for batch in loader) == 3 * len(dataset)
            return
        for _ in range(2):
            with pytest.raises(CrashedError, match=said):
                for _ in range(1000):
                    list(islice(loader, 2))


class Brighter:
    """A transform that knows its dataset."""

    def __init__(self) -> None:
        self.dataset: VideoDataset | None = None

    def __call__(self, frames):
        assert self.dataset is None or len(self.dataset)
        return frames


def test_a_transform_that_refers_to_its_dataset(store_of):
    made = Brighter()
    dataset = VideoDataset(store_of("h264"), 4, transform=made)
    made.dataset = dataset
    with PrefetchLoader(dataset, 4, workers=2) as loader:
        assert sum(len(batch["id"]) for batch in loader) == len(dataset)


def test_an_interruption_while_the_program_finishes_an_item_loses_nothing(slow, store_of, monkeypatch):
    dataset = VideoDataset(store_of("burst"), 4, transform=slow("time.sleep(3)").noisy)
    finish, calls = VideoDataset.finish, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        finish(self, *arguments)

    monkeypatch.setattr(VideoDataset, "finish", interrupted)
    with PrefetchLoader(dataset, 4, shuffle=True, workers=2) as loader:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        assert sum(len(batch["id"]) for batch in loader) == len(dataset), "the loop goes on where it was"
