"""Captions that lie beside videos, as trainers of video generators expect them: x.txt or x.json beside x.mp4."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vidprep.formats.errors import SourceError, count_of
from vidprep.formats.storage.untrusted import parse_json, read_regular
from vidprep.transcode.sources.tables import one_line

if TYPE_CHECKING:
    import pyarrow as pa

CAPTION, CAPTIONS = "caption", "captions"
BESIDE = (".txt", ".TXT", ".json", ".JSON")  # the first that has a caption
KEYS = (CAPTIONS, CAPTION, "text")  # of an object in x.json
MAX_BYTES = 1 << 20


def read_captions(path: str) -> list[str]:
    """Return the captions beside a video; none without such a file.

    Raises:
        SourceError: A file of captions cannot be read.
    """
    for suffix in BESIDE:
        beside = os.path.splitext(path)[0] + suffix  # noqa: PTH122 (of any length)
        try:
            data = read_regular(beside, MAX_BYTES)
            texts = [data.decode("utf-8-sig")] if suffix.lower() == ".txt" else _parse(parse_json(data))
            "".join(texts).encode()  # JSON may escape half of a character, which is no text
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise SourceError(f"is no caption of a video: {error}", path=beside) from error
        if captions := [text.strip() for text in texts if text.strip()]:
            return captions
    return []


def _parse(value: Any) -> list[str]:
    """Return the captions of a JSON value: a text, a list of texts, or an object that has one of both. Raises ValueError."""
    if isinstance(value, dict):
        value = next((value[key] for key in KEYS if value.get(key)), "" if value.keys() & {*KEYS} else value)
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"give a text, a list of texts, or an object with one of these as {', '.join(KEYS)}")
    return texts


def columns_of(captions: Sequence[Sequence[str]]) -> Mapping[str, pa.Array]:
    """Return the first caption of each video, and all of them: the same columns and types whichever videos are listed."""
    import pyarrow as pa

    firsts, several = [texts[0] if texts else None for texts in captions], [texts or None for texts in captions]
    return {CAPTION: pa.array(firsts, pa.string()), CAPTIONS: pa.array(several, pa.list_(pa.string()))}


def note_of(captions: Mapping[str, Sequence[str] | None] | None) -> tuple[str, ...]:
    """Return a note of the videos without a caption, if there are any."""
    without = [path for path, texts in (captions or {}).items() if texts is not None and not texts]
    return (
        (
            f"{len(without)} of {count_of(len(captions or ()), 'video')} without a caption, such as {one_line(without[0])}",
        )
        if without
        else ()
    )
