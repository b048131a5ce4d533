"""Workers share the index of their store, and notice when the store is made again."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.formats.conftest import burst
from tests.formats.training.loading import located, names
from tests.helpers import make_clip, make_clips, table, transcode
from vidprep.formats import PrefetchLoader, VideoDataset
from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.manifest.labels import Labels
from vidprep.formats.manifest.table import MANIFEST_NAME, manifest_rows, write_rows
from vidprep.formats.stores.ids import Ids
from vidprep.formats.training._worker import WorkerSetup


@pytest.fixture
def copied(store_of, tmp_path):
    def of(kind: str):
        return shutil.copytree(store_of(kind), tmp_path / "store")

    return of


def test_ids_are_a_sequence_of_strings():
    plain = ["a/b", "a/c", "b", "ä", "\udcff"]
    ids = Ids(plain)
    assert ids == plain
    assert list(ids) == plain == [*reversed([*reversed(ids)])]
    assert [ids.place(id_) for id_ in plain] == [0, 1, 2, 3, 4]
    assert (ids.place("a"), ids.place("zz"), "b" in ids, 3 in ids, "" in ids) == (None, None, True, False, False)
    assert (ids[-1], ids[1:3], ids.index("b"), len(ids)) == (plain[-1], plain[1:3], 2, 5)
    assert pickle.loads(pickle.dumps(ids)) == ids
    assert ids.select(np.asarray([0, 3])) == ["a/b", "ä"]
    assert repr(Ids(plain[:2])) == "['a/b', 'a/c']"
    assert Ids([]) == []
    with pytest.raises(ValueError, match="'x' is not there"):
        ids.index("x")


def test_workers_read_no_index_of_their_own(copied):
    """They map the one of the process that starts them, so that it may even be gone."""
    path = copied("h264")
    dataset = VideoDataset(path, 4)
    due = located(dataset, range(len(dataset)))
    with PrefetchLoader(dataset, 4, workers=2) as loader:
        (path / MANIFEST_NAME).unlink()
        assert names(loader) == due


def _in_child(dataset: VideoDataset, answers: multiprocessing.Queue) -> None:
    answers.put([dataset[n]["frames"].sum() for n in (0, len(dataset) - 1)])


@pytest.mark.long
def test_a_spawned_process_reads_no_index_of_its_own(copied):
    path = copied("h264")
    (path / "gops.parquet").unlink()  # of which each process reads the rows that it needs
    dataset = VideoDataset(path, 4)
    due = [dataset[n]["frames"].sum() for n in (0, len(dataset) - 1)]
    (path / MANIFEST_NAME).unlink()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(dataset, answers))
    child.start()
    assert answers.get(timeout=60) == due
    child.join(60)
    with pytest.raises(StoreError, match="has no manifest"):
        pickle.loads(pickle.dumps(dataset))  # nothing says that this process will unpickle it


@pytest.mark.long
def test_what_is_sent_to_a_worker_does_not_grow_with_the_dataset(store_of, tmp_path):
    row = next(iter(manifest_rows(store_of("h264"))))
    sizes = []
    for count in (10, 20_000):
        ids = [f"{number:08d}" for number in range(count)]
        folder = tmp_path / str(count)
        (folder / "sub").mkdir(parents=True)
        shutil.copy(store_of("h264") / row.file_name, folder / row.file_name)
        write_rows(
            folder / MANIFEST_NAME, None, (replace(row, id=id_) for id_ in ids), labels=Labels(ids), classes=None
        )
        dataset = VideoDataset(folder, 4)
        assert dataset[-1]["id"] == ids[-1]
        sizes.append(len(WorkerSetup.build(dataset, late=True).dataset))
        with PrefetchLoader(dataset, 4, shuffle=True, workers=1) as loader:
            assert next(iter(loader))["frames"].shape == (4, 4, 64, 96, 3)
    assert sizes[1] < sizes[0] + 1000


@pytest.mark.parametrize("verb", [transcode, burst])
def test_a_store_that_was_made_again_is_not_read_with_old_numbers(verb, tmp_path):
    src, dst = make_clips(tmp_path / "src", 2, 30), tmp_path / "dst"
    assert verb(src, dst).code == 0
    dataset = VideoDataset(dst, 2)
    with PrefetchLoader(dataset, 4, processes=False) as loader:
        next(iter(loader))
        state = loader.state_dict()
    sent = pickle.dumps(dataset)
    assert len(pickle.loads(sent)) == len(dataset)
    others = [src / f"x{number}.mp4" for number in range(9)]
    for other in others:  # so many runs that the small shards of a burst are joined
        make_clip(other, 3)
        assert verb(src, dst).code == 0
    assert len(pickle.loads(sent)) == len(dataset), "other videos change none of these"
    others[0].unlink()
    assert verb(src, dst, "--prune").code == 0
    assert len(pickle.loads(sent)) == len(dataset), "nor does one that is removed"
    assert transcode(dst, table(tmp_path / "t.csv", [{"id": "c00", "mood": "z"}]), verb="label").code == 0
    assert pickle.loads(sent)[0]["labels"] == {}, "labels are those of its creation"
    gone = pickle.dumps(VideoDataset(dst, 2, ids=["c00", "x1"]))
    others[1].unlink()
    make_clip(others[0], 3)
    assert verb(src, dst, "--prune").code == 0
    with pytest.raises(StoreError, match="1 of the 2 videos of this dataset, such as 'x1', are not there any more"):
        pickle.loads(gone)
    assert verb(src, dst, "--overwrite", "--crf" if verb is transcode else "--quality", 30).code == 0
    with pytest.raises(StoreError, match="its videos were made again after this dataset was created"):
        pickle.loads(sent)
    again = VideoDataset(dst, 2, ids=list(dataset.ids))
    assert np.array_equal(again.sizes, dataset.sizes)
    with (
        PrefetchLoader(again, 4, processes=False) as loader,
        pytest.raises(SettingsError, match="saved before the videos were made again; their frames may differ"),
    ):
        loader.load_state_dict(state)
    with PrefetchLoader(dataset, 4, processes=False) as loader, pytest.raises(StoreError, match="made again"):
        next(iter(loader))


def test_joined_stores_send_no_list_of_their_videos(store_of):
    dataset = VideoDataset({"a": store_of("h264"), "b": store_of("burst")}, 4)
    assert b"sub/c01" not in WorkerSetup.build(dataset, late=True).dataset
    with PrefetchLoader(dataset, 4, workers=2) as loader:
        batches = list(loader)
    assert names(batches) == located(dataset, range(len(dataset)))
    assert {label for batch in batches for label in batch["labels"]["label"]} == {"sub"}
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.ids == dataset.ids == [f"{name}/sub/c0{number}" for name in "ab" for number in range(4)]
