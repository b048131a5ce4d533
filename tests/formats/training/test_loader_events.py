"""What a PrefetchLoader tells of itself, and batches on devices."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from tests.formats.training.loading import BOTH
from tests.helpers import with_peers
from vidprep.formats import PrefetchLoader, VideoDataset, open_store
from vidprep.formats.errors import SettingsError, StoreError


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


def test_a_pipe_without_a_reader_blocks_nothing(store_of, tmp_path):
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


@pytest.mark.long
def test_batches_come_on_the_device_or_it_is_said_that_there_is_none(store_of):
    said = with_peers(ON_A_DEVICE, store_of("burst"), needs=["torch"]).splitlines()
    assert said[0].startswith(
        "cuda works" if said[-1] == "there" else "cuda is missing: torch finds no device 'cuda' here"
    )
    assert said[1] == "cpu works"
    assert said[2].startswith("nonsense is missing")


@pytest.mark.logs_errors
def test_missing_hardware_is_reported(store_of):
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
