"""Captions that lie beside videos, as trainers of video generators expect them: x.txt or x.json beside x.mp4."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from vidprep.formats.errors import SourceError
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.untrusted import parse_json, read_regular

if TYPE_CHECKING:
    import pyarrow as pa

CAPTION, BESIDE = "caption", (".txt", ".json")
KEYS = (CAPTION, "captions", "text")  # of an object in x.json
MAX_BYTES = 1 << 20


def captions_of(paths: Iterable[str]) -> pa.Array:
    """Return the caption of each video; null without one. If a video has several, each has a list of them.

    Raises:
        SourceError: A file of captions cannot be read, or a video is behind a URL.
    """
    import pyarrow as pa

    read = cache(_read)
    found = [read(path) for path in paths]
    if any(isinstance(each, list) for each in found):
        lists = [[each] if isinstance(each, str) else each for each in found]
        return pa.array(lists, pa.list_(pa.string()))
    return pa.array(found, pa.string())


def _read(path: str) -> str | list[str] | None:
    if is_url(path):
        raise SourceError(
            "--captions reads files beside videos on this machine; give a table with a column caption", path=path
        )
    for suffix in BESIDE:
        beside = os.path.splitext(path)[0] + suffix  # noqa: PTH122 (of any length)
        try:
            data = read_regular(beside, MAX_BYTES)
            return data.decode("utf-8-sig").strip() or None if suffix == ".txt" else _parse(parse_json(data))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise SourceError(f"is no caption of a video: {error}", path=beside) from error
    return None


def _parse(value: Any) -> str | list[str] | None:
    """Return the captions of a JSON value: a text, a list of texts, or an object that has one of both. Raises ValueError."""
    if isinstance(value, dict):
        value = next((value[key] for key in KEYS if key in value), value)
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"give a text, a list of texts, or an object with one of these as {', '.join(KEYS)}")
    return (value or None) if isinstance(value, str | list) else None
