"""`make bench`: training from a store behind a URL, against the same store on the local disk and against other tools. Never a test.

    python tests/bench/remote.py ours WORK      stores of cuts of the clips (BENCH_SRC=folder names others), kept in WORK
    python tests/bench/remote.py others WORK    after that, with pylance, litdata and webdataset installed beside torchcodec

A web server on this machine (nginx with its lua module: apt-get install nginx-light libnginx-mod-http-lua) answers after 20 or 50 ms, with
100 MB/s in all. Sequences of 8 frames in random order, two workers. The server shares the cores with the workers, which a real one does not.
Requests and bytes are those of the server's log.
"""

from __future__ import annotations

import csv
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import av
import torch
from bench import ENVIRONMENT, ROUNDS, clips
from history import keep
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchcodec.decoders import VideoDecoder

from vidprep.formats import PrefetchLoader, VideoDataset, open_store

VIDEOS, SECONDS_OF_CUT, FRAMES, WORKERS = 2000, 3.0, 8, 2
SIZE = (112, 112)
TIMED_SECONDS = 8.0
PORTS = {20: 18120, 50: 18150}
SHAPE = ["--fps", "15", "--short-side", "240", "--quiet"]
CONFIGURATION = """
load_module modules/ndk_http_module.so; load_module modules/ngx_http_lua_module.so;
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  log_format sent '$request_method $uri $status $body_bytes_sent'; access_log {folder}/sent.log sent;
  keepalive_requests 1000000; sendfile on; tcp_nodelay on; lua_shared_dict line 1m;
  server {{ listen 127.0.0.1:{fast}; listen 127.0.0.1:{slow}; root {root}; access_by_lua_file {folder}/line.lua; }}
}}
"""
# Latency and rate; and, for tools that list, the answer of an S3 server.
LINE = """
local args = ngx.req.get_uri_args()
local range = ngx.var.http_range or ""
local first, last = range:match("bytes=(%d+)-(%d*)")
local size = 0
if first and last ~= "" then size = tonumber(last) - tonumber(first) + 1
elseif ngx.req.get_method() == "GET" then
  local file = io.open(ngx.var.document_root .. ngx.var.uri)
  if file then size = (file:seek("end") or 0) - (tonumber(first) or 0); file:close() end
end
if size > 2^40 or size < 0 then size = 0 end
ngx.update_time()
local now, line = ngx.now(), ngx.shared.line
local free = math.max(line:get("free") or 0, now) + size / 100e6
line:set("free", free)
ngx.sleep((ngx.var.server_port == "{slow}" and 0.05 or 0.02) + free - now)
if args["list-type"] then
  local prefix, bucket = args["prefix"] or "", ngx.var.uri:gsub("/$", "")
  local root = ngx.var.document_root .. bucket .. "/"
  local out = {{"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>"}}
  local pipe = io.popen("find '" .. root .. prefix .. "' -type f -printf '%P %s\\\\n' 2>/dev/null")
  for name, bytes in pipe:read("*a"):gmatch("(%S+) (%d+)\\n") do
    table.insert(out, "<Contents><Key>" .. prefix .. name .. "</Key><Size>" .. bytes ..
      "</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>")
  end
  table.insert(out, "</ListBucketResult>")
  ngx.header["Content-Type"] = "application/xml"
  ngx.say(table.concat(out)); return ngx.exit(200)
end
"""


