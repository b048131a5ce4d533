"""Random histories of a destination: after each step it must be whole, and equal to what one fresh run makes.

    python -m tests.histories [SEEDS] [--first N] [--seconds S] [--lost | --select]

A history has one kind of output, and is made by single runs or by arrays. Its sources come, go, and are replaced by good or
bad ones, or renamed; runs are whole, list some sources, overwrite, or are killed or stopped and woken when another has taken over;
merges are done twice. After
each step `validate SRC DST` finds nothing, or names just what is missing; in the end the rows are those of one fresh run.

--select: what was made is selected as a whole, which goes on as the destination; and frames of it are those of a fresh selection.

--lost: files of the destination's own are lost, emptied or replaced by older ones, and commands are run all the same: what was made
stays, or the command refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests import points
from tests.helpers import KILL_ALL, command, environment, fault, leftovers, make_clip, manifest, outputs, transcode
from tests.living import twice
from tests.transcode.destination.arrays import KINDS, contents
from vidprep.formats import open_store
from vidprep.formats.errors import ManifestError, StoreError

STEPS = 4
MADE_UP = {"encode_seconds", "cpu_seconds", "attempts", "run", "file_name", "offset", "stored_bytes", "source"}
MADE_UP |= {"selected_from", "selected_id", "selected_sha256"}
IMPATIENT = (
    f"m = importlib.import_module({points.LEASE_TIMES!r}); m.FOLDER_GONE_SECONDS = 1.5; m.FOLDER_BEAT_SECONDS = 0.3"
)
STOPS = (
    points.JOURNAL_APPEND,
    points.COPY,
    ("os", "replace"),
    points.WRITE_ROWS,
    ("pathlib", "Path.replace"),
    ("os", "unlink"),
)


class Wrong(Exception):
    pass


class History:
    def __init__(self, seed: int, work: Path) -> None:
        self.rng = random.Random(seed)
        self.kind = self.rng.choice(list(KINDS))
        self.count = self.rng.choice((0, 0, 2, 3, 7))
        self.labels = self.rng.random() < 0.3
        self.src, self.made, self.work = work / "src", work / "made", work
        self.selected = 0
        self.told: list[str] = [f"{self.kind}, {self.count or 'no'} parts{', labels' if self.labels else ''}"]
        self.clips = 0
        self.src.mkdir()
        for _ in range(self.rng.randint(4, 8)):
            self.add()

    # ------------------------------------------------------------------------------------------- what happens to the sources

    def add(self) -> None:
        self.put(f"c{self.clips:02d}")

    def put(self, name: str) -> None:
        self.clips += 1
        make_clip(self.src / f"{name}.mp4", self.rng.randint(3, 9), seed=self.clips)

    def remove(self) -> None:
        there = sorted(self.src.glob("*.mp4"))
        if len(there) > 3:
            self.rng.choice(there).unlink()

    def replace(self) -> None:
        self.put(self.rng.choice(sorted(self.src.glob("*.mp4"))).stem)

    def rename(self) -> None:
        self.clips += 1
        self.rng.choice(sorted(self.src.glob("*.mp4"))).rename(self.src / f"r{self.clips:02d}.mp4")

    def spoil(self) -> None:
        self.rng.choice(sorted(self.src.glob("*.mp4"))).write_bytes(bytes(3000 + self.clips))

    # ------------------------------------------------------------------------------------------- runs

    def given(self, *more: object, to: Path | None = None) -> tuple[str, list[object]]:
        """A command and its arguments."""
        verb, *options = KINDS[self.kind]
        if self.kind != "h264":
            options += ["--shard-size", "1MiB"]
        if self.labels:
            options += ["--label-from-folder"]
        return verb, [self.src, to or self.made, *options, "--quiet", *more]

    def run(self, *more: object, env: dict[str, str] | None = None, to: Path | None = None) -> int:
        verb, given = self.given(*more, to=to)
        ran = transcode(*given, verb=verb, env=env)
        self.said = ran.err
        return ran.code

    def broken(self, code: str) -> dict[str, str]:
        """An environment in which the parent is stopped somewhere, by `code`."""
        where, name = self.rng.choice(STOPS)
        hook = self.work / f"hook{len(self.told)}"
        return environment(
            hook,
            fault(
                where,
                name,
                at=self.rng.randint(1, 4),
                when=self.rng.choice(("before", "after")),
                code=code,
                only="parent",
            ),
            fault(*points.DESTINATION_LOCK, code=IMPATIENT, only="parent"),
        )

    def stopped_and_woken(self, *more: object) -> None:
        """A run on another host is stopped; another takes over and ends; the first wakes."""
        env = self.broken("os.kill(os.getpid(), signal.SIGSTOP)")
        host = ["unshare", "-u", "sh", "-c", 'hostname other; exec "$@"', "sh"]
        verb, given = self.given("--jobs", 1, *more)
        first = subprocess.Popen(
            [*host, *command(*given, verb=verb)], env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            while first.poll() is None and _state(first.pid) != "T":
                time.sleep(0.05)
            if first.poll() is None:
                time.sleep(0.5)
                hook = self.work / f"second{len(self.told)}"
                impatient = fault(*points.DESTINATION_LOCK, code=IMPATIENT, only="parent")
                if self.run(*more, env=environment(hook, impatient)) not in (0, 1):
                    raise Wrong(f"the second run: {self.said}")
        finally:
            if first.poll() is None:
                os.killpg(first.pid, signal.SIGCONT)
        _, said = first.communicate(timeout=300)
        self.told.append(f"  woken: {first.returncode}")
        if first.returncode not in (0, 1, 3) or "Traceback" in said:
            raise Wrong(f"the woken run ended with {first.returncode}: {said}")

    def step(self) -> None:
        for change in self.rng.sample(
            (self.add, self.remove, self.replace, self.rename, self.rename, self.spoil), self.rng.randint(0, 3)
        ):
            change()
            self.told.append(f"  {change.__name__}")
        overwrite = ("--overwrite",) if self.rng.random() < 0.2 else ()
        if (self.made / "manifest.parquet").exists():
            self.narrowed()
        how = self.rng.choice(("whole", "whole", "killed", "woken"))
        parts = (
            [("--partition", f"{n}/{self.count}") for n in range(self.count)]
            if self.count and self.rng.random() < 0.8
            else [()]
        )
        hurt = self.rng.randrange(len(parts)) if how != "whole" else None
        self.told.append(f"{how} {' '.join(overwrite)} {len(parts)} parts, {hurt}")
        for number, part in enumerate(parts):
            if number == hurt and how == "killed":
                if self.run("--jobs", 1, *overwrite, *part, env=self.broken(KILL_ALL)) not in (-9, 0, 1):
                    raise Wrong(self.said)
                if part and self.rng.random() < 0.3:
                    self.merge()
            elif number == hurt:
                self.stopped_and_woken(*overwrite, *part)
            if self.run(*overwrite, *part) not in (0, 1):
                raise Wrong(self.said)
        if parts != [()]:
            for _ in range(self.rng.choice((1, 2))):
                self.merge()

    def narrowed(self) -> None:
        """A run of some sources, perhaps."""
        name = self.rng.choice(sorted(self.src.glob("*.mp4"))).name
        given = self.rng.choice(
            (None, ("--include", name), ("--exclude", name), ("--limit", 2), ("--exclude", "*.txt"))
        )
        if given is None:
            return
        before = manifest(self.made)
        self.told.append(f"narrowed {given}")
        if self.run(*given) not in (0, 1):
            raise Wrong(self.said)
        if other := twice(manifest(self.made), before):
            raise Wrong(f"stand twice: {other}")

    def merge(self) -> None:
        ran = transcode(self.made, verb="merge")
        if ran.code not in (0, 1):
            raise Wrong(ran.err)

    def select(self) -> None:
        """Take what was made as another destination, which goes on in its place; and frames of it, twice."""
        rows = {id_: row for id_, row in manifest(self.made).items() if row["status"] == "ok"}
        if not rows:
            return
        self.selected += 1
        whole, frames, fresh = (self.work / f"{name}{self.selected}" for name in ("whole", "frames", "fresh_frames"))
        spans = {id_: sorted(self.rng.sample(range(row["num_frames"] + 1), 2)) for id_, row in rows.items()}
        table = self.work / f"trims{self.selected}.csv"
        lines = [f"{id_},{begin},{end}" for id_, (begin, end) in spans.items()]
        table.write_text("\n".join(["id,start_frame,end_frame", *lines]))
        self.told.append(f"selected {lines}")
        for out, more, env in (
            (frames, ("--table", table), self.broken(KILL_ALL)),
            (frames, ("--table", table), None),
            (fresh, ("--table", table), None),
            (whole, (), self.broken(KILL_ALL)),
            (whole, (), None),
        ):
            ran = transcode(self.made, out, *more, "--jobs", 1, "--quiet", verb="select", env=env)
            if ran.code != 0 and not (env and ran.code == -9):
                raise Wrong(f"select: {ran.code} {ran.err}")
        if _plain(manifest(frames)) != _plain(manifest(fresh)) or contents(frames) != contents(fresh):
            raise Wrong("frames that were selected differ from those of a fresh selection")
        store, made = open_store(self.made), open_store(frames)
        for id_, row in manifest(frames).items():
            begin, end = spans[row["selected_id"]]
            same = np.asarray(store[row["selected_id"]].frames())[begin:end] == np.asarray(made[id_].frames())
            num_same = int(same.reshape(end - begin, -1).all(1).sum())
            said = next((text for text in row["warnings"] if "encoded again" in text), "0")
            if end - begin - num_same > int(said.split()[0]):
                raise Wrong(f"{id_}: {end - begin - num_same} of its frames are others, and it says {said}")
        for out in (frames, whole):
            ran = transcode(out, "--quiet", verb="validate")
            if ran.code or leftovers(out):
                raise Wrong(f"{out.name}: {ran.out} {leftovers(out)}")
        self.made = whole

    # ------------------------------------------------------------------------------------------- what must be so

    def check(self) -> None:
        there = {path.stem for path in self.src.glob("*.mp4")}
        checked = transcode(self.src, self.made, "--cross-check", 0, "--quiet", verb="validate")
        faults = [line for line in checked.out.splitlines() if "its source is not among" not in line and line.strip()]
        rows = manifest(self.made)
        if faults or not there <= rows.keys():
            raise Wrong(f"{there - rows.keys()} {faults} {checked.err[-300:]}")
        if left := leftovers(self.made):
            raise Wrong(f"left behind: {left}")
        fresh = self.work / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        self.run(to=fresh)
        expected, found = _plain(manifest(fresh)), _plain({id_: rows[id_] for id_ in there})
        if expected != found:
            differing = [
                (id_, name) for id_ in expected for name in expected[id_] if expected[id_][name] != found[id_].get(name)
            ]
            raise Wrong(f"rows differ from those of a fresh run: {differing[:5]}")
        whole, made = contents(fresh), contents(self.made)
        if any(made.get(id_) != data for id_, data in whole.items()):
            raise Wrong("contents differ from those of a fresh run")
        bad = {id_ for id_ in there if rows[id_]["status"] != "ok"}
        if bad & made.keys():
            raise Wrong(f"outputs of failed videos: {bad & made.keys()}")


class LostHistory(History):
    """Of single runs: a file of the destination's own goes, and whatever is run then takes no video with it."""

    def __init__(self, seed: int, work: Path) -> None:
        super().__init__(seed, work)
        self.count = 0
        self.older: dict[str, bytes] = {}
        self.refused = self.done = 0

    def step(self) -> None:
        for change in self.rng.sample((self.add, self.replace, self.spoil), self.rng.randint(0, 2)):
            change()
            self.told.append(f"  {change.__name__}")
        if self.run() not in (0, 1):
            raise Wrong(self.said)
        names = self.own_files()
        kept = {name: (self.made / name).read_bytes() for name in names}
        before = contents(self.made)
        for name in self.rng.sample(names, self.rng.choice((1, 1, 2))):
            self.hurt(name)
        for _ in range(self.rng.randint(1, 3)):
            self.whatever(before)
        if self.rng.random() < 0.5:
            for name, data in kept.items():
                if name.endswith(".gmeta"):
                    continue  # of a shard that may be another by now
                if not (self.made / name).exists() or self.rng.random() < 0.5:
                    (self.made / name).write_bytes(data)
            if self.run() in (0, 1):
                self.older = kept
                return
        self.told.append("  overwritten")
        if self.run("--overwrite") not in (0, 1):
            raise Wrong(f"--overwrite: {self.said}")
        self.older = kept

    def own_files(self) -> list[str]:
        state = [f".vidprep/{name}" for name in ("run.json", "manifest.json")]
        indexes = [path.name for path in self.made.iterdir() if path.suffix in (".parquet", ".json", ".gmeta")]
        return sorted(name for name in [*state, *indexes] if (self.made / name).exists())

    def hurt(self, name: str) -> None:
        how = self.rng.choice(("lost", "emptied", "older"))
        self.told.append(f"  {how if name in self.older or how != 'older' else 'lost'}: {name}")
        if how == "emptied":
            (self.made / name).write_bytes(b"")
        elif how == "older" and name in self.older:
            (self.made / name).write_bytes(self.older[name])
        else:
            (self.made / name).unlink()

    def whatever(self, before: dict[str, bytes]) -> None:
        """A command that is not told to make all anew."""
        verb, given = self.given()
        way = self.rng.choice(("run", "limited", "limited", "overwritten in part", "compacted", "killed"))
        there = outputs(self.made)
        if way == "compacted":
            code, said = (ran := transcode(self.made, verb="compact")).code, ran.err
        else:
            more = {"limited": ("--limit", 1), "overwritten in part": ("--limit", 1, "--overwrite")}.get(way, ())
            code = self.run(*more, env=self.broken(KILL_ALL) if way == "killed" else None)
            said = self.said
        self.told.append(f"  {way}: {code}")
        if "Traceback" in said:
            raise Wrong(f"{verb} {given}: {said}")
        shards = {
            name: data for name, data in there.items() if name.endswith((".mp4", ".bin", ".tar", ".gulp", ".npy"))
        }
        if code == 2:
            self.refused += 1
            now = outputs(self.made)
            if gone := [name for name, data in shards.items() if now.get(name) != data]:
                raise Wrong(f"{way} was refused, and {gone} went")
            return
        self.done += 1
        if code == -9:
            return
        try:
            now = contents(self.made)
        except (StoreError, ManifestError) as error:
            raise Wrong(f"{way} ended with {code}, and the store does not open: {error}") from error
        bad = {path.stem for path in self.src.glob("*.mp4") if not path.read_bytes().strip(bytes(1))}
        if lost := [id_ for id_ in before.keys() - now.keys() if id_ not in bad]:
            raise Wrong(f"{way} ended with {code}, and {lost} are gone: {said}")


