"""What a user can observe of vidprep, recorded; and the difference between two recordings.

    python -m tests.oracle record FILE [--few] [--only NAME ...]    run the scenarios, and write what they showed
    python -m tests.oracle diff BEFORE AFTER                        print what differs; exit 1 if anything does

A change that users must not notice is recorded before and after. A scenario is a sequence of commands on copies of the real clips, or of
synthesised ones where those are absent. Recorded are exit codes, the lines of stdout and stderr (sorted, as videos end in any order), the
SHA-256 of every file that is left, the rows of Parquet files, and for `api` the help of every command and the signature of every public
name. Times, speeds, free disk space and the like are replaced by a letter. `--few` takes a few synthesised clips: a sample, for tests.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq

import vidprep.formats
import vidprep.transcode
from tests import points
from tests.generated import every_command
from tests.helpers import KILL_ALL, command, environment, fault, make_clip, table
from tests.real_media import SHARED_MEDIA
from tests.s3 import Bucket, bucket

MTIME_NS = 1_700_000_000_000_000_000
COMMAND_SECONDS = 600
# Differ from run to run, or are a number of a run.
NOT_KEPT = {"encode_seconds", "cpu_seconds", "run", "verified_in", "source_mtime_ns"}
VARIABLE = (
    (r"\d+(?:\.\d+)? (?:s|ms|min|h)\b", "TIME"),
    (r"(?<![\w=.])\d+:\d\d(?::\d\d)?(?![\w:])", "TIME"),
    (r"0x[0-9a-f]{6,}", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "DATE"),
    (r"[\d,.]+ (?:bytes are free|free)", "N free"),
    (r"(free in [^:]+): [\d.]+ \w+", r"\1: N"),
    (r"[\d.,]+ (?:[kMG]i?)?B/s", "SPEED"),
    (r"x[\d.]+ realtime", "SPEED"),
    (r"(?:process|pid) \d+", "process N"),
    (r"[\d.]+ (?:videos|frames)/s", "SPEED"),
    (r"127\.0\.0\.1:\d+", "HOST"),
    (r"vidprep-scratch-\w+", "SCRATCH"),
    (r"(?<=\"seconds\": )[\de.-]+", "TIME"),
    (r"(/partial/[0-9a-f]{24})[0-9a-f]{8}", r"\1"),
    (r"vidprep: \d+ of \d+ videos, .*", "PROGRESS"),
    (r"(?<=such as )[^:\n]+:.*", "ONE"),
    (r"\"examples\": \{[^}]*\}", "ONES"),
    (r"\"(?:encode|cpu|wall|elapsed)\w*\": [\d.]+", "TIME"),
    (r"\"source_mtime_ns\": \d+", "TIME"),
)
SHORT = ("--short-side", 96, "--preset", "ultrafast")
BURST = ("--short-side", 64, "--jobs", 1)  # units go into shards in the order in which they end
STORES = ("burst", "webdataset", "gulp", "tensor")
KILLS = [
    (name, point, at, when)
    for name, point, numbers in (
        ("lock", points.DESTINATION_LOCK, (1,)),
        ("settings", points.DESTINATION_WRITE_SETTINGS, (1,)),
        ("journal", points.JOURNAL_APPEND, (1, 3)),
        ("shard", points.SHARD_WRITER_APPEND, (1, 3)),
        ("rows", points.WRITE_ROWS, (1,)),
        ("clear", points.JOURNAL_CLEAR, (1,)),
    )
    for at in numbers
    for when in ("before", "after")
]


class World:
    """One scenario at work: a folder with sources in it, and what has been observed so far."""

    def __init__(self, work: Path, *, few: bool) -> None:
        self.work, self.few, self.seen = work, few, dict[str, Any]()
        self.raw = work / "raw"
        self.raw.mkdir()
        self.clips = self._copied(SHARED_MEDIA) if SHARED_MEDIA.is_dir() and not few else self._made()
        for path in self.raw.iterdir():
            os.utime(path, ns=(MTIME_NS, MTIME_NS))
        self.cuts = table(
            work / "cuts.csv",
            [
                {"path": f"raw/{name}", "start": 0.2, "end": 0.9, "label": f"class {number % 3}", "weight": number}
                for number, name in enumerate(self.clips)
            ],
        )

    def _copied(self, media: Path) -> list[str]:
        names = sorted(path.name for path in media.glob("*.*") if path.suffix not in (".csv", ".md"))
        for name in names:
            shutil.copyfile(media / name, self.raw / name)
        return names

    def _made(self) -> list[str]:
        for number in range(6):
            make_clip(self.raw / f"c{number}.mp4", 30 + number, seed=number)
        return [f"c{number}.mp4" for number in range(6)]

    def chosen(self, count: int) -> list[object]:
        """Options that choose the smallest of the clips."""
        smallest = sorted(self.clips, key=lambda name: ((self.raw / name).stat().st_size, name))[:count]
        return [part for name in sorted(smallest) for part in ("--include", name)]

    def run(self, verb: str, *args: object, env: Mapping[str, str] | None = None) -> None:
        """Run a command to its end, and keep what it said."""
        done = subprocess.run(
            command(*args, verb=verb),
            env=dict(env or environment()),
            cwd=self.work,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
            start_new_session=True,
        )
        self.keep(
            f"{verb} {' '.join(map(str, args))}",
            {"code": done.returncode, "out": self.plain(done.stdout), "err": self.plain(done.stderr)},
        )

    def look(self, folder: str) -> None:
        """Keep what lies below a folder."""
        files = {str(path.relative_to(self.work / folder)): path for path in sorted((self.work / folder).rglob("*"))}
        self.keep(
            f"files of {folder}",
            {name: self._file(path.read_bytes(), path) for name, path in files.items() if path.is_file()},
        )

    def look_there(self, there: Bucket, prefix: str) -> None:
        """Keep what lies behind a URL."""
        self.keep(
            f"objects of {prefix}", {name: self._file(data, Path(name)) for name, data in there.objects(prefix).items()}
        )

    def names(self, folder: str) -> None:
        """Keep the names of all files below a folder, but for what a worker was making."""
        there = (path for path in (self.work / folder).rglob("*") if path.parent.name != "partial")
        self.keep(f"names in {folder}", self.plain("\n".join(str(path.relative_to(self.work)) for path in there)))

    def keep(self, what: str, seen: Any) -> None:
        self.seen[f"{len(self.seen):02d} {self.plain(what)[0]}"] = seen

    def plain(self, text: str) -> list[str]:
        text = text.replace(str(self.work), "WORK")
        for pattern, letter in VARIABLE:
            text = re.sub(pattern, letter, text)
        return sorted(re.split(r"[\r\n]+", text)) or [""]

    def _file(self, data: bytes, path: Path) -> Any:
        name = path.name
        if name == "lock" or name.startswith(("lease-", "validation", "report.")):
            return "there"
        if name.endswith(".parquet"):
            found = pq.read_table(io.BytesIO(data))
            kept = [column for column in found.column_names if column not in NOT_KEPT]
            metadata = sorted(key.decode() for key in found.schema.metadata or {})
            rows = found.select(kept).to_pylist()
            return [*metadata, *self.plain("\n".join(json.dumps(row, default=str) for row in rows))]
        if path.suffix in (".json", ".csv", ".txt", ".md"):
            return self.plain(data.decode())
        return hashlib.sha256(data).hexdigest()


# ------------------------------------------------------------------------------------------------------ scenarios


def files(world: World) -> None:
    """A destination of files, and all that can befall it."""
    world.run("transcode", "raw", "made", *SHORT, "--dry-run")
    world.run("transcode", "raw", "made", *SHORT)
    world.look("made")
    world.run("transcode", "raw", "made", *SHORT, "--json")
    world.run("transcode", "raw", "made", "--short-side", 64)
    world.run("validate", "raw", "made", "--sample", 5)
    world.run("show", "made")
    ids = [Path(name).stem for name in world.clips]
    table(world.work / "labels.csv", [{"id": id_, "label": f"a{n % 2}", "score": n / 2} for n, id_ in enumerate(ids)])
    world.run("label", "made", "labels.csv", "--dry-run")
    world.run("label", "made", "labels.csv")
    world.run("label", "made", "--remove", "score")
    world.run("pack", "made", "packed", "--to", "hf")
    world.look("packed")
    (world.raw / world.clips[0]).unlink()
    (world.raw / world.clips[1]).rename(world.raw / f"moved{Path(world.clips[1]).suffix}")
    (world.raw / "bad.mp4").write_bytes(bytes(4000))
    world.run("transcode", "raw", "made", *SHORT)
    world.run("transcode", "raw", "made", *SHORT, "--prune")
    world.look("made")
    world.run("burst", "cuts.csv", "made", *BURST, "--overwrite")
    world.look("made")


def codecs(world: World) -> None:
    """The other codecs, with and without a frame rate; the second engine; segments; a target."""
    few = world.chosen(8)
    for name, *options in (
        ("hevc", "--codec", "hevc", "--preset", "ultrafast", "--fps", 10),
        ("vp9", "--codec", "vp9", "--preset", 8),
        ("av1", "--codec", "av1", "--preset", 13, "--fps", "30000/1001"),
        ("ffmpeg", "--engine", "ffmpeg", "--preset", "ultrafast"),
        ("audio", "--audio", "aac", "--container", "mkv", "--preset", "ultrafast"),
    ):
        world.run("transcode", "cuts.csv", name, "--short-side", 96, *options)
        world.look(name)
    world.run("transcode", "raw", "split", *SHORT, "--segment", 1, *few)
    world.run("transcode", "raw", "target", *SHORT, "--target-psnr", 36, *few)
    world.run("transcode", "raw", "each", *SHORT, "--target-psnr", 36, "--target-mode", "per-video", *few)
    for name in ("split", "target", "each"):
        world.look(name)


def stores(world: World) -> None:
    """The four stores: made, made again in part, compacted, relabelled, packed."""
    for number, store in enumerate(STORES):
        given = ("cuts.csv", store, "--format", store, *BURST)
        world.run("burst", *given, "--shard-size", "1MiB")
        world.look(store)
        for clip in world.clips[1:3]:
            os.utime(world.raw / clip, ns=(MTIME_NS + number + 1, MTIME_NS + number + 1))
        world.run("burst", *given, "--shard-size", "1MiB")
        world.run("compact", store)
        world.run("label", store, "--remove", "weight")
        world.look(store)
        world.run("validate", store)
        world.run("burst", *given, "--quality", 50)
    world.run("pack", "burst", "tars", "--to", "webdataset")
    world.look("tars")


def arrays(world: World) -> None:
    """Parts of an array run and their merge; a part that did not finish; another number of parts."""
    for name, verb, *options in (("made", "transcode", *SHORT), ("shards", "burst", *BURST)):
        for part in ("0/3", "2/3"):
            world.run(verb, "cuts.csv", name, *options, "--partition", part)
        world.run(verb, "cuts.csv", name, *options, "--partition", "1/4")
        world.run(verb, "cuts.csv", name, *options)
        world.names(name)
        world.run("merge", name)
        world.look(name)
        world.run(verb, "cuts.csv", name, *options, "--partition", "1/3")
        world.run("merge", name)
        world.run("merge", name)
        world.look(name)
        world.run(verb, "cuts.csv", name, *options, "--limit", 2, "--overwrite")


def bucket_of_outputs(world: World) -> None:
    """A destination behind a URL: files, shards, an array, labels, what is refused."""
    with bucket(_made(world.work / "s3")) as there:
        few, url = ("cuts.csv", "--limit", 9), "s3://videos/"
        for name, verb, *options in (("made", "transcode", *SHORT), ("shards", "burst", *BURST)):
            given = (f"{url}{name}", *options)
            world.run(verb, *few, *given, env=there.environment)
            world.look_there(there, f"{name}/")
            world.run(verb, *few, *given, env=there.environment)
            world.run(verb, *few, f"{url}{name}", "--short-side", 32, env=there.environment)
            world.run("label", f"{url}{name}", "--remove", "weight", env=there.environment)
            world.run(verb, "cuts.csv", *given, "--limit", 3, "--overwrite", env=there.environment)
            world.run("compact", f"{url}{name}", env=there.environment)
            world.run("validate", f"{url}{name}", env=there.environment)
            world.look_there(there, f"{name}/")
            for part in ("1/2", "0/2"):
                world.run(verb, *few, f"{url}{name}-parts", *options, "--partition", part, env=there.environment)
                world.look_there(there, f"{name}-parts/")
                world.run("merge", f"{url}{name}-parts", env=there.environment)
            world.look_there(there, f"{name}-parts/")
        world.run("transcode", *few, f"{url}shards", *SHORT, "--overwrite", env=there.environment)
        world.run("transcode", "cuts.csv", f"{url}shards", *SHORT, "--overwrite", env=there.environment)
        world.look_there(there, "shards/")
        world.run("merge", f"{url}nothing", env=there.environment)


def refused(world: World) -> None:
    """What is wrong with sources, destinations and settings."""
    bad = SHARED_MEDIA / "bad"
    if bad.is_dir() and not world.few:
        shutil.copytree(bad, world.work / "bad", ignore=shutil.ignore_patterns("*.csv"))
        for path in (world.work / "bad").iterdir():
            path.chmod(0o644)
            os.utime(path, ns=(MTIME_NS, MTIME_NS))
        world.run("transcode", "bad", "from-bad", *SHORT)
        world.look("from-bad")
    few = world.chosen(2)
    (world.work / "file").write_bytes(b"")
    (world.work / "linked").mkdir()
    (world.work / "linked" / ".vidprep").symlink_to(world.work / "elsewhere")
    _made(world.work / "foreign" / Path(world.clips[0]).stem).with_suffix(".mp4").write_bytes(b"of the user")
    (world.work / "foreign" / "data-00000.tar").write_bytes(b"of the user")
    for name in ("file", "linked", "foreign", "s3:/videos/x", "memory://made/here"):
        world.run("transcode", "raw", name, *SHORT, *few)
        world.run("burst", "raw", name, "--format", "webdataset", *few)
    for verb in ("merge", "show", "validate", "report", "compact"):
        world.run(verb, "raw")
        world.run(verb, "nothing")
    world.run("transcode", "raw", "made", *SHORT, *few)
    for name in ("manifest.parquet", ".vidprep/run.json", ".vidprep/manifest.json"):
        kept = (world.work / "made" / name).read_bytes()
        for data in (None, b"", b"{}"):
            (world.work / "made" / name).unlink(missing_ok=True)
            if data is not None:
                (world.work / "made" / name).write_bytes(data)
            world.run("transcode", "raw", "made", *SHORT, *few)
            world.run("label", "made", "--remove", "none")
            world.names("made")
        (world.work / "made" / name).write_bytes(kept)


def killed(world: World) -> None:
    """What a kill leaves, at 28 moments, and what the next run makes of it."""
    few = world.chosen(4)
    for verb, *options in (("transcode", *SHORT, "--jobs", 1), ("burst", *BURST)):
        for name, point, at, when in KILLS:
            if name == "shard" and verb == "transcode":
                continue
            made = f"{verb}-{name}-{at}-{when}"
            env = environment(
                world.work / f"hook-{made}", fault(*point, at=at, when=when, code=KILL_ALL, only="parent")
            )
            world.run(verb, "raw", made, *options, *few, env=env)
            world.names(made)
            world.run(verb, "raw", made, *options, *few)
            world.look(made)


def api(world: World) -> None:
    """The help of every command, and the signature of every public name."""
    for name, each in every_command().items():
        with click.Context(each, info_name=name, terminal_width=120) as context:
            world.keep(f"help of {name}", each.get_help(context).splitlines())
    for package in (vidprep.formats, vidprep.transcode):
        for name in sorted(package.__all__):
            found = getattr(package, name)
            signature = "none"
            with suppress(TypeError, ValueError):
                signature = str(inspect.signature(found))
            members = sorted(each for each in dir(found) if not each.startswith("_"))
            world.keep(f"{package.__name__}.{name}", [signature, inspect.getdoc(found), *members])


SCENARIOS: dict[str, Callable[[World], None]] = {
    each.__name__: each for each in (api, files, codecs, stores, arrays, bucket_of_outputs, refused, killed)
}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _world(*, few: bool) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="oracle-") as work:
        yield World(Path(work).resolve(), few=few)


def record(names: list[str], *, few: bool) -> dict[str, Any]:
    """What each of these scenarios shows."""
    seen = {}
    for name in names:
        with _world(few=few) as world:
            SCENARIOS[name](world)
            seen[name] = world.seen
        print(f"{name}: {len(seen[name])} observations", file=sys.stderr, flush=True)
    return seen


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Each observation that is not the same in both, with its place."""
    if where == "/api":  # where a name that comes first moves the numbers of all others
        before, after = ({key.partition(" ")[2]: seen for key, seen in each.items()} for each in (before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if key not in before or key not in after:
                yield f"{where}/{key}: only {'after' if key in after else 'before'}"
            else:
                yield from differences(before[key], after[key], f"{where}/{key}")
    elif isinstance(before, list) and isinstance(after, list):
        if before != after:
            changed = [
                line for line in difflib.ndiff(*(list(map(str, each)) for each in (before, after))) if line[0] in "+-"
            ]
            yield "\n    ".join([f"{where}:", *changed])
    elif before != after:
        yield f"{where}: {before} -> {after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--few", action="store_true")
    recording.add_argument("--only", nargs="*", choices=SCENARIOS, default=[*SCENARIOS])
    comparing = verbs.add_parser("diff")
    comparing.add_argument("files", type=Path, nargs=2)
    asked = parser.parse_args()
    if asked.verb == "record":
        asked.file.write_text(json.dumps(record(asked.only, few=asked.few), indent=1, ensure_ascii=False))
        return
    found = list(differences(*(json.loads(path.read_text()) for path in asked.files)))
    print(*found, f"{len(found)} differences", sep="\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
