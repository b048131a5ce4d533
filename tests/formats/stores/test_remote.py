"""Stores behind URLs: the same frames, checks and errors as locally, by few requests, whatever the server does."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster import needs_modules
from tests.helpers import transcode
from tests.web import Web, web_of
from vidprep.formats import PrefetchLoader, VideoDataset, open_store
from vidprep.formats.errors import SettingsError, StoreError, VidprepError
from vidprep.formats.stores.base import FrameStore
from vidprep.formats.stores.encoded import VideoStore

KINDS = ("h264", "h264 own times", "shards", "deep", "burst", "burst shards", "tensor", "gulp", "webdataset")


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "served").mkdir()
    with web_of(tmp_path / "served", tmp_path / "web") as found:
        yield found


@pytest.fixture
def served(web: Web, tmp_path: Path, store_of: Callable[[str], Path]) -> Callable[[str], tuple[Path, str]]:
    """A copy of a store, and its URL."""

    def made(kind: str) -> tuple[Path, str]:
        name = kind.replace(" ", "-")
        folder = tmp_path / "served" / name
        if not folder.exists():
            shutil.copytree(store_of(kind), folder)
        return folder, f"{web.url}/{name}"

    return made


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def random_sequences(store: FrameStore, count: int, length: int = 8) -> Iterator[tuple[str, range]]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        id_ = store.ids[int(rng.integers(len(store)))]
        first = int(rng.integers(max(1, len(store[id_]) - length)))
        yield id_, range(first, min(len(store[id_]), first + length))


def ranges_of(
    web: Web, suffixes: tuple[str, ...] = (".mp4", ".mkv", ".tar", ".bin", ".raw", ".gulp")
) -> list[list[str]]:
    return [each for each in web.requests() if each[0] == "GET" and each[1].endswith(suffixes)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_store_reads_the_same_whatever_the_server_does(
    kind: str, served: Callable[[str], tuple[Path, str]], web: Web, cache: Path
) -> None:
    folder, url = served(kind)
    web.behave(every=5)
    here, there = open_store(folder), open_store(url, cache_dir=cache)
    assert type(here) is type(there) and there.path == url and list(here.ids) == list(there.ids)
    assert np.array_equal(here.sizes(), there.sizes()) and here.label_columns() == there.label_columns()
    for id_ in here.ids:
        assert here.labels(id_) == there.labels(id_)
        for name in ("timestamps", "source_frames", "source_timestamps"):
            assert np.array_equal(getattr(here[id_], name), getattr(there[id_], name), equal_nan=True)
    for id_, numbers in random_sequences(here, 30):
        assert np.array_equal(here[id_].frames(numbers), there[id_].frames(numbers)), (id_, numbers)
        assert np.array_equal(
            here[id_].frames(numbers[::3], size=(24, 36)), there[id_].frames(numbers[::3], size=(24, 36))
        )
    if here.stored_jpegs(here.ids[0]) is not None:
        assert here.stored_jpegs(here.ids[0]) == there.stored_jpegs(here.ids[0])
    assert {each[3] for each in web.requests()} >= {"ok", "r", "c", "d"}


def test_a_sequence_is_one_request_and_opening_again_is_one(
    served: Callable[[str], tuple[Path, str]], web: Web, cache: Path
) -> None:
    folder, url = served("shards")
    store = open_store(url, cache_dir=cache)
    before = len(web.requests())
    sequences = list(random_sequences(store, 40))
    asked = 0
    for id_, numbers in sequences:
        store[id_].frames(numbers)
        (_, runs) = store.runs(id_, numbers)
        asked += sum(run.size for run in runs)
    found = web.requests()[before:]
    assert len(found) == len(sequences)
    sizes = [
        int(last) - int(first) + 1
        for _, _, range_, _ in found
        for first, last in [range_.removeprefix("bytes=").split("-")]
    ]
    assert sum(sizes) == asked

    before = len(web.requests())
    program = f"from vidprep.formats import open_store; print(len(open_store({url!r}, cache_dir={str(cache)!r})))"
    for _ in range(3):
        subprocess.run([sys.executable, "-c", program], check=True)
    again = web.requests()[before:]
    assert [each[:2] for each in again] == [["HEAD", "/shards/manifest.parquet"]] * 3


def test_a_store_that_was_made_again_is_fetched_again(
    served: Callable[[str], tuple[Path, str]], web: Web, cache: Path, store_of: Callable[[str], Path]
) -> None:
    folder, url = served("shards")
    before = open_store(url, cache_dir=cache)
    shutil.rmtree(folder)
    src = store_of("shards").parent / "src"
    assert transcode(src, folder, "--gop", 3, "--format", "shards").code == 0
    now = open_store(url, cache_dir=cache)
    assert now[now.ids[0]].keyframes != before[before.ids[0]].keyframes
    assert np.array_equal(now[now.ids[0]].frames(), open_store(folder)[now.ids[0]].frames())
    with pytest.raises(StoreError, match=f"{url}/data-00001-00000.tar: .*(was replaced|not those that were written)"):
        before[before.ids[0]].frames()
    del before
    open_store(url, cache_dir=cache)
    assert len([each for each in (cache / "stores").glob("*/*/") if each.is_dir()]) <= 2


@pytest.mark.parametrize("kind", ["shards", "burst", "gulp", "webdataset", "tensor"])
def test_a_lost_or_replaced_object_is_named_with_url_and_range(
    kind: str, served: Callable[[str], tuple[Path, str]], cache: Path
) -> None:
    folder, url = served(kind)
    store = open_store(url, cache_dir=cache)
    id_ = store.ids[0]
    first = store[id_].frames([0])
    (shard,) = {each.name for each in folder.iterdir() if each.suffix in (".tar", ".bin", ".gulp", ".raw")}
    data = (folder / shard).read_bytes()
    (folder / shard).write_bytes(data.translate(bytes(number ^ 1 for number in range(256))))
    os.utime(folder / shard, (1, 1))  # by which, and by the size, nginx tells files apart
    with pytest.raises(
        StoreError, match=f"{url}/{shard}: was replaced after it was first read .*bytes [0-9]+ to [0-9]+"
    ):
        store[id_].frames([len(store[id_]) - 1])
    (folder / shard).unlink()
    with pytest.raises(StoreError, match=f"{url}/{shard}: is not there; its bytes [0-9]+ to [0-9]+ cannot be read"):
        store[id_].frames([3])
    (folder / shard).write_bytes(bytes(len(data)))
    fresh = open_store(url, cache_dir=cache)
    with pytest.raises(StoreError, match=f"{url}/{shard}"):
        fresh[id_].frames([0])
    assert first.any()


def test_a_server_that_only_fails_is_an_error_in_time(
    served: Callable[[str], tuple[Path, str]], web: Web, cache: Path
) -> None:
    _, url = served("shards")
    store = open_store(url, cache_dir=cache, timeout_seconds=1)
    web.behave(every=1, kinds="r")
    with pytest.raises(
        StoreError, match=f"{url}/data-.*: its bytes .* could not be read in [0-9]+ tries and [0-9]+ s: .*503"
    ):
        store[store.ids[0]].frames([0])
    web.behave()
    assert store[store.ids[0]].frames([0]).any()


def test_what_is_no_store_says_so(web: Web, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "served" / "empty").mkdir()
    with pytest.raises(StoreError, match=f"{web.url}/empty: is not a store: none of manifest.parquet"):
        open_store(f"{web.url}/empty", cache_dir=cache)
    with pytest.raises(SettingsError, match="user name or password"):
        open_store("s3://me:secret@bucket/x", cache_dir=cache)
    with pytest.raises(SettingsError, match="names no bucket"):
        open_store("s3:///x", cache_dir=cache)
    with pytest.raises(StoreError, match="could not be read"):
        open_store("http://127.0.0.1:9/x", cache_dir=cache, timeout_seconds=0.5)


@pytest.mark.parametrize("kind", ["shards", "gulp"])
def test_it_is_read_after_a_fork_and_by_pickle_also_elsewhere(
    kind: str, served: Callable[[str], tuple[Path, str]], cache: Path, web: Web
) -> None:
    folder, url = served(kind)
    store, id_ = open_store(url, cache_dir=cache), open_store(folder).ids[0]
    due = open_store(folder)[id_].frames(range(5))
    assert np.array_equal(store[id_].frames(range(5)), due)
    child = os.fork()
    if not child:  # the library that makes the requests would wait for ever here
        os._exit(0 if np.array_equal(store[id_].frames(range(5)), due) else 1)
    assert os.waitpid(child, 0)[1] == 0

    data = pickle.dumps(store)
    program = (
        "import pickle, sys; store = pickle.load(sys.stdin.buffer); "
        "sys.stdout.buffer.write(store[store.ids[0]].frames(range(5)).tobytes())"
    )
    ran = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True)
    assert ran.stdout == due.tobytes()
    del store
    shutil.rmtree(cache)  # as on another machine
    ran = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True)
    assert ran.stdout == due.tobytes()


def test_a_killed_range_server_is_started_again(served: Callable[[str], tuple[Path, str]], cache: Path) -> None:
    from vidprep.formats.storage import ranges

    folder, url = served("burst")
    store, here = open_store(url, cache_dir=cache), open_store(folder)
    for id_ in here.ids[:2]:
        assert np.array_equal(store[id_].frames([0, 5]), here[id_].frames([0, 5]))
        assert ranges._server is not None
        os.kill(ranges._server.process.pid, signal.SIGKILL)
    assert np.array_equal(store[here.ids[2]].frames([1]), here[here.ids[2]].frames([1]))


def test_what_is_kept_in_memory_spares_requests(
    served: Callable[[str], tuple[Path, str]], web: Web, cache: Path
) -> None:
    folder, url = served("shards")
    size = sum(path.stat().st_size for path in folder.glob("*.tar"))
    store = open_store(url, cache_dir=cache, cache_bytes=3 * size // 10)
    dataset = VideoDataset(store, 4, step=4)
    fetched = []
    frames = 4 * int(np.prod(store.sizes()[0])) * 3  # of a batch: no decoded frame is kept for long
    with PrefetchLoader(dataset, 2, shuffle=True, processes=False, workers=1, cache_bytes=frames) as loader:
        for _ in range(4):
            before = store.files.counts().fetched_bytes
            assert sum(len(batch["id"]) for batch in loader) == len(dataset)
            fetched.append(store.files.counts().fetched_bytes - before)
    assert max(fetched[1:]) <= 0.72 * fetched[0], fetched


def test_what_is_kept_on_the_disk_serves_later_programs(
    served: Callable[[str], tuple[Path, str]], web: Web, cache: Path
) -> None:
    folder, url = served("shards")
    here = open_store(folder)
    options = {"cache_dir": cache, "cache_dir_bytes": 1 << 30}
    for is_first in (True, False):
        store, before = open_store(url, **options), len(ranges_of(web))
        for id_ in here.ids:
            assert np.array_equal(store[id_].frames(), here[id_].frames())
        assert (len(ranges_of(web)) > before) is is_first
    for path in (cache / "pieces").glob("*/*"):  # a damaged cache is no damaged frame
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + bytes(path.stat().st_size // 2))
    for id_ in here.ids:
        assert np.array_equal(open_store(url, **options)[id_].frames(), here[id_].frames())
    small = open_store(url, cache_dir=cache / "small", cache_dir_bytes=20_000)
    for id_ in here.ids:
        assert np.array_equal(small[id_].frames(), here[id_].frames())
    assert sum(path.stat().st_blocks * 512 for path in (cache / "small" / "pieces").glob("*/*")) <= 20_000 + 4096


def test_an_interrupted_read_spoils_no_later_one(
    served: Callable[[str], tuple[Path, str]], web: Web, cache: Path
) -> None:
    """What was left of its answer was taken for that of the next one."""
    folder, url = served("tensor")
    here, store = open_store(folder), open_store(url, cache_dir=cache, checksum=False)
    id_ = here.ids[0]

    def interrupt(*_: object) -> None:
        raise TimeoutError

    web.behave(delay=0.3)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.15)
        with pytest.raises(TimeoutError):
            store[id_].frames([0])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert np.array_equal(store[id_].frames([7]), here[id_].frames([7]))


def test_a_server_that_hides_what_is_missing_is_read(
    served: Callable[[str], tuple[Path, str]], web: Web, cache: Path
) -> None:
    folder, url = served("shards")
    web.behave(hides=True)
    assert list(open_store(url, cache_dir=cache).ids) == list(open_store(folder).ids)
    with pytest.raises(StoreError, match=f"{web.url}/none/manifest.parquet: its properties cannot be read: .*403"):
        open_store(f"{web.url}/none", cache_dir=cache)


def test_threads_and_stores_share_one_server_and_let_it_go(
    served: Callable[[str], tuple[Path, str]], cache: Path
) -> None:
    """Six threads started six servers, and each place that was read stayed in memory for ever."""
    _, url = served("burst")
    program = f"""
