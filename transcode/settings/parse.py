"""What people write for rates, sizes, bytes and places. What means nothing is a SettingsError."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from vidprep.formats.errors import SettingsError
from vidprep.formats.model import FrameSize
from vidprep.formats.profiles import CODECS
from vidprep.formats.storage.arrow import ArrowStream
from vidprep.formats.storage.base import check_no_password, is_url, names_no_place, normalized
from vidprep.formats.storage.untrusted import INT64_MAX, MAX_NUMBER_LENGTH, bounded_fraction

# The rates of NTSC as people write them, and what they mean.
NTSC_RATES = {
    "23.976": Fraction(24000, 1001),
    "23.98": Fraction(24000, 1001),
    "29.97": Fraction(30000, 1001),
    "47.952": Fraction(48000, 1001),
    "47.95": Fraction(48000, 1001),
    "59.94": Fraction(60000, 1001),
    "119.88": Fraction(120000, 1001),
}


def parse_rate(given: str | float | Fraction) -> Fraction:
    """Frames per second, exactly: `15`, `12.5`, `30000/1001`; 23.976, 29.97 and 59.94 mean N·1000/1001."""
    text = str(given)
    if text in NTSC_RATES:
        return NTSC_RATES[text]
    try:
        rate = bounded_fraction(text)
    except ValueError:
        raise SettingsError(
            "<fps>: give a number or a fraction, such as 15, 29.97 or 30000/1001", fps=shortened(text)
        ) from None
    if not Fraction(1, 1000) <= rate <= 1000:
        raise SettingsError("<fps>: give a rate from 0.001 to 1000", fps=text)
    return rate


def parse_size(given: str | tuple[int, int]) -> FrameSize:
    """`WxH` in pixels, or both numbers."""
    if not isinstance(text := given, str):
        return FrameSize(*given)
    found = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", text)
    if found is None:
        raise SettingsError("<size>: give WIDTHxHEIGHT in pixels, such as 224x224", size=shortened(text))
    return FrameSize(int(found[1]), int(found[2]))


def parse_split(given: float | str) -> float | str:
    """Seconds, `auto` or `off`."""
    try:
        return float(given) if isinstance(given, str) and given not in ("auto", "off") else given
    except ValueError:
        return given  # which the settings refuse


def parse_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """With commas between, or a sequence of them."""
    return tuple(given.split(",") if isinstance(given, str) else given)


def parse_numbers(given: str | Sequence[int]) -> tuple[int, ...]:
    """As `parse_names`. Raises ValueError."""
    try:
        return tuple(map(int, given.split(",") if isinstance(given, str) else given))
    except ValueError:
        raise ValueError("give whole numbers separated by commas") from None


def parse_shares(given: str | Mapping[str, float]) -> dict[str, Fraction]:
    """`train=0.8,val=0.1,test=0.1`, or that as a mapping: names and shares that make 1."""
    try:
        if not isinstance(given, str | Mapping):
            raise ValueError
        pairs = [each.split("=") for each in given.split(",")] if isinstance(given, str) else list(given.items())
        shares = {str(name).strip(): bounded_fraction(str(share).strip()) for name, share in pairs}
    except ValueError:
        shares = {}
    if not shares or "" in shares or len(shares) < len(pairs) or min(shares.values()) <= 0 or sum(shares.values()) != 1:
        raise SettingsError(
            "<split_by>: give names and shares that add up to 1, such as train=0.8,val=0.1,test=0.1", split_by=given
        )
    return shares


def parse_by_codec(given: Sequence[str]) -> dict[str, str]:
    """Of each `CODEC=LIST`. Raises ValueError."""
    found = {}
    for text in (given,) if isinstance(given, str) else given:
        codec, equals, values = text.partition("=")
        if not equals or codec not in CODECS:
            raise ValueError(f"give CODEC=VALUE,VALUE with a codec of {', '.join(CODECS)}")
        found[codec] = values
    return found


def parse_bytes(given: str | int) -> int:
    """A number of bytes: `1000000`, `500MB` (10**6), `1GiB` (2**30). Raises ValueError."""
    found = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?) ?(?:([kKMGT])(i?)B?|B)?", str(given))
    if found is None:
        raise ValueError("give bytes, such as 500MB or 1GiB")
    number, prefix, binary = found.groups()
    power = " kMGT".index(prefix.replace("K", "k")) if prefix else 0
    size = int(float(number) * (1024 if binary else 1000) ** power)
    if size > INT64_MAX:
        raise ValueError("there are not so many bytes; give bytes, such as 500MB or 1GiB")
    return size


def shortened(text: str) -> str:
    """For a message: what was given may be thousands of digits."""
    return text if len(text) <= MAX_NUMBER_LENGTH else f"{text[:MAX_NUMBER_LENGTH]}…"


def given(path: str) -> str:
    """A path that is not empty, which would be the current folder. Raises SettingsError."""
    if not path.strip():
        raise SettingsError("an empty path was given (an unset variable?); name a file or folder")
    return path


def as_source(source: Path | str | ArrowStream) -> Path | str | ArrowStream:
    """As `as_place`; a table in memory as it is."""
    return as_place(source) if isinstance(source, Path | str) else source


def as_place(path: Path | str) -> Path | str:
    """A path, or a URL, which stays text."""
    text = given(str(path)).removeprefix("file://")
    if not is_url(text):
        return Path(text)
    check_no_password(text)
    if names_no_place(text := normalized(text)):
        raise SettingsError(f"{text} names no bucket; give s3://bucket/folder")
    return text