@contextmanager
def served(root: Path) -> Iterator[Path]:
    """Yield the log of what was sent."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or sys.exit("bench: no nginx")
    with tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), {"fast": PORTS[20], "slow": PORTS[50]}
        folder.chmod(0o755)
        (folder / "line.lua").write_text(LINE.format(**ports))
        (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, root=root, **ports))
        process = subprocess.Popen([program, "-p", "/usr/lib/nginx", "-c", str(folder / "nginx.conf")])
        time.sleep(1)
        try:
            yield folder / "sent.log"
        finally:
            process.terminate()
            process.wait()


def vidprep(*args: object) -> None:
    subprocess.run([sys.executable, "-m", "vidprep.transcode", *map(str, args)], check=True, env=ENVIRONMENT)


def long_clips() -> Iterator[tuple[Path, float]]:
    """Clips of usual sizes, and their lengths in seconds."""
    for path in sorted(clips().iterdir()):
        with suppress(OSError, ValueError, IndexError), av.open(str(path)) as container:
            video, seconds = container.streams.video[0], float(container.duration or 0) / 1e6
            if 240 <= min(video.width, video.height) <= 720 and seconds > SECONDS_OF_CUT + 0.5:
                yield path, seconds


def make_stores(work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    found, rng = list(long_clips()), random.Random(0)
    with (work / "cuts.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "id", "start", "end"])
        for number in range(VIDEOS):
            path, seconds = found[number % len(found)]
            start = round(rng.uniform(0, min(seconds, 60.0) - SECONDS_OF_CUT - 0.5), 2)
            table.writerow([path, f"v{number:05d}", start, start + SECONDS_OF_CUT])
    for gop in (5, 16):
        if not (work / f"shards{gop}" / "manifest.parquet").exists():
            vidprep("transcode", work / "cuts.csv", work / f"shards{gop}", *SHAPE, "--gop", gop, "--format", "shards")
    if not (work / "files5").exists():
        vidprep("pack", work / "shards5", work / "files5", "--to", "files")
    if not (work / "burst" / "manifest.parquet").exists():
        vidprep("burst", work / "cuts.csv", work / "burst", *SHAPE)


def timed(batches: Iterable[Any]) -> tuple[float, int, float]:
    """Sequences per second, how many, and seconds until the first."""
    started, count, first = time.perf_counter(), 0, 0.0
    for batch in batches:
        count += len(batch["id"] if isinstance(batch, dict) else batch)
        first = first or time.perf_counter() - started
        if time.perf_counter() - started > TIMED_SECONDS:
            break
    return count / (time.perf_counter() - started), count, first


class Sent:
    """Requests and bytes of the server since the last look."""

    def __init__(self, log: Path) -> None:
        self.log, self.at = log, 0

    def since(self) -> tuple[int, int]:
        time.sleep(0.2)
        with self.log.open() as file:
            file.seek(self.at)
            lines = [line.split() for line in file]
            self.at = file.tell()
        return len(lines), sum(int(line[3]) for line in lines)


def ours(work: Path) -> None:
    make_stores(work)
    print(
        f"{'store':10}{'ms':>4}{'local':>8}{'URL':>8}{'ratio':>7}{'requests':>10}{'bytes':>9}{'of wanted':>10}{'first':>8}"
    )
    with served(work) as log:
        sent = Sent(log)
        for name, delay in (
            ("shards5", 20),
            ("shards16", 20),
            ("shards5", 50),
            ("shards16", 50),
            ("files5", 20),
            ("burst", 20),
        ):
            with tempfile.TemporaryDirectory() as cache:
                compare(work, name, delay, sent, Path(cache))


def compare(work: Path, name: str, delay: int, sent: Sent, cache: Path) -> None:
    url, shuffles = f"http://127.0.0.1:{PORTS[delay]}/{name}", (True, "runs") if name == "shards5" else (True,)
    open_store(url, cache_dir=cache)
    for shuffle in shuffles:
        loaders = [
            PrefetchLoader(
                VideoDataset(store, FRAMES, step=FRAMES, size=SIZE),
                8,
                shuffle=shuffle,
                workers=WORKERS,
                cache_bytes=128 << 20,
            )
            for store in (open_store(work / name), open_store(url, cache_dir=cache))
        ]
        local, remote = loaders
        first = timed(remote)[2]
        timed(local)
        speeds, counts = ([], []), [0, 0, 0]
        for _ in range(ROUNDS):
            sent.since()
            speeds[0].append(timed(local)[0])
            speed, count, _ = timed(remote)
            speeds[1].append(speed)
            for place, value in enumerate((*sent.since(), count)):
                counts[place] += value
        wanted = wanted_bytes(remote.dataset)
        for loader in loaders:
            loader.close()
        here, there = map(statistics.median, speeds)
        requests, size, count = counts
        label = f"{name}{' runs' if shuffle == 'runs' else ''}"
        print(
            f"{label:10}{delay:>4}{here:>8.0f}{there:>8.0f}{there / here:>7.3f}{requests / count:>10.3f}{size / count / 1e3:>8.1f}k"
            f"{size / count / wanted:>10.2f}{first:>7.2f}s"
        )
        keep(f"URL of local, {label} at {delay} ms", there / here)


def wanted_bytes(dataset: VideoDataset) -> float:
    """Bytes of the GOPs, or frames, of a sequence."""
    rng, sizes = random.Random(1), []
    for _ in range(500):
        id_, numbers = dataset.locate(rng.randrange(len(dataset)))
        sizes.append(sum(run.size for run in dataset.store.runs(id_, numbers.tolist())[1]))
    return statistics.mean(sizes)


# --------------------------------------------------------------------------------------------------------- others


def frames_of(source: Any, rng: random.Random) -> torch.Tensor:
    """A random sequence by torchcodec, scaled as ours."""
    decoder = VideoDecoder(source, num_ffmpeg_threads=1, seek_mode="approximate")
    start = rng.randrange(max(1, len(decoder) - FRAMES))
    frames = decoder.get_frames_in_range(start, min(len(decoder), start + FRAMES)).data
    return torch.nn.functional.interpolate(frames, SIZE, mode="bilinear", antialias=True)


class OfFiles(Dataset[torch.Tensor]):
    """Videos that are read whole, those of a batch at the same time: faster here than by parts, which takes two requests for each."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    @abstractmethod
    def read(self, number: int) -> bytes: ...

    def __getitems__(self, numbers: list[int]) -> list[torch.Tensor]:
        with ThreadPoolExecutor(len(numbers)) as pool:
            return [frames_of(data, random.Random(data[-8:])) for data in pool.map(self.read, numbers)]