import threading, psutil
from vidprep.formats import open_store
def read(number):
    for _ in range(3):
        store = open_store({url!r}, cache_dir={str(cache)!r}, cache_bytes=1000 + number)
        store[store.ids[0]].frames([number])
threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
servers = [each for each in psutil.Process().children() if "serve_ranges" in " ".join(each.cmdline())]
print(len(servers), servers[0].num_threads() < 40)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "1 True\n" and not ran.stderr, (ran.stdout, ran.stderr)


@pytest.mark.parametrize("form", ["files", "shards"])
def test_audio_and_whole_files_are_read(form: str, web: Web, cache: Path, tmp_path: Path, cli: Any) -> None:
    (tmp_path / "src").mkdir()
    for name in "ab":
        sound = ("-f", "lavfi", "-i", "sine=frequency=440:duration=2", "-c:a", "aac")
        picture = ("-f", "lavfi", "-i", "testsrc=size=96x64:rate=25:duration=2")
        cli.run(*picture, *sound, "-shortest", tmp_path / "src" / f"{name}.mp4")
    folder = tmp_path / "served" / "heard"
    assert transcode(tmp_path / "src", folder, "--gop", 5, "--audio", "copy", "--format", form).code == 0
    here, there = open_store(folder), open_store(f"{web.url}/heard", cache_dir=cache)
    assert isinstance(here, VideoStore) and isinstance(there, VideoStore)
    web.behave(every=7)
    for id_ in "ab":
        for span in ((0.5, 1.5), (0.0, 0.3), (1.7, 2.0)):
            assert np.array_equal(here[id_].samples(*span), there[id_].samples(*span))
        with here.open_file(id_) as one, there.open_file(id_) as other:
            assert one.read() == other.read()
            assert one.seek(-100, os.SEEK_END) == other.seek(-100, os.SEEK_END) and one.read() == other.read()


