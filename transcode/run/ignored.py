"""What a run passes over, counted and in words: nobody reads a list of a million names."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from vidprep.formats.text import count_of, printable
from vidprep.transcode.sources.table_rows import SKIPPED

UNKNOWN = "unknown extension"
KEPT_EXTENSIONS = 10
ROW = "a row of the table: "


def counted(ignored: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Files by why they are passed over, the most frequent reason first; unknown extensions each for itself.

    ignored: (path, reason), as SourceList has them.
    """
    reasons: Counter[str] = Counter()
    extensions: Counter[str] = Counter()
    for path, reason in ignored:
        if reason == "a column without a name":  # of a table, and no file
            continue
        if reason == UNKNOWN:
            extensions[printable(os.path.splitext(path)[1].lower()) or "none"] += 1  # noqa: PTH122
        else:
            of_row = re.match(rf"({SKIPPED})?(.* )?row \d+: ", reason)
            reasons[reason if of_row is None else ROW * bool(of_row[1]) + reason[of_row.end() :]] += 1
    kept = extensions.most_common(KEPT_EXTENSIONS)
    rest = extensions.total() - sum(count for _, count in kept)
    kept += [("others", rest)] if rest else []
    return {f"{UNKNOWN}: {extension}": count for extension, count in kept} | dict(reasons.most_common())


def in_words(ignored: Mapping[str, int]) -> str:
    """`3 files ignored (unknown extension: .txt 2, .nfo 1)`."""
    unknown = [
        f"{reason.removeprefix(f'{UNKNOWN}: ')} {n}" for reason, n in ignored.items() if reason.startswith(UNKNOWN)
    ]
    parts = [f"{UNKNOWN}: {', '.join(unknown)}"] if unknown else []
    parts += [f"{reason}: {count}" for reason, count in ignored.items() if not reason.startswith(UNKNOWN)]
    total = sum(ignored.values())
    noun = "row" if all(reason.startswith(ROW) for reason in ignored) else "file"
    return f"{count_of(total, noun)} ignored ({'; '.join(parts)})"
