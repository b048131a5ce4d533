"""States of destinations and stores that no run leaves, and what every command does with them.

Run as a script, it is one process with a limited address space that imports everything once and forks for each step: a step
that is killed, runs out of memory or never ends costs only itself.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tarfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MEMORY_BYTES = 10**9
STEP_SECONDS = 20
DEEP = "[" * 100_000
ODD_JSON = [
    "null",
    "[]",
    "{}",
    '"text"',
    "1",
    "NaN",
    DEEP,
    "1" * 5000,
    '{"a": ',
    "\x00\xff",
    '{"settings": 1, "versions": []}',
    '"\\ud800"',
]
ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    1.5,
    -1e300,
    "",
    "x",
    "\ud800",
    "1e99999999",
    "9" * 5000,
    "1/0",
    [],
    [1],
    ["1e99999999"],
    {},
    {"a": 1},
    [[[]]],
]
ODD_BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "short": lambda data: data[:-3],
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: random.Random(1).randbytes(len(data)),
    "flip": lambda data: (
        data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 16]) + data[len(data) // 3 + 1 :] if data else b""
    ),
    "twice": lambda data: data + data,
}
State = tuple[str, Callable[[Path], None]]


# ---------------------------------------------------------------------------------------------------- what is broken


def states_of(kind: str, folder: Path) -> Iterator[State]:
    """States of a destination, each as a function that breaks a copy of it."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"]
    for path in files:
        name = path.relative_to(folder).as_posix()
        yield from _bytes_of(name)
        if path.suffix in (".json", ".gmeta"):
            yield from _jsons_of(name, json.loads(path.read_bytes()), sealed=name in ("burst.json", "tensor.json"))
        if path.suffix == ".parquet":
            yield from _parquets_of(name)
        if path.suffix == ".tar":
            yield from _tars_of(name)
    yield from _journals(folder)
    for name in ("merged.json", "journal.jsonl", "run.json"):
        for text in ODD_JSON:
            yield (
                f".vidprep/{name} is {text[:20]!r}",
                _writer(f".vidprep/{name}", (text + "\n").encode("utf-8", "surrogatepass")),
            )
    for value in ([[1, 10**12]], [[-1, 2]], [[1]], [["a", "b"]], [[0.5, 2]], [[3, 2]]):
        yield f"merged.json is {value}", _writer(".vidprep/merged.json", json.dumps(value).encode())


