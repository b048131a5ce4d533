"""Stores to be timed, and the rows of vidprep bench."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers import Ran, transcode
from vidprep.transcode.choose.bench.places import Access, Place, find_place, survey_videos

GOP, SEQUENCE = 4, 8


CONSECUTIVE, SINGLE = Access("consecutive", SEQUENCE, 1), Access("single", SEQUENCE, 1)


def run(*args: object, **more: object) -> Ran:
    return transcode(*args, verb="bench", **more)


def rows_of(ran: Ran) -> list[dict[str, object]]:
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert {row.pop("what") for row in found} == {"cell"}
    return found


def place_of(path: Path) -> Place:
    found = find_place(path)
    place, unread = survey_videos(found, found.ids)
    assert not unread
    return place