class OfFsspec(OfFiles):
    def __init__(self, url: str, names: list[str]) -> None:
        super().__init__(len(names))
        self.url, self.names = url, names

    def read(self, number: int) -> bytes:
        import fsspec

        found: bytes = fsspec.filesystem("http").cat_file(f"{self.url}/{self.names[number]}")
        return found


class OfLance(OfFiles):
    """A table with a blob column of videos."""

    def __init__(self, url: str, options: dict[str, str], count: int) -> None:
        super().__init__(count)
        self.url, self.options = url, options
        self.opened: Any = None

    def __getitems__(self, numbers: list[int]) -> list[torch.Tensor]:
        if self.opened is None:
            import lance

            self.opened = lance.dataset(self.url, storage_options=self.options)
        return super().__getitems__(numbers)

    def read(self, number: int) -> bytes:
        (blob,) = self.opened.take_blobs("video", indices=[number])
        found: bytes = blob.readall()
        return found


class OfWebdataset(IterableDataset[torch.Tensor]):
    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def __iter__(self) -> Iterator[torch.Tensor]:
        import webdataset

        data = webdataset.WebDataset(self.urls, shardshuffle=len(self.urls), nodesplitter=webdataset.split_by_node)
        for number, sample in enumerate(data):
            yield frames_of(sample["mp4"], random.Random(number))


class OfLitdata(IterableDataset[torch.Tensor]):
    def __init__(self, url: str, options: dict[str, Any], cache: str) -> None:
        from litdata import StreamingDataset

        self.data = StreamingDataset(
            url, cache_dir=cache, storage_options=options, shuffle=True, max_cache_size="64MB"
        )  # less than the data

    def __iter__(self) -> Iterator[torch.Tensor]:
        from litdata.streaming import downloader

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for this
        for number, sample in enumerate(self.data):
            yield frames_of(sample["video"], random.Random(number))