def test_stores_behind_urls_and_in_folders_are_joined(
    served: Callable[[str], tuple[Path, str]], cache: Path, tmp_path: Path
) -> None:
    folder, url = served("h264")
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    here = VideoDataset({"a": folder, "b": other}, 4)
    there = VideoDataset({"a": open_store(url, cache_dir=cache), "b": other}, 4)
    assert len(here) == len(there) > 0
    with PrefetchLoader(there, 3, shuffle=True, seed=1) as loader, PrefetchLoader(here, 3, shuffle=True, seed=1) as due:
        for one, same in zip(loader, due, strict=True):
            assert one["id"] == same["id"] and np.array_equal(one["frames"], same["frames"])


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_a_url(kind: str, cache: Path, store_of: Callable[[str], Path]) -> None:
    memory, folder = pytest.importorskip("fsspec").filesystem("memory"), store_of(kind)
    memory.put(str(folder), f"/read/{kind}", recursive=True)
    here, there = open_store(folder), open_store(f"memory://read/{kind}", cache_dir=cache)
    for id_, numbers in random_sequences(here, 10):
        assert np.array_equal(here[id_].frames(numbers), there[id_].frames(numbers))
    with PrefetchLoader(VideoDataset(there, 4), 3, processes=False) as loader:
        assert sum(len(batch["id"]) for batch in loader) == len(VideoDataset(here, 4))
    memory.rm(f"/read/{kind}", recursive=True)
    with pytest.raises(StoreError, match="memory://"):
        open_store(f"memory://read/{kind}", cache_dir=cache)


