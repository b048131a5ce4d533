"""Array runs in which anything happens to any task."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import points
from tests.helpers import KILL_ALL, command, environment, fault, manifest, transcode
from tests.s3 import bucket
from tests.sampling import in_turn
from tests.transcode.destination.arrays import (
    CLIPS,
    KINDS,
    OTHER,
    TERMINATE,
    add,
    contents,
    ids_in,
    merge,
    missing_by_validate,
)


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    with bucket(tmp_path_factory.mktemp("s3")) as running:
        yield running


@dataclass
class Place:
    """Where an array run goes. copy: what is there, as a folder."""

    url: str | Path
    copy: Path
    bucket: object = None

    @property
    def env(self):
        return self.bucket.environment if self.bucket else None

    def here(self):
        if self.bucket:
            shutil.rmtree(self.copy, ignore_errors=True)
            for name, data in self.bucket.objects(f"{self.copy.name}/").items():
                (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
                (self.copy / name).write_bytes(data)
        return self.copy

    def forget_locks(self):
        """Of tasks that were killed, which else hold for two minutes."""
        for name in self.bucket.objects(f"{self.copy.name}/") if self.bucket else ():
            if "/lease-" in name:
                self.bucket.client.delete_object(Bucket=self.bucket.name, Key=f"{self.copy.name}/{name}")


@dataclass
class Story:
    """An array run in which anything may happen, and what is known of it from outside."""

    rng: random.Random
    kind: str
    place: Place
    sources: Path
    pool: Path
    hooks: Path
    count: int = 3
    options: tuple = ()
    planned: set = field(default_factory=set)
    seen: dict = field(default_factory=dict)
    begun: bool = False
    told: list = field(default_factory=list)

    def task(self, part, *options, count=None, env=None):
        verb, *given = KINDS[self.kind]
        shard = ("--jobs", 1, "--partition", f"{part}/{count or self.count}")
        found = ids_in(self.sources)
        ran = transcode(
            self.sources,
            self.place.url,
            *given,
            *(options or self.options),
            *shard,
            verb=verb,
            env=env or self.place.env,
        )
        self.note(part, ran.code, found, options)
        return ran.code

    def note(self, part, code, found, options=()):
        self.told.append((part, code, *options))
        assert code in (0, 1, 2, 143, -9), self.told
        if code == 2:
            return
        if not self.begun:
            self.begun, self.planned, self.options = True, found, options or self.options
        self.seen.pop(part, None)
        if code in (0, 1):
            self.seen[part] = found

    def stopped(self, part, code):
        stop = fault(*points.JOURNAL_APPEND, at=self.rng.choice((1, 2)), code=code, only="parent")
        keys = {name: value for name, value in (self.place.env or {}).items() if name.startswith("AWS_")}
        code = self.task(part, env=environment(self.hooks / str(len(self.told)), stop, **keys))
        self.place.forget_locks()

    def refused(self, part):
        if not self.begun:
            assert self.task(part, "--include", "none") == 2
        elif self.rng.random() < 0.5:
            assert self.task(part, count=self.count + 1) == 2
        else:
            assert self.task(part, *(() if self.options else OTHER), "--fps", 7) == 2

    def two_at_once(self):
        """Part 0 with these settings, part 1 with others."""
        verb, *given = KINDS[self.kind]
        found = ids_in(self.sources)
        tasks = [
            subprocess.Popen(
                command(
                    self.sources, self.place.url, *given, *options, "--partition", f"{part}/{self.count}", verb=verb
                ),
                env=self.place.env or environment(),
                stderr=subprocess.DEVNULL,
            )
            for part, options in enumerate(((), OTHER))
        ]
        codes = [task.wait(timeout=300) for task in tasks]
        assert sorted(codes) == [0, 2], codes
        won = codes.index(0)
        self.options = ((), OTHER)[won]
        self.note(won, 0, found, self.options)

    def change_sources(self):
        there = ids_in(self.sources)
        if self.rng.random() < 0.3 and len(there) > 4:
            (self.sources / f"{self.rng.choice(sorted(there))}.mp4").unlink()
        elif late := sorted({f"c{n:02d}" for n in range(CLIPS)} - there - self.planned):
            add(self.sources, self.pool, int(self.rng.choice(late)[1:]))

    def check(self, *, again=False):
        """What merge says is what is there. Returns the parts that are to be run again. again: so it says once more, and validate."""
        for _ in range(1 + again):
            code, named, unended = merge(self.place.url, self.place.env)
            rows = set(manifest(self.place.here()))
            made = contents(self.place.copy).keys()
            # Workers put videos into a bucket, and rows follow: of a task that was killed there may be videos without rows.
            assert made >= rows if self.place.bucket and self.kind == "h264" else made == rows
            due = self.planned.union(*self.seen.values())
            assert named == due - rows, self.told
            assert unended == set(range(self.count)) - self.seen.keys(), self.told
            assert code == (1 if named or unended else 0)
        if again:
            missing = (named | ids_in(self.sources)) - rows
            assert missing_by_validate(self.sources, self.place.copy) == missing, self.told
        return unended

    def again(self):
        """A new array run: of what is there now."""
        self.begun, self.seen = False, {}
        for part in range(self.count):
            assert self.task(part) == 0


@pytest.fixture(scope="module")
def whole(pool, tmp_path_factory):
    made = {}

    def of(kind, options):
        if (kind, options) not in made:
            verb, *given = KINDS[kind]
            folder = tmp_path_factory.mktemp("whole") / "made"
            assert transcode(pool, folder, *given, *options, verb=verb).code == 0
            made[kind, options] = contents(folder)
        return made[kind, options]

    return of


@pytest.mark.long
@pytest.mark.parametrize("seed", in_turn(range(60), 60))
def test_merge_says_the_truth_about_every_video_whatever_happens(seed, pool, sources, whole, tmp_path, request):
    """Tasks killed, terminated, refused, run twice, left out, begun with other settings; sources that come and go."""
    rng = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    remote = seed % 4 == 2
    server = request.getfixturevalue("there") if remote else None
    made = tmp_path / f"made{seed}"
    story = Story(
        rng, kind, Place(f"s3://videos/{made.name}" if remote else made, made, server), sources, pool, tmp_path
    )
    rest = list(range(story.count))
    if rng.random() < 0.25:
        story.two_at_once()
        rest.remove(1 if story.options == () else 0)
    rng.shuffle(rest)
    for part in rest:
        match rng.choice(("done", "done", "killed", "terminated", "refused", "twice", "left out")):
            case "done":
                story.task(part)
            case "killed":
                story.stopped(part, KILL_ALL)
            case "terminated":
                story.stopped(part, TERMINATE)
            case "refused":
                story.refused(part)
            case "twice":
                story.task(part)
                rng.choice((story.task, lambda part: story.stopped(part, KILL_ALL)))(part)
        if rng.random() < 0.4:
            story.change_sources()
    if not story.begun:
        story.stopped(0, KILL_ALL)
    for part in sorted(story.check(again=True)):
        assert story.task(part) in (0, 1)
    assert story.check() == set()
    if not ids_in(sources) <= set(manifest(made)) or rng.random() < 0.3:
        story.again()
        assert story.check(again=True) == set()
    found, expected = contents(made), whole(kind, story.options)
    assert found.keys() >= ids_in(sources)
    assert all(data == expected[id_] for id_, data in found.items())