def as_sample(path: str) -> dict[str, Any]:
    return {"video": Path(path).read_bytes()}


def make_others(work: Path, names: list[str]) -> None:
    bucket = work / "bucket"
    if not (bucket / "videos.lance").exists():
        import lance
        import pyarrow as pa

        field = pa.field("video", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        table = pa.table([[(work / "files5" / name).read_bytes() for name in names]], schema=pa.schema([field]))
        lance.write_dataset(table, str(bucket / "videos.lance"))
    if not (bucket / "litdata").exists():
        from litdata import optimize

        paths = [str(work / "files5" / name) for name in names]
        optimize(as_sample, paths, str(bucket / "litdata"), chunk_bytes="4MB", num_workers=1)
    if not (work / "wds").exists():
        vidprep("pack", work / "shards5", work / "wds", "--to", "shards", "--shards", 16)


def others(work: Path) -> None:
    names = sorted(path.name for path in (work / "files5").glob("*.mp4"))
    make_others(work, names)
    http, s3 = f"http://127.0.0.1:{PORTS[20]}", f"http://127.0.0.1:{PORTS[20]}"
    options = {"endpoint": s3, "allow_http": "true", "skip_signature": "true", "region": "us-east-1"}
    boto = {"endpoint_url": s3, "aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    urls = [f"{http}/wds/{path.name}" for path in sorted((work / "wds").glob("*.tar"))]
    with served(work) as log, tempfile.TemporaryDirectory() as cache:
        sent = Sent(log)

        def of_torch(data: Any, *, shuffle: bool) -> Callable[[], Iterable[Any]]:
            loader = DataLoader(
                data, 8, shuffle=shuffle, num_workers=WORKERS, persistent_workers=True, multiprocessing_context="spawn"
            )
            return lambda: loader

        store = open_store(f"{http}/shards5", cache_dir=Path(cache, "ours"))
        data = VideoDataset(store, FRAMES, step=FRAMES, size=SIZE)
        items = PrefetchLoader(data, 8, shuffle=True, workers=WORKERS, cache_bytes=128 << 20)
        runs = PrefetchLoader(data, 8, shuffle="runs", workers=WORKERS, cache_bytes=128 << 20)
        tools: dict[str, Callable[[], Iterable[Any]]] = {
            "vidprep, shards": lambda: items,
            "vidprep, shards by runs": lambda: runs,
            "Lance, blobs": of_torch(OfLance("s3://bucket/videos.lance", options, len(names)), shuffle=True),
            "torchcodec on fsspec": of_torch(OfFsspec(f"{http}/files5", names), shuffle=True),
            "webdataset, streamed": of_torch(OfWebdataset(urls), shuffle=False),
            "litdata, first epoch": of_torch(
                OfLitdata("s3://bucket/litdata", boto, str(Path(cache, "lit"))), shuffle=False
            ),
        }
        print(f"{'tool':24}{'sequences/s':>12}{'kB a sequence':>15}{'requests':>10}")
        for name, begin in tools.items():
            try:
                sent.since()
                speed, count, first = timed(begin())
                if "first" in name:  # what it has fetched stays; with a cache smaller than the data it failed
                    speed = count / (count / speed - first)
                else:
                    sent.since()
                    speed, count, _ = timed(begin())
                requests, size = sent.since()
            except Exception as error:  # noqa: BLE001 (of other people)
                print(f"{name:24}  failed: {type(error).__name__}: {str(error)[:200]}")
                continue
            print(f"{name:24}{speed:>12.0f}{size / count / 1e3:>15.0f}{requests / count:>10.2f}")
            if isinstance(loader := begin(), PrefetchLoader):
                loader.close()


if __name__ == "__main__":
    if sys.argv[1:2] not in (["ours"], ["others"]):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        {"ours": ours, "others": others}[sys.argv[1]](Path(sys.argv[2] if sys.argv[2:] else folder).absolute())
