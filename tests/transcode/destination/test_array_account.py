"""What an array run was to make, and what of it is missing."""

from __future__ import annotations

import subprocess

import pytest

from tests import points
from tests.helpers import KILL_ALL, command, environment, fault, leftovers, make_clip, manifest, transcode
from tests.transcode.destination.arrays import (
    ENCODED,
    KINDS,
    OTHER,
    TERMINATE,
    add,
    contents,
    ids_in,
    merge,
    missing_by_validate,
)


def array(sources, made, *parts, count=3, kind="h264", options=()):
    """Tasks one after the other, each to its end."""
    verb, *given = KINDS[kind]
    return [
        transcode(sources, made, *given, *options, "--partition", f"{part}/{count}", verb=verb).code for part in parts
    ]


def broken(sources, made, part, hook, code, *, at=1, count=3, kind="h264", env=None):
    """A task that is stopped when it has so many rows."""
    verb, *given = KINDS[kind]
    stop = fault(*points.JOURNAL_APPEND, at=at, code=code, only="parent")
    env = (env or {}) | environment(hook, stop, **{k: v for k, v in (env or {}).items() if k.startswith("AWS_")})
    return transcode(sources, made, *given, "--jobs", 1, "--partition", f"{part}/{count}", verb=verb, env=env).code


@pytest.mark.long
def test_a_part_that_was_killed_counted_as_there(sources, tmp_path):
    """Merge said "3 partitions joined", rc 0, though a part had made nothing, or not all of its videos."""
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


@pytest.mark.long
@pytest.mark.parametrize(("late", "size"), [((6,), (64, 48)), ((6, 7), (320, 240))])
def test_sources_added_between_tasks_change_no_share_and_are_named(late, size, pool, sources, tmp_path):
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


def test_a_task_with_other_sources_is_refused(tmp_path):
    for name in ("ours/a", "ours/b", "others/c"):
        make_clip(tmp_path / f"{name}.mp4", 4)
    assert transcode(tmp_path / "ours", tmp_path / "dst", "--partition", "0/2").code == 0
    ran = transcode(tmp_path / "others", tmp_path / "dst", "--partition", "1/2")
    assert ran.code == 2 and "none of which is in" in ran.err and "ours" in ran.err
    assert transcode(tmp_path / "ours", tmp_path / "dst", "--partition", "1/2").code == 0


def test_a_plain_run_does_the_rest_of_an_array_run(pool, sources, tmp_path):
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


@pytest.mark.long
def test_parts_begun_at_once_with_other_settings_do_not_mix(sources, tmp_path):
    """Both checked the settings before either wrote them: all ended well, and half of the videos had another CRF."""
    made = tmp_path / "made"
    tasks = [
        subprocess.Popen(
            command(sources, made, "--crf", crf, "--partition", f"{part}/2"),
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for part, crf in enumerate((20, 35))
    ]
    said = [task.communicate(timeout=300)[1] for task in tasks]
    assert sorted(task.returncode for task in tasks) == [0, 2], said
    assert any("an array run was started here with different settings: --crf" in text for text in said)
    code, named, unended = merge(made)
    won = 0 if tasks[0].returncode == 0 else 1
    assert (code, unended) == (1, {1 - won})
    assert {row["crf"] for row in manifest(made).values()} == {(20, 35)[won]}
    assert transcode(sources, made, "--crf", (20, 35)[won], "--partition", f"{1 - won}/2").code == 0
    assert merge(made) == (0, set(), set())


def test_rows_of_other_settings_are_named(sources, tmp_path):
    """However they came in."""
    made, other = tmp_path / "made", tmp_path / "other"
    assert transcode(sources, made, *ENCODED[1:]).code == 0
    assert transcode(sources, other, *ENCODED[1:], *OTHER, "--limit", 2).code == 0
    (made / "manifest-00001-of-00002.parquet").write_bytes((other / "manifest.parquet").read_bytes())
    ran = transcode(made, verb="merge")
    assert ran.code == 1 and ran.out.count("made with different settings") == 2
    ran = transcode(made, "--sample", 1, verb="validate")
    assert ran.code == 1 and ran.out.count("made with different settings") == 2


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
    shown = [transcode(sources, made, "--partition", f"{part}/3", "--dry-run").out.splitlines() for part in range(3)]
    assert [len(lines) for lines in shown] == [2, 2, 2] and not made.exists()
    assert transcode(sources, made, *ENCODED[1:], "--partition", "0/3").code == 0
    assert transcode(sources, made, *ENCODED[1:], "--partition", "1/3", "--dry-run").out.splitlines() == shown[1]


@pytest.mark.parametrize("data", [b"nonsense", b""])
def test_a_plan_that_cannot_be_read_is_said(data, sources, tmp_path):
    made = tmp_path / "made"
    assert array(sources, made, 0) == [0]
    (made / ".vidprep" / "plan.parquet").write_bytes(data)
    for ran in (transcode(sources, made, "--partition", "1/3"), transcode(made, verb="merge")):
        assert ran.code == 2 and "plan.parquet: cannot be read" in ran.err, ran.err


def test_validate_names_every_source_without_a_row(sources, pool, tmp_path):
    made = tmp_path / "made"
    assert transcode(sources, made, *ENCODED[1:], "--limit", 4).code == 0
    assert missing_by_validate(sources, made) == {"c04", "c05"}
    ran = transcode(sources, made, "--limit", 4, "--cross-check", 0, verb="validate")
    assert ran.code == 0, ran.out
