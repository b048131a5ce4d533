"""What a storage promises: one suite, which a folder, a memory store and an S3 server each have to pass."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.s3 import Bucket, bucket
from vidprep.formats.errors import DestinationError, StorageError
from vidprep.formats.storage.base import Storage
from vidprep.formats.storage.local import LocalStorage
from vidprep.formats.storage.remote import ObjectStorage

# Opens the storage as another process would: with nothing that another object knows of it.
Opener = Callable[[], Storage]
NUMBERS = itertools.count()


def everything(_name: str) -> bool:
    return True


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with bucket(tmp_path_factory.mktemp("s3")) as running:
        yield running


class StorageContract:
    """The promises; `opened` is a fixture of each subclass."""

    def test_written_files_are_read_by_another_storage(self, opened: Opener) -> None:
        first, second = opened(), opened()
        for data in (b"one", b"", bytes(range(256)) * 5000):
            first.write("a/b c+%.json", data)
            assert second.read("a/b c+%.json") == data
            path = second.local("a/b c+%.json")
            assert path is not None and path.read_bytes() == data
        with pytest.raises(FileNotFoundError):
            first.read("a/none")
        assert first.local("a/none") is None

    def test_a_reader_sees_the_old_file_or_the_new_one(self, opened: Opener) -> None:
        storage, kinds = opened(), [bytes([number]) * 200_000 for number in range(2)]
        storage.write("whole", kinds[0])
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(lambda: [storage.write("whole", kinds[turn % 2]) for turn in range(20)])
            while not writing.done():
                assert storage.read("whole") in kinds
            writing.result()

    def test_of_many_that_create_a_name_one_does(self, opened: Opener) -> None:
        for number in range(5):
            storages = [opened() for _ in range(6)]
            with ThreadPoolExecutor(6) as threads:
                tried = [threads.submit(each.create, f"x/n{number}", b"%d" % n) for n, each in enumerate(storages)]
            made = [n for n, each in enumerate(tried) if each.result()]
            assert len(made) == 1 and opened().read(f"x/n{number}") == b"%d" % made[0]
        assert not opened().create("x/n0", b"another")
        assert sorted(opened().list(everything, "x")) == [f"n{number}" for number in range(5)]

    def test_a_file_that_is_updated_has_the_bytes_of_now(self, opened: Opener) -> None:
        storage = opened()
        storage.create("beat", b"1234")
        storage.update("beat", b"5678")
        assert opened().read("beat") == b"5678"

    def test_a_listing_has_the_files_of_one_folder_with_their_sizes(self, opened: Opener) -> None:
        storage = opened()
        assert storage.list(everything) == {} and storage.folders("s") == ()
        for name, size in (("s/a", 3), ("s/b.bin", 0), ("s/deep/c", 5), ("top", 7)):
            storage.write(name, bytes(size))
        assert opened().list(lambda name: name != "deep", "s") == {"a": 3, "b.bin": 0}
        assert opened().list(lambda name: name.endswith(".bin"), "s") == {"b.bin": 0}
        assert opened().list(lambda name: name != "s") == {"top": 7}
        assert opened().folders("s") == ("deep",)
        seen = opened()
        assert [seen.size(name) for name in ("s/a", "s/deep/c", "s/none")] == [3, 5, None]

    def test_a_range_is_those_bytes_or_an_error(self, opened: Opener) -> None:
        data = os.urandom(3_000_000)
        opened().write("data", data)
        for offset, size in ((0, 0), (0, 10), (1_500_000, 1_500_000), (2_999_999, 1)):
            assert b"".join(opened().read_range("data", offset, size)) == data[offset : offset + size]
        with pytest.raises((StorageError, DestinationError), match="ends before"):
            b"".join(opened().read_range("data", 2_999_000, 1001))

    def test_publishing_moves_the_file(self, opened: Opener, tmp_path: Path) -> None:
        for data in (b"first", b"second"):
            made = tmp_path / "made"
            made.write_bytes(data)
            opened().publish(made, "deep/er/out.mp4")
            assert not made.exists() and opened().read("deep/er/out.mp4") == data

    def test_a_copy_has_the_bytes_and_the_first_stays(self, opened: Opener) -> None:
        storage = opened()
        storage.write("c/one", b"data")
        storage.copy("c/one", "c/two")
        assert opened().read("c/one") == opened().read("c/two") == b"data"
        with pytest.raises(FileNotFoundError):
            storage.copy("c/none", "c/three")

    def test_removing_deletes_files_and_ignores_missing_ones(self, opened: Opener) -> None:
        storage = opened()
        for name in ("r/a", "r/b", "r/deep/c"):
            storage.write(name, b"x")
        storage.remove("r/a", "r/deep/c", "r/none", "nowhere/x")
        assert opened().list(everything, "r") == {"b": 1} and opened().folders("r") == ()
        assert opened().local("r/a") is None

    def test_refresh_fetches_the_wanted_files(self, opened: Opener) -> None:
        mine, other = opened(), opened()
        for name in ("f/a.json", "f/b.json", "f/c.bin"):
            other.write(name, b"1")
        mine.refresh(lambda name: name.endswith(".json"))
        assert [(mine.root / f"f/{name}.json").read_bytes() for name in "ab"] == [b"1", b"1"]
        other.write("f/a.json", b"22")
        other.remove("f/b.json")
        mine.refresh(lambda name: name.endswith(".json"), lambda name: name.endswith(".bin"))
        assert (mine.root / "f/c.bin").exists()
        assert (mine.root / "f/a.json").read_bytes() == b"22" and not (mine.root / "f/b.json").exists()

    def test_pushed_files_exist_locally_and_remotely(self, opened: Opener) -> None:
        storage = opened()
        for data in (b"first", b"second"):
            storage.root.mkdir(parents=True, exist_ok=True)
            (storage.root / "table").write_bytes(data)
            storage.push("table", unchanged=True)
            assert opened().read("table") == (storage.root / "table").read_bytes() == data


class TestFolder(StorageContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Opener:
        return lambda: LocalStorage(tmp_path / "storage")

    def test_an_update_does_not_restore_a_removed_file(self, opened: Opener) -> None:
        gone_for_good(opened)

    def test_no_link_is_followed(self, opened: Opener, tmp_path: Path) -> None:
        storage, outside = opened(), tmp_path / "outside"
        outside.mkdir()
        (outside / "kept").write_bytes(b"kept")
        storage.write("own", b"1")
        (storage.root / "folder").symlink_to(outside)
        (storage.root / "file").symlink_to(outside / "kept")
        with pytest.raises(DestinationError, match="symbolic link"):
            storage.publish(storage.root / "own", "folder/kept")
        with pytest.raises(DestinationError, match="symbolic link"):
            storage.list(everything)
        with pytest.raises(DestinationError, match="symbolic link"):
            storage.update("file", b"changed")
        storage.write("file", b"a file of its own")
        storage.remove("folder/kept")
        assert (outside / "kept").read_bytes() == b"kept" and not (storage.root / "file").is_symlink()


class TestMemory(StorageContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Opener]:
        fsspec = pytest.importorskip("fsspec")
        name = f"contract{next(NUMBERS)}"
        yield lambda: ObjectStorage(f"memory://{name}", emptied(tmp_path))
        memory = fsspec.filesystem("memory")
        if memory.exists(name):
            memory.rm(name, recursive=True)


@pytest.mark.long
class TestS3(StorageContract):
    @pytest.fixture(params=["well", "every third request fails"])
    def opened(
        self, request: pytest.FixtureRequest, there: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Opener]:
        monkeypatch.setattr("vidprep.formats.storage.remote.FIRST_PAUSE_SECONDS", 0.01)
        for name, value in there.environment.items():
            if name.startswith("AWS_"):
                monkeypatch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()  # another test's server is not this one
        prefix = f"contract{next(NUMBERS)}"
        there.fail_every(0 if request.param == "well" else 3)
        yield lambda: ObjectStorage(f"s3://videos/{prefix}", emptied(tmp_path))
        there.fail_every(0)
        s3fs.S3FileSystem.clear_instance_cache()

    def test_an_update_does_not_restore_a_removed_file(self, opened: Opener) -> None:
        gone_for_good(opened)

    def test_files_changed_by_another_writer_are_not_replaced(self, opened: Opener) -> None:
        mine, other = opened(), opened()
        other.write("table", b"of before")
        for each in (mine, other):
            each.refresh(everything)
            assert each.create(f"lease{id(each)}", b"-")  # by which it knows what the server can do
            (each.root / "table").write_bytes(b"of " + str(id(each)).encode())
        other.push("table", unchanged=True)
        with pytest.raises(DestinationError, match="written by another run meanwhile"):
            mine.push("table", unchanged=True)
        assert opened().read("table") == b"of " + str(id(other)).encode()


def gone_for_good(opened: Opener) -> None:
    mine, other = opened(), opened()
    assert mine.create("lease", b"beat 1")
    mine.update("lease", b"beat 2")
    other.remove("lease")
    with pytest.raises(FileNotFoundError):
        mine.update("lease", b"beat 3")
    assert opened().local("lease") is None


def emptied(folder: Path) -> Path:
    """An empty folder."""
    empty = folder / f"root{next(NUMBERS)}"
    empty.mkdir()
    return empty
