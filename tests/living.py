"""Random histories of a dataset whose sources, labels and splits change: after each run it equals what one fresh run makes.

    python -m tests.living [HISTORIES] [--first N] [--seconds S]

A history has one kind of output and lists its sources in a folder or a table. Between runs videos are added, moved, replaced, removed
or spoilt, labels and cuts change, splits are drawn anew; some runs are killed and repeated, prune or overwrite, some are arrays, and
some list only a part of the sources: nothing may then stand twice, and no video may change its split.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests import points
from tests.helpers import KILL_ALL, environment, fault, leftovers, make_clip, manifest, table, transcode
from tests.transcode.destination.arrays import KINDS, contents
from vidprep.formats import open_store

STEPS = 4
MADE_UP = {"encode_seconds", "cpu_seconds", "attempts", "run", "file_name", "offset", "stored_bytes"}
CLASSES = ("walk", "run", "jump")
STOPS = (
    points.JOURNAL_APPEND,
    points.SHARD_WRITER_APPEND,
    ("os", "replace"),
    points.WRITE_ROWS,
    ("pathlib", "Path.replace"),
    ("os", "unlink"),
    ("os", "link"),
)


class Wrong(Exception):
    pass


class Living:
    def __init__(self, seed: int, work: Path) -> None:
        self.rng = random.Random(seed)
        self.kind = self.rng.choice(list(KINDS))
        self.is_table = self.rng.random() < 0.5
        self.src, self.made, self.work = work / "src", work / "made", work
        self.told = [f"{self.kind}, {'table' if self.is_table else 'folder'}"]
        self.clips = 0
        self.split: str | None = None
        self.drawn: str | None = None
        self.labels: dict[str, str] = {}
        self.columns = ("label",)
        self.with_ids = False
        for _ in range(self.rng.randint(4, 7)):
            self.add()

    # ------------------------------------------------------------------------------------------- what changes

    def videos(self) -> list[Path]:
        return sorted(self.src.rglob("*.mp4"))

    def add(self) -> None:
        self.clips += 1
        make_clip(
            self.src / self.rng.choice(CLASSES) / f"c{self.clips:02d}.mp4", self.rng.randint(3, 7), seed=self.clips
        )

    def move(self) -> None:
        video = self.rng.choice(self.videos())
        target = self.src / self.rng.choice(CLASSES) / self.rng.choice((video.name, f"m{self.clips}.mp4"))
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            video.rename(target)
        self.clips += 1

    def remove(self) -> None:
        if len(self.videos()) > 3:
            self.rng.choice(self.videos()).unlink()

    def replace(self) -> None:
        self.clips += 1
        make_clip(self.rng.choice(self.videos()), self.rng.randint(3, 7), seed=self.clips)

    def spoil(self) -> None:
        self.clips += 1
        self.rng.choice(self.videos()).write_bytes(bytes(3000 + self.clips))

    def relabel(self) -> None:
        self.labels[self.rng.choice(self.videos()).stem] = self.rng.choice(CLASSES)

    def other_columns(self) -> None:
        self.columns = self.rng.choice((("label",), ("label", "note"), ("note",), ()))

    def redraw(self) -> None:
        self.split = self.rng.choice((None, "train=0.5,test=0.5", "train=0.6,val=0.2,test=0.2"))

    def name(self) -> None:
        self.with_ids = not self.with_ids

    # ------------------------------------------------------------------------------------------- runs

    def sources(self) -> Path:
        if not self.is_table:
            return self.src
        rows = []
        for video in self.videos():
            label = self.labels.get(video.stem, CLASSES[len(video.stem) % 3])
            values = {"label": label, "note": f"{video.stem} {label}"}
            row = {"path": video} | {name: values[name] for name in self.columns}
            rows += [row | ({"id": f"v/{video.stem}"} if self.with_ids else {})]
        return table(self.src / "t.csv", rows)

    def run(self, *more: object, env: dict[str, str] | None = None, to: Path | None = None) -> int:
        verb, *options = KINDS[self.kind]
        given = [*options, *(("--split-by", self.split) if self.split else ())]
        if not self.is_table and self.columns:
            given += ["--label-from-folder"]
        ran = transcode(self.sources(), to or self.made, *given, "--quiet", *more, verb=verb, env=env)
        self.said = ran.err
        return ran.code

    def narrowed(self) -> None:
        """A run of some sources."""
        before, videos = manifest(self.made), self.videos()
        splits = {id_: (row.get("labels") or {}).get("split") for id_, row in before.items()}
        some = self.rng.choice(videos).relative_to(self.src)
        filters = [("--include", some), ("--include", f"{some.parent}/*"), ("--exclude", some), ("--exclude", "*.txt")]
        given = self.rng.choice([*filters, ("--limit", self.rng.randint(1, len(videos)))])
        more = self.rng.choice(((), (), ("--overwrite",)))
        code = self.run(*given, *more)
        self.told.append(f"  {given} {more}: {code}")
        if code not in (0, 1, 2) or "Traceback" in self.said:
            raise Wrong(self.said)
        now = manifest(self.made)
        if code == 2:
            if contents(self.made).keys() != {id_ for id_, row in before.items() if row["status"] == "ok"}:
                raise Wrong(f"was refused and changed: {self.said}")
            return
        if other := twice(now, before):
            raise Wrong(f"stand twice: {other}")
        if self.split is None or self.split != self.drawn:
            return
        of_content = {row["source_digest"]: splits[id_] for id_, row in before.items() if row["status"] == "ok"}
        for id_, row in now.items():
            split = (row.get("labels") or {}).get("split")
            due = of_content.get(row.get("source_digest"), split)
            if row["status"] == "ok" and due not in (None, split):
                raise Wrong(f"{id_} was in {due} and is in {split}")

    def step(self) -> None:
        self.drawn = self.split
        changes = [
            self.add,
            self.move,
            self.move,
            self.remove,
            self.replace,
            self.spoil,
            self.other_columns,
            self.redraw,
        ]
        changes += [self.relabel, self.relabel, self.name] if self.is_table else []
        for change in self.rng.sample(changes, self.rng.randint(1, 4)):
            change()
            self.told.append(f"  {change.__name__}")
        flag = self.rng.choice(((), (), ("--prune",), ("--overwrite",)))
        how = self.rng.choice(("whole", "narrowed", "narrowed", "killed", "array"))
        self.told.append(f"{how} {' '.join(flag)}")
        if how == "killed":
            where, name = self.rng.choice(STOPS)
            when, at = self.rng.choice(("before", "after")), self.rng.randint(1, 5)
            self.told.append(f"  {name} {when} {at}")
            env = environment(
                self.work / f"hook{len(self.told)}", fault(where, name, at=at, when=when, code=KILL_ALL, only="parent")
            )
            if self.run(*flag, env=env) not in (-9, 0, 1):
                raise Wrong(self.said)
            open_store(self.made)
        if how == "narrowed":
            for _ in range(self.rng.randint(1, 3)):
                self.narrowed()
                if self.rng.random() < 0.5:
                    self.move()
        if how == "array" and flag != ("--prune",):
            for part in range(2):
                if self.run(*flag, "--partition", f"{part}/2") not in (0, 1):
                    raise Wrong(self.said)
            if transcode(self.made, verb="merge").code not in (0, 1):
                raise Wrong("merge")
            flag = ()
        elif self.run(*flag) not in (0, 1):
            raise Wrong(self.said)
        self.check(is_exact=bool(flag))

    def check(self, *, is_exact: bool) -> None:
        fresh = self.work / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        self.run(to=fresh)
        one, other = open_store(fresh), open_store(self.made)
        # Labels that are not given stay as they were, and so do splits that the same rule gave before.
        given = one.label_columns().columns.keys() - {"split"}
        if self.split and any(not other.labels(id_).get("split") for id_ in one.ids):
            raise Wrong("a video without a split")
        due, found = _plain(manifest(fresh), given), _plain(manifest(self.made), given)
        if is_exact and due.keys() != found.keys():
            raise Wrong(f"ids {sorted(found.keys() ^ due.keys())}")
        for id_, row in due.items():
            if found.get(id_) != row:
                differing = {
                    name for name in {*row, *found.get(id_, {})} if row.get(name) != found.get(id_, {}).get(name)
                }
                raise Wrong(f"{id_}: {[(name, row.get(name), found.get(id_, {}).get(name)) for name in differing][:3]}")
        whole, made = contents(fresh), contents(self.made)
        if any(made.get(id_) != data for id_, data in whole.items()) or (is_exact and whole.keys() != made.keys()):
            raise Wrong("contents differ from those of a fresh run")
        if any(_there(one.labels(id_), given) != _there(other.labels(id_), given) for id_ in one.ids):
            raise Wrong("labels differ from those of a fresh run")
        if left := leftovers(self.made):
            raise Wrong(f"left behind: {left}")


def twice(rows: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]]) -> set[tuple[Any, ...]]:
    """Contents that stand once more for a source that is no longer there, and stood once before: under an id of another table, say."""
    made = [row for row in rows.values() if row["status"] == "ok"]
    there = {_content(row) for row in made if Path(row["source"]).exists()}
    found = there & {_content(row) for row in made if not Path(row["source"]).exists()}
    counts = Counter(_content(row) for row in before.values() if row["status"] == "ok")
    return {content for content in found if counts[content] < 2}


def _content(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["source_digest"], row["source_mtime_ns"], row["start_seconds"], row["end_seconds"]


def _there(labels: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in labels.items() if value is not None and name in names}


def _plain(rows: dict[str, dict[str, Any]], names: Collection[str]) -> dict[str, dict[str, Any]]:
    return {
        id_: {
            name: _there(value or {}, names) if name == "labels" else value
            for name, value in row.items()
            if name not in MADE_UP and value is not None
        }
        for id_, row in ((id_, row | {"labels": row.get("labels") or {}}) for id_, row in rows.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("histories", type=int, nargs="?", default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    asked = parser.parse_args()
    begun, done, wrong = time.monotonic(), 0, 0
    for seed in range(asked.first, asked.first + asked.histories):
        if time.monotonic() - begun > asked.seconds:
            break
        with tempfile.TemporaryDirectory() as work:
            living = Living(seed, Path(work))
            done += 1
            try:
                if living.run() not in (0, 1):
                    raise Wrong(living.said)
                for _ in range(living.rng.randint(2, STEPS)):
                    living.step()
                living.run("--prune")
                living.check(is_exact=True)
            except Exception as error:  # noqa: BLE001 (whatever ends a history is told with what led to it)
                wrong += 1
                print(f"seed {seed}: {type(error).__name__}: {error}", *living.told, sep="\n    ", flush=True)
    print(f"{done} histories, {wrong} wrong, {time.monotonic() - begun:.0f} s", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "error")
    main()
