"""`vidprep merge`: the parts of an array run become one destination, as if one machine had made it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidprep.formats.errors import DestinationError
from vidprep.formats.files import replacing
from vidprep.formats.manifest import read_rows, write_rows
from vidprep.formats.no_links import refuse_links
from vidprep.formats.untrusted import parse_json, read_regular, whole_between
from vidprep.transcode.destination import MERGED_NAME, Destination, settings_of
from vidprep.transcode.packed import PackedDestination
from vidprep.transcode.parts import MOST_PARTS, Part, parts_in


@dataclass(frozen=True, slots=True)
class Merged:
    """parts: joined now. missing: numbers of parts of which nothing is there, now or before."""

    parts: int
    ok: int
    failed: int
    missing: tuple[int, ...]


def merge(root: Path, far_shards: Mapping[str, int] | None = None) -> Merged:
    """Join the manifests of all parts, mend what killed tasks left, and write the index of shards. The same again is harmless:
    what a stopped merge leaves, the next one does. far_shards: bytes of shards that are elsewhere, by name.

    Raises DestinationError while a task still works in there, StoreError for what is no destination of a run.
    """
    settings = settings_of(root)

    def place(part: Part | None) -> Destination:
        return (
            PackedDestination(root, settings.frames, part, far_shards) if settings.frames else Destination(root, part)
        )

    whole = place(None)
    with whole.hold(merging=True):
        parts = parts_in(root, whole.shared)
        for part in parts:
            one = place(part)
            refuse_links(one.house)
            if one.partials.is_dir():
                one.recover()
                one.finish()
        write_rows(whole.manifest, None, read_rows(root), fence=whole.fence)
        known = _and_merged_before(whole.shared / MERGED_NAME, parts)
        for part in parts:
            place(part).manifest.unlink(missing_ok=True)
            shutil.rmtree(whole.shared / part.house_name, ignore_errors=True)
        whole.recover()
        whole.finish()
    ok = failed = 0
    for row in read_rows(root):
        ok, failed = ok + row.ok, failed + (not row.ok)
    count = max((part.count for part in parts or known), default=0)
    return Merged(
        len(parts), ok, failed, tuple(sorted(set(range(count)) - {part.index for part in known if part.count == count}))
    )


def _and_merged_before(path: Path, parts: Sequence[Part]) -> set[Part]:
    """These parts, and those of earlier merges, which leave nothing else of them; kept for the next."""
    try:
        known = set(map(_part_of, parse_json(read_regular(path)))) if path.exists() else set()
    except (OSError, ValueError, TypeError) as error:
        raise DestinationError(
            f"cannot be read ({error}); remove it: what was joined before is then not known", path=path
        ) from error
    known |= set(parts)
    if known:
        with replacing(path) as file:
            file.write(json.dumps(sorted((part.index, part.count) for part in known)).encode())
    return known


def _part_of(value: Any) -> Part:
    """Raises ValueError, TypeError."""
    index, count = value
    count = whole_between("number of parts", count, 1, MOST_PARTS)
    return Part(whole_between("part", index, 0, count - 1), count)