def _plain(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        id_: {name: value for name, value in row.items() if name not in MADE_UP and value is not None}
        for id_, row in rows.items()
    }


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "Z"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="?", default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--lost", action="store_true")
    parser.add_argument("--select", action="store_true")
    asked = parser.parse_args()
    begun, done, wrong = time.monotonic(), 0, 0
    commands = refused = 0
    for seed in range(asked.first, asked.first + asked.seeds):
        if time.monotonic() - begun > asked.seconds:
            break
        with tempfile.TemporaryDirectory() as work:
            history = (LostHistory if asked.lost else History)(seed, Path(work))
            done += 1
            try:
                history.step()
                history.check()
                for _ in range(history.rng.randint(2, STEPS) - 1):
                    if asked.select:
                        history.select()
                    history.step()
                    history.check()
            except (Wrong, subprocess.TimeoutExpired, OSError, AssertionError, json.JSONDecodeError) as error:
                wrong += 1
                print(f"seed {seed}: {type(error).__name__}: {error}", *history.told, sep="\n    ", flush=True)
            if isinstance(history, LostHistory):
                commands, refused = commands + history.done + history.refused, refused + history.refused
    if asked.lost:
        print(f"{commands} commands on what was lost, {refused} refused")
    print(f"{done} histories, {wrong} wrong, {time.monotonic() - begun:.0f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