FULL = """
import sys
import numpy as np
from vidprep.formats import open_store
here = open_store(sys.argv[1])
there = open_store(sys.argv[2], cache_dir=sys.argv[3], cache_dir_bytes=1 << 30)
for id_ in [*here.ids] * 2:
    assert np.array_equal(here[id_].frames(), there[id_].frames())
print("equal")
"""


@pytest.mark.long
def test_a_full_disk_keeps_less_and_reads_all(served: Callable[[str], tuple[Path, str]], tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mount namespaces need root")
    folder, url = served("tensor")
    (tmp_path / "small").mkdir()
    mount = f'mount -t tmpfs -o size=600k none {tmp_path / "small"} && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", FULL]
    ran = subprocess.run(
        [*command, str(folder), url, str(tmp_path / "small")], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "equal\n", ran.stderr


def test_a_cache_folder_that_vanishes_is_no_error(
    served: Callable[[str], tuple[Path, str]], web: Web, cache: Path
) -> None:
    folder, url = served("shards")
    here, store = open_store(folder), open_store(url, cache_dir=cache, cache_dir_bytes=1 << 30)
    for number, id_ in enumerate(here.ids):
        if number == 1:
            shutil.rmtree(cache / "pieces")
            web.behave(every=2, kinds="r")
        assert np.array_equal(store[id_].frames(), here[id_].frames())


@pytest.mark.parametrize("checksum", [True, False])
def test_a_store_that_is_opened_again_is_the_new_one_in_the_same_program(
    checksum: bool,
    served: Callable[[str], tuple[Path, str]],
    cache: Path,
    store_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """What an earlier store of the URL kept in memory, under the same names and places, was taken for that of the new one."""
    folder, url = served("tensor")
    options = {"cache_dir": cache, "cache_bytes": 1 << 28, "checksum": checksum}
    before = open_store(url, **options)
    first = before[before.ids[0]].frames([0])
    time.sleep(1.1)  # the web server tells versions apart by the second
    shutil.rmtree(folder)
    clips = sorted((store_of("h264").parent / "src").rglob("*.mp4"))
    (tmp_path / "swapped" / "sub").mkdir(parents=True)
    for clip, name in zip(clips, reversed(clips), strict=True):
        shutil.copy(clip, tmp_path / "swapped" / "sub" / name.name)
    assert transcode(tmp_path / "swapped", folder, "--format", "tensor", verb="burst").code == 0
    now, here = open_store(url, **options), open_store(folder)
    for id_ in here.ids:
        assert np.array_equal(now[id_].frames(), here[id_].frames())
    assert not np.array_equal(first, now[now.ids[0]].frames([0]))


def test_a_missing_sidecar_is_named(served: Callable[[str], tuple[Path, str]], cache: Path) -> None:
    folder, url = served("gulp")
    (meta,) = folder.glob("*.gmeta")
    meta.unlink()
    with pytest.raises(StoreError, match=f"{url}/{meta.name}: is not there"):
        open_store(url, cache_dir=cache)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_seconds": 0},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": "5"},
        {"storage_options": [1]},
        {"storage_options": {"l": lambda: 1}},
        {"cache_dir": 5},
        {"cache_bytes": -1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_options_are_refused(wrong: dict[str, object], cache: Path) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        open_store("http://127.0.0.1:9/x", **({"cache_dir": cache} | wrong))
    with pytest.raises(SettingsError, match="query"):
        open_store("http://127.0.0.1:9/x?token=1", cache_dir=cache)


class _Liar(BaseHTTPRequestHandler):
    """Answers as if each file had `size` bytes; sends zeros, at `rate` bytes a second if it is given."""

    protocol_version = "HTTP/1.1"
    size, rate = 0, 0

    def do_HEAD(self) -> None:
        self._head(200, self.size)

    def do_GET(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self._head(206, last - first + 1, f"bytes {first}-{last}/{self.size}")
        with suppress(OSError):
            for _ in range(last - first + 1 if self.rate else 0):
                self.wfile.write(bytes(self.rate))
                self.wfile.flush()
                time.sleep(1)
            self.wfile.write(bytes(last - first + 1))

    def _head(self, code: int, size: int, content_range: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(size))
        self.send_header("ETag", '"1"')
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def lying(size: int, rate: int = 0) -> Iterator[str]:
    needs_modules(["obstore"], "pip install '.[remote]'")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Liar", (_Liar,), {"size": size, "rate": rate}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/store"
    finally:
        server.shutdown()
        server.server_close()


def _copied(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())


def test_a_server_that_claims_any_size_does_not_fill_the_disk(cache: Path) -> None:
    """2.4 GB had come in 25 s."""
    for size in (1 << 40, 3 << 30):  # of each of seven files
        with (
            lying(size) as url,
            pytest.raises(VidprepError, match=r"its manifest and index have [\d.]+ GB, and .*") as told,
        ):
            open_store(url, cache_dir=cache)
        assert "at most 10.74 GB are copied" in str(told.value) or "GB free" in str(told.value)
        assert _copied(cache) < 1000


def test_opening_ends_in_time_although_bytes_come_now_and_then(cache: Path) -> None:
    started = time.monotonic()
    with lying(100, rate=1) as url, pytest.raises(VidprepError, match=r"did not come within 2 s \(timeout_seconds\)"):
        open_store(url, cache_dir=cache, timeout_seconds=2)
    assert time.monotonic() - started < 30


def test_what_a_killed_process_left_of_copies_is_removed_at_the_next_open(
    served: Callable[[str], tuple[Path, str]], cache: Path
) -> None:
    _, url = served("h264")
    open_store(url, cache_dir=cache)
    home = next(cache.glob("stores/*"))
    (home / ".0123.partial").mkdir()
    (home / ".0123.partial" / "manifest.parquet").write_bytes(bytes(1000))
    open_store(url, cache_dir=cache)
    assert not list(cache.rglob("*.partial"))


@pytest.mark.parametrize("name", ["allow_http", "aws_allow_http"])
def test_an_option_of_the_connection_may_stand_among_those_of_the_store(name: str, cache: Path) -> None:
    """The library panicked, and "the process was killed 3 times"."""
    with lying(100) as url, pytest.raises(VidprepError) as told:
        options = {name: "true", "endpoint": url.removesuffix("/store"), "skip_signature": "true", "region": "x"}
        open_store("s3://bucket/store", storage_options=options, cache_dir=cache, timeout_seconds=5)
    assert "s3://bucket/store" in str(told.value) and "storage_options" not in str(told.value)


def test_an_option_that_the_library_refuses_is_refused_in_its_words(cache: Path) -> None:
    for options, said in (({"nothing": "x"}, "'nothing' is not valid for store 'S3'"), ({"user_agent": "x"}, "aws_")):
        with pytest.raises(SettingsError, match=f"storage_options: obstore: .*{said}"):
            open_store("s3://bucket/store", storage_options=options, cache_dir=cache)


def test_a_reader_of_a_damaged_store_is_not_told_to_make_it_again(
    tmp_path: Path, store_of: Callable[[str], Path]
) -> None:
    shutil.copytree(store_of("h264"), tmp_path / "d")
    (tmp_path / "d" / "manifest.parquet").write_bytes(b"PAR1 broken PAR1")
    with pytest.raises(VidprepError, match="cannot be read") as told:
        store = open_store(tmp_path / "d")
        store.labels(store.ids[0])
    assert "overwrite" not in str(told.value)
