"""Array runs and their parts."""

from __future__ import annotations

from tests.helpers import outputs, transcode
from vidprep.formats import open_store

ENCODED = ("transcode", "--gop", 4, "--preset", "ultrafast")


KINDS = {
    "h264": ENCODED,
    "shards": (*ENCODED, "--format", "shards"),
    **{name: ("burst", "--format", name) for name in ("burst", "webdataset", "gulp", "tensor")},
}


TERMINATE = "os.kill(os.getpid(), signal.SIGTERM)"


OTHER = ("--short-side", 32)


CLIPS = 9


def add(folder, pool, *numbers):
    for number in numbers:
        (folder / f"c{number:02d}.mp4").symlink_to(pool / f"c{number:02d}.mp4")


def ids_in(folder):
    return {path.stem for path in folder.glob("*.mp4")}


def merge(made, env=None):
    """Its exit code, the videos that it names as missing, and the parts that did not finish."""
    ran = transcode(made, verb="merge", env=env)
    named = [line.partition(": ")[0] for line in ran.out.splitlines()]
    assert len(named) == len({*named}), ran.out
    ended = ran.err.partition(" partitions did not finish (")[2].partition(")")[0]
    return ran.code, {*named}, {int(number) for number in ended.split(", ") if number}


def missing_by_validate(sources, made):
    ran = transcode(sources, made, "--sample", 1, "--cross-check", 0, verb="validate")
    named = [line.partition(": ")[0] for line in ran.out.splitlines() if ": no row: " in line]
    others = [line for line in ran.out.splitlines() if ": no row: " not in line]
    known = ("its source is not among", "no row of the manifest mentions it")
    assert all(any(text in line for text in known) for line in others) and ran.code in (0, 1), ran.out + ran.err
    assert len(named) == len({*named})
    return {*named}


def contents(made):
    """What was made of each video, whichever shards it went to."""
    if list(made.glob("*.mp4")):
        return {name.removesuffix(".mp4"): data for name, data in outputs(made).items() if name.endswith(".mp4")}
    store = open_store(made)
    return {id_: store[id_].frames(range(len(store[id_]))).tobytes() for id_ in store.ids}
