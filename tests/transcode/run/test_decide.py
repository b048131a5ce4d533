"""What a run does about a unit, by what the destination knows of it."""

from __future__ import annotations

import pytest

from vidprep.formats.model import Cut
from vidprep.transcode.destination.run_file import KnownUnit
from vidprep.transcode.run.plan import Decision, Known, Rules, decide
from vidprep.transcode.sources.unit import Unit

UNIT = Unit("a", "/raw/a.mp4", 100, 7)
RULES, RETRIED_NEVER, AGAIN = Rules(["new", "old"]), Rules(["new"], skip_failed=True), Rules(["new"], overwrite=True)


def row(**changes: object) -> KnownUnit:
    """The row of UNIT when it is finished."""
    names = dict.fromkeys(KnownUnit._fields)
    own = {"id": "a", "file_name": "a.mp4", "status": "ok", "attempts": 1, "source": "/raw/a.mp4"}
    state = {"source_size_bytes": 100, "source_mtime_ns": 7, "settings_digest": "new"}
    return KnownUnit(**names | own | state | changes)


FAILED = {"status": "failed", "file_name": ""}


@pytest.mark.parametrize(
    ("known", "rules", "decision"),
    [
        (Known(), RULES, Decision.MAKE),
        (Known(row(), is_held=True), RULES, Decision.DONE),
        (Known(row(), is_held=False), RULES, Decision.MAKE),
        (Known(row(), is_held=True), AGAIN, Decision.MAKE),
        (Known(row(settings_digest="old"), is_held=True), RULES, Decision.DONE),
        (Known(row(settings_digest="other"), is_held=True), RULES, Decision.MAKE),
        (Known(row(source_size_bytes=101), is_held=True), RULES, Decision.MAKE),
        (Known(row(source_mtime_ns=8), is_held=True), RULES, Decision.MAKE),
        (Known(row(end_seconds=2.0), is_held=True), RULES, Decision.MAKE),
        (Known(row(source="/mnt/a.mp4"), is_held=True), RULES, Decision.MOVED),
        (Known(row(id="b", file_name="b.mp4"), before="b", is_held=True), RULES, Decision.MOVED),
        (Known(row(id="b", file_name="b.mp4"), before="b", is_held=False), RULES, Decision.MAKE),
        (Known(row(**FAILED)), RULES, Decision.MAKE),
        (Known(row(**FAILED), is_held=True), RULES, Decision.MAKE),
        (Known(row(**FAILED)), RETRIED_NEVER, Decision.SKIP),
        (Known(row()), RETRIED_NEVER, Decision.MAKE),
        (Known(row(**FAILED, source_mtime_ns=8)), RETRIED_NEVER, Decision.MAKE),
        (Known(row(**FAILED, settings_digest="other")), RETRIED_NEVER, Decision.MAKE),
        (Known(row(**FAILED), before="b"), RETRIED_NEVER, Decision.MAKE),
        (Known(replaces="a.mp4"), RULES, Decision.REFUSE),
        (Known(row(source="/else/a.mp4", source_size_bytes=5), replaces="/else/a.mp4"), RULES, Decision.REFUSE),
        (Known(row(source="/else/a.mp4"), is_held=True, replaces="/else/a.mp4"), RULES, Decision.MOVED),
        (Known(row(**FAILED), replaces="/else/a.mp4"), RETRIED_NEVER, Decision.SKIP),
        (Known(replaces="a.mp4"), AGAIN, Decision.MAKE),
    ],
)
def test_decide(known: Known, rules: Rules, decision: Decision) -> None:
    assert decide(UNIT, known, rules) is decision


def test_a_cut_is_part_of_what_is_compared() -> None:
    cut = Unit("a", "/raw/a.mp4", 100, 7, cut=Cut(end_seconds=2.0))
    assert decide(cut, Known(row(end_seconds=2.0), is_held=True), RULES) is Decision.DONE
    assert decide(cut, Known(row(), is_held=True), RULES) is Decision.MAKE
