"""Whatever becomes of the tasks of an array run, `merge` names every video that is missing, and the rest can be made later."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers import (
    KILL_ALL,
    command,
    environment,
    fault,
    leftovers,
    make_clip,
    make_clips,
    manifest,
    outputs,
    transcode,
)
from tests.s3 import bucket
from tests.sampling import in_turn
from vidprep.formats import open_store

ENCODED = ("transcode", "--gop", 4, "--preset", "ultrafast")
KINDS = {"h264": ENCODED, **{name: ("burst", "--format", name) for name in ("burst", "webdataset", "gulp", "tensor")}}
TERMINATE = "os.kill(os.getpid(), signal.SIGTERM)"
OTHER = ("--short-side", 32)
CLIPS = 9


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return make_clips(tmp_path_factory.mktemp("pool"), CLIPS, 4, size=(64, 48))


@pytest.fixture
def sources(pool, tmp_path):
    """Six of the clips; the others may come later."""
    folder = tmp_path / "sources"
    folder.mkdir()
    add(folder, pool, *range(6))
    return folder


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    with bucket(tmp_path_factory.mktemp("s3")) as running:
        yield running


def add(folder, pool, *numbers):
    for number in numbers:
        (folder / f"c{number:02d}.mp4").symlink_to(pool / f"c{number:02d}.mp4")


def ids_in(folder):
    return {path.stem for path in folder.glob("*.mp4")}


def array(sources, made, *parts, count=3, kind="h264", options=()):
    """Tasks one after the other, each to its end."""
    verb, *given = KINDS[kind]
    return [transcode(sources, made, *given, *options, "--shard", f"{part}/{count}", verb=verb).code for part in parts]


def broken(sources, made, part, hook, code, *, at=1, count=3, kind="h264", env=None):
    """A task that is stopped when it has so many rows."""
    verb, *given = KINDS[kind]
    stop = fault("vidprep.formats.manifest.table", "Journal.append", at=at, code=code, only="parent")
    env = (env or {}) | environment(hook, stop, **{k: v for k, v in (env or {}).items() if k.startswith("AWS_")})
    return transcode(sources, made, *given, "--jobs", 1, "--shard", f"{part}/{count}", verb=verb, env=env).code


def merge(made, env=None):
    """Its exit code, the videos that it names as missing, and the parts that did not end."""
    ran = transcode(made, verb="merge", env=env)
    named = [line.partition(": ")[0] for line in ran.out.splitlines()]
    assert len(named) == len({*named}), ran.out
    ended = ran.err.partition(" parts did not end (")[2].partition(")")[0]
    return ran.code, {*named}, {int(number) for number in ended.split(", ") if number}


def missing_by_validate(sources, made):
    ran = transcode(sources, made, "--sample", 1, "--cross-check", 0, verb="validate")
    named = [line.partition(": ")[0] for line in ran.out.splitlines() if ": no row: " in line]
    others = [line for line in ran.out.splitlines() if ": no row: " not in line]
    known = ("its source is not among", "no row of the manifest speaks of it")
    assert all(any(text in line for text in known) for line in others) and ran.code in (0, 1), ran.out + ran.err
    assert len(named) == len({*named})
    return {*named}


def contents(made):
    """What was made of each video, whichever shards it went to."""
    if list(made.glob("*.mp4")):
        return {name.removesuffix(".mp4"): data for name, data in outputs(made).items() if name.endswith(".mp4")}
    store = open_store(made)
    return {id_: store[id_].frames(range(len(store[id_]))).tobytes() for id_ in store.ids}


def test_a_part_that_was_killed_counted_as_there(sources, tmp_path):
    """Merge said "3 parts joined", rc 0, though a part had made nothing, or not all of its videos."""
    for name, code in (("killed", KILL_ALL), ("terminated", TERMINATE)):
        made = tmp_path / name
        assert array(sources, made, 0, 2) == [0, 0]
        assert broken(sources, made, 1, tmp_path / f"hook-{name}", code) == {"killed": -9, "terminated": 143}[name]
        for _ in range(2):
            code, named, unended = merge(made)
            assert (code, unended) == (1, {1})
            assert named == ids_in(sources) - manifest(made).keys()
            assert missing_by_validate(sources, made) == named
        assert array(sources, made, 1) == [0]
        assert merge(made) == (0, set(), set())
        assert manifest(made).keys() == ids_in(sources) and not leftovers(made)


def test_a_part_that_was_refused_or_never_ran_is_missed(sources, tmp_path):
    made = tmp_path / "made"
    assert array(sources, made, 0, 2) == [0, 0]
    assert array(sources, made, 1, options=OTHER) == [2]
    code, named, unended = merge(made)
    assert (code, unended, named) == (1, {1}, ids_in(sources) - manifest(made).keys())
    assert len(named) == 2


def test_a_refused_part_of_another_number_is_not_missed(sources, tmp_path):
    """It left a folder, and merge said that "parts 0, 2, 3" were missing."""
    made = tmp_path / "made"
    assert array(sources, made, 0) == [0]
    assert array(sources, made, 1, count=4) == [2]
    assert array(sources, made, 1, 2) == [0, 0]
    assert merge(made) == (0, set(), set())
    assert transcode(sources, made, "--cross-check", 0, verb="validate").code == 0


@pytest.mark.parametrize(("late", "size"), [((6,), (64, 48)), ((6, 7), (320, 240))])
def test_sources_that_come_between_tasks_change_nobodys_share_and_are_named(late, size, pool, sources, tmp_path):
    """Each task dealt the whole list anew: one tiny file lost five old videos, two large ones nine."""
    made, late_ids = tmp_path / "made", {f"c{number:02d}" for number in late}
    assert array(sources, made, 0) == [0]
    for id_ in late_ids:
        make_clip(sources / f"{id_}.mp4", 4, size, noise=size != (64, 48), seed=50)
    before = ids_in(sources) - late_ids
    assert array(sources, made, 1, 2) == [0, 0]
    for _ in range(2):
        assert merge(made) == (1, late_ids, set())
        assert missing_by_validate(sources, made) == late_ids
    assert manifest(made).keys() == before
    assert array(sources, made, 0, 1, 2) == [0, 0, 0]  # a new run of the array has them
    assert merge(made) == (0, set(), set())
    assert manifest(made).keys() == before | late_ids


def test_a_plain_run_makes_what_an_array_run_left(pool, sources, tmp_path):
    made = tmp_path / "made"
    assert array(sources, made, 0) == [0]
    add(sources, pool, 6)
    assert array(sources, made, 2) == [0]
    assert merge(made)[0] == 1
    assert transcode(sources, made, *ENCODED[1:], "--limit", 1).code == 0
    assert merge(made)[0] == 1
    assert transcode(sources, made, *ENCODED[1:]).code == 0
    assert merge(made) == (0, set(), set())
    assert manifest(made).keys() == ids_in(sources)


def test_parts_begun_at_once_with_other_settings_do_not_mix(sources, tmp_path):
    """Both checked the settings before either wrote them: all ended well, and half of the videos had another CRF."""
    made = tmp_path / "made"
    tasks = [
        subprocess.Popen(command(sources, made, "--crf", crf, "--shard", f"{part}/2"), env=environment(), stderr=subprocess.PIPE, text=True)
        for part, crf in enumerate((20, 35))
    ]  # fmt: skip
    said = [task.communicate(timeout=120)[1] for task in tasks]
    assert sorted(task.returncode for task in tasks) == [0, 2], said
    assert any("an array run was begun here with other settings: encoder.crf" in text for text in said)
    code, named, unended = merge(made)
    won = 0 if tasks[0].returncode == 0 else 1
    assert (code, unended) == (1, {1 - won})
    assert {row["crf"] for row in manifest(made).values()} == {(20, 35)[won]}
    assert transcode(sources, made, "--crf", (20, 35)[won], "--shard", f"{1 - won}/2").code == 0
    assert merge(made) == (0, set(), set())


def test_rows_of_other_settings_are_named(sources, tmp_path):
    """However they came in."""
    made, other = tmp_path / "made", tmp_path / "other"
    assert transcode(sources, made, *ENCODED[1:]).code == 0
    assert transcode(sources, other, *ENCODED[1:], *OTHER, "--limit", 2).code == 0
    (made / "manifest-00001-of-00002.parquet").write_bytes((other / "manifest.parquet").read_bytes())
    ran = transcode(made, verb="merge")
    assert ran.code == 1 and ran.out.count("made with other settings") == 2
    ran = transcode(made, "--sample", 1, verb="validate")
    assert ran.code == 1 and ran.out.count("made with other settings") == 2


def test_another_number_of_parts_takes_over_after_a_merge(pool, sources, tmp_path):
    made = tmp_path / "made"
    assert array(sources, made, 0, 2) == [0, 0]
    assert array(sources, made, 0, count=2) == [2]
    assert merge(made)[0] == 1
    add(sources, pool, 6)
    assert array(sources, made, 0, count=2, options=("--limit", 1)) == [2]  # else nobody knew of the others any more
    assert array(sources, made, 0, 1, count=2) == [0, 0]
    assert merge(made) == (0, set(), set())
    assert manifest(made).keys() == ids_in(sources)


def test_a_video_of_the_plan_that_is_gone_is_named_until_a_new_run(sources, tmp_path):
    made = tmp_path / "made"
    assert array(sources, made, 0) == [0]
    lost = min(ids_in(sources) - set(contents(made)))
    (sources / f"{lost}.mp4").unlink()
    assert sorted(array(sources, made, 1, 2)) == [0, 1]
    for _ in range(2):
        assert merge(made) == (1, {lost}, set())
    assert array(sources, made, 0, 1, 2) == [0, 0, 0]
    assert merge(made) == (0, set(), set())


def test_a_dry_run_of_a_part_shows_its_share_and_plans_nothing(sources, tmp_path):
    made = tmp_path / "made"
    shown = [transcode(sources, made, "--shard", f"{part}/3", "--dry-run").out.splitlines() for part in range(3)]
    assert [len(lines) for lines in shown] == [2, 2, 2] and not made.exists()
    assert transcode(sources, made, *ENCODED[1:], "--shard", "0/3").code == 0
    assert transcode(sources, made, *ENCODED[1:], "--shard", "1/3", "--dry-run").out.splitlines() == shown[1]


@pytest.mark.parametrize("data", [b"nonsense", b""])
def test_a_plan_that_cannot_be_read_is_said(data, sources, tmp_path):
    made = tmp_path / "made"
    assert array(sources, made, 0) == [0]
    (made / ".vidprep" / "plan.parquet").write_bytes(data)
    for ran in (transcode(sources, made, "--shard", "1/3"), transcode(made, verb="merge")):
        assert ran.code == 2 and "plan.parquet: cannot be read" in ran.err, ran.err


def test_validate_names_every_source_without_a_row(sources, pool, tmp_path):
    made = tmp_path / "made"
    assert transcode(sources, made, *ENCODED[1:], "--limit", 4).code == 0
    assert missing_by_validate(sources, made) == {"c04", "c05"}
    ran = transcode(sources, made, "--limit", 4, "--cross-check", 0, verb="validate")
    assert ran.code == 0, ran.out


# ----------------------------------------------------------------------------------------------- whatever happens


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
            if name.endswith("/lock"):
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
        shard = ("--jobs", 1, "--shard", f"{part}/{count or self.count}")
        found = ids_in(self.sources)
        ran = transcode(
            self.sources, self.place.url, *given, *(options or self.options), *shard, verb=verb, env=env or self.place.env
        )  # fmt: skip
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
        stop = fault(
            "vidprep.formats.manifest.table", "Journal.append", at=self.rng.choice((1, 2)), code=code, only="parent"
        )
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
                command(self.sources, self.place.url, *given, *options, "--shard", f"{part}/{self.count}", verb=verb),
                env=self.place.env or environment(), stderr=subprocess.DEVNULL,
            )
            for part, options in enumerate(((), OTHER))
        ]  # fmt: skip
        codes = [task.wait(timeout=120) for task in tasks]
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