def _writer(name: str, data: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    return write


def _bytes_of(name: str) -> Iterator[State]:
    def changed(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
        return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None

    for how, change in ODD_BYTES.items():
        yield f"{name} {how}", changed(change)

    def fifo(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    def directory(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    def sparse(folder: Path) -> None:
        os.truncate(folder / name, 20 << 30)

    yield f"{name} FIFO", fifo
    yield f"{name} folder", directory
    yield f"{name} sparse", sparse
    yield f"{name} gone", lambda folder: (folder / name).unlink()


def _paths_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths_in(item, (*at, key))


def _jsons_of(name: str, content: Any, *, sealed: bool) -> Iterator[State]:
    def with_value(at: tuple[Any, ...], value: Any) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            told = json.loads((folder / name).read_bytes())
            *above, last = at
            place = told
            for key in above:
                place = place[key]
            place[last] = value
            if sealed:
                del told["crc32"]
                told["crc32"] = zlib.crc32(json.dumps(told, sort_keys=True).encode())
            (folder / name).write_text(json.dumps(told))

        return write

    for at in _paths_in(content):
        for value in ODD_VALUES if at and at[-1] != "crc32" else ():
            yield f"{name} {at} = {str(value)[:20]!r}", with_value(at, value)
    for text in ODD_JSON:
        yield f"{name} is {text[:20]!r}", _writer(name, text.encode())


def _parquets_of(name: str) -> Iterator[State]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def rewritten(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            table = change(pq.read_table(folder / name)).replace_schema_metadata({})
            pq.write_table(table, folder / name, compression="zstd", write_page_checksum=True)

        return write

    def column(label: str, make: Callable[[int], pa.Array]) -> Callable[[Path], None]:
        def change(table: pa.Table) -> pa.Table:
            if label not in table.column_names:
                return table.append_column(label, make(len(table)))
            return table.set_column(table.column_names.index(label), label, make(len(table)))

        return rewritten(change)

    makes: dict[str, Callable[[int], pa.Array]] = {
        "null": lambda n: pa.nulls(n),
        "text": lambda n: pa.array(["x"] * n),
        "-1": lambda n: pa.array([-1] * n),
        "0": lambda n: pa.array([0] * n),
        "huge": lambda n: pa.array([2**62] * n),
        "lists": lambda n: pa.array([[1, -5]] * n),
        "many": lambda n: pa.array([[0] * 5000] * n, pa.list_(pa.int64())),
        "structs": lambda n: pa.array([{"a": 1}] * n),
        "outside": lambda n: pa.array(["../../x"] * n),
        "nul": lambda n: pa.array(["a\x00b"] * n),
    }
    columns = (
        "id",
        "file_name",
        "source",
        "status",
        "width",
        "height",
        "num_frames",
        "frame_rate_num",
        "frame_rate_den",
        "pts",
        "keyframes",
        "time_base_num",
        "time_base_den",
        "offset",
        "stored_bytes",
        "frame_sizes",
        "frame_crc32",
        "attempts",
        "size_bytes",
        "container",
        "warnings",
        "psnr_y_min_db",
        "worst_frame",
        "codec",
        "source_size_bytes",
        "settings_digest",
        "sizes",
        "offsets",
        "shard",
        "faults",
    )
    for label in columns:
        yield (
            f"{name} without {label}",
            rewritten(lambda table, label=label: table.drop([label]) if label in table.column_names else table),
        )
        for what, make in makes.items():
            yield f"{name} {label} {what}", column(label, make)
    yield f"{name} rows twice", rewritten(lambda table: pa.concat_tables([table, table]))
    yield f"{name} no rows", rewritten(lambda table: table.slice(0, 0))
    yield f"{name} bomb of pts", column("pts", lambda n: pa.array([[0] * 3_000_000] * n, pa.list_(pa.int64())))
    yield f"{name} bomb of rows", rewritten(lambda table: pa.concat_tables([table.slice(0, 1)] * 100_000))


def _tars_of(name: str) -> Iterator[State]:
    def with_json(key: str, value: Any) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            made = io.BytesIO()
            with tarfile.open(folder / name) as old, tarfile.open(fileobj=made, mode="w") as new:
                for member in old:
                    data = old.extractfile(member).read()  # type: ignore[union-attr]
                    if member.name.endswith(".json"):
                        data = json.dumps(json.loads(data) | {key: value}).encode()
                        member.size = len(data)
                    new.addfile(member, io.BytesIO(data))
            (folder / name).write_bytes(made.getvalue())

        return write

    for key in ("id", "num_frames", "width", "height", "gop", "frame_rate", "pts", "time_base", "vidprep_labels"):
        for value in (*ODD_VALUES, 10**8, [[10**8, 1]], ["1e99999999", "1"], [1, 0], [10**400, 1]):
            yield f"{name} json {key} = {str(value)[:20]!r}", with_json(key, value)


def _journals(folder: Path) -> Iterator[State]:
    import pyarrow.parquet as pq

    if not (folder / "manifest.parquet").exists():
        return
    row = pq.read_table(folder / "manifest.parquet").slice(0, 1).to_pylist()[0]
    for name in row:
        for value in ODD_VALUES:
            line = json.dumps(row | {name: value}) + "\n"
            yield f"journal: {name} = {str(value)[:20]!r}", _writer(".vidprep/journal.jsonl", line.encode())


# ---------------------------------------------------------------------------------------------------- what is done with it


def read_all(folder: Path) -> None:
    """As a training run reads: every id, its labels and facts, its first and its last frame."""
    from vidprep.formats import open_store
    from vidprep.formats.errors import VidprepError

    try:
        store = open_store(folder)
        store.sizes()
        for id_ in store.ids:
            try:
                store.labels(id_)
                video = store[id_]
                _ = video.timestamps
                video.frames([0, -1])
            except VidprepError:
                continue
    except VidprepError:
        pass


def steps(kind: str, source: Path, folder: Path) -> list[list[str]]:
    """Command lines; ["read"] is `read_all`."""
    at, out = str(folder), str(folder.parent / "out")
    again = {
        "transcode": ["transcode", str(source), at, "--jobs", "1", "--quiet"],
        "packed videos": ["pack", at, out, "--to", "webdataset"],
    }.get(kind, ["burst", str(source), at, "--format", kind, "--jobs", "1", "--quiet"])
    return [
        ["read"],
        again,
        ["validate", at, "--jobs", "1", "--quiet"],
        ["report", at, "--jobs", "1", "--quiet", "--out", out],
        ["merge", at],
        ["pack", at, out, "--to", "burst"],
        ["bench", at, "--seconds", "0.01", "--sample", "1", "--loader", "vidprep"],
        ["monitor", "--once", *(str(path) for path in (folder / ".vidprep").glob("*.json*") if not path.is_dir())],
    ]


def run_step(command: list[str], folder: Path) -> int:
    """In this process. Returns the exit code; raises whatever a user would see as a traceback."""
    if command == ["read"]:
        read_all(folder)
        return 0
    from vidprep.transcode.cli.main import main

    try:
        main(command, standalone_mode=True)
    except SystemExit as end:
        return int(end.code or 0) if not isinstance(end.code, str) else 1
    return 0


def faults_of_step(command: list[str], folder: Path) -> str | None:
    """What is wrong with how a step ended, in a process of its own."""
    log = folder.parent / "log"
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setsid()
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number in (1, 2):
                os.dup2(descriptor, number)
            code = run_step(command, folder)
        except BaseException:  # noqa: BLE001 (any of them is the fault that is looked for)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + STEP_SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"took over {STEP_SECONDS} s"
        time.sleep(0.005)
    said = log.read_text(errors="replace")
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}: {said[-600:]}"
    if os.WEXITSTATUS(status) not in (0, 1, 2, 3) or "Traceback" in said:
        return f"exit code {os.WEXITSTATUS(status)}: {said[-1500:]}"
    return None


def main() -> None:
    """corrupted.py KIND SOURCE FOLDER COUNT SEED: COUNT states, each with one or two steps; faults as JSON lines."""
    kind, source, folder, count, seed = (
        sys.argv[1],
        Path(sys.argv[2]),
        Path(sys.argv[3]),
        int(sys.argv[4]),
        int(sys.argv[5]),
    )
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    import vidprep.transcode.cli.main
    import vidprep.transcode.destination.lease as leases
    import vidprep.transcode.unit.life  # noqa: F401

    leases.FOLDER_GONE_SECONDS = 2.0  # for so long a broken lease is watched
    rng = random.Random(seed)
    found = list(states_of(kind, folder))
    chosen = rng.sample(found, min(count, len(found)))
    work = folder.parent / f"work-{kind}"
    for name, change in chosen:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        copy = work / "dst"
        shutil.copytree(folder, copy)
        change(copy)
        everything = steps(kind, source, copy)
        for command in [everything[0], everything[1 + rng.randrange(len(everything) - 1)]]:
            fault = faults_of_step(command, copy)
            print(json.dumps({"state": name, "command": command[0], "fault": fault}), flush=True)
            shutil.rmtree(work / "out", ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)
    print(json.dumps({"states": len(chosen), "possible": len(found)}), flush=True)


if __name__ == "__main__":
    main()
