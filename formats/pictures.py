"""A folder of numbered pictures is one video: which files belong to it, in which order. Opens no picture."""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from vidprep.formats.errors import ReadError, count_of
from vidprep.formats.model import SourceState

PICTURE_EXTENSIONS = frozenset(("jpg", "jpeg", "png", "bmp", "tif", "tiff", "webp"))
SAME_KIND = {"jpeg": "jpg", "tiff": "tif"}
# The last number of the name counts; one with a fraction is a time in seconds since 1970, as in 1305031102.175304.png.
# Where that gives several series, a name may be a date with its time of day, or a time in seconds.
DATED = re.compile(
    r"(\D*)((?:19|20)\d\d[-_.]?(?:0[1-9]|1[0-2])[-_.]?(?:0[1-9]|[12]\d|3[01])[-_. T:hm\d]*\d)(\D*)\.([a-z]+)",
    re.IGNORECASE,
)
SECONDS = re.compile(r"(\D*)(\d+\.\d+)(\D*)\.([a-z]+)", re.IGNORECASE)
MOST_STEPS = 10  # usual steps between two times in seconds: cam0.0001 and cam1.0001 are no times
NUMBERED = re.compile(r"(.*?)([0-9]{9,}\.[0-9]+|[0-9]+)([^0-9]*)\.([a-z]+)", re.IGNORECASE | re.DOTALL)
SERIES_SHOWN = 3
CHECKED = 10**6


@dataclass(frozen=True, slots=True)
class PictureSeries:
    """The numbered pictures of a folder.

    Attributes:
        names: File names in the order of their numbers: 2 comes before 10
        state: Sum of their sizes, and the latest modification time, whose last six digits are a checksum of all names, sizes and times
        gaps: What the numbers leave out, as a sentence; "" if they rise evenly
    """

    folder: str
    names: tuple[str, ...]
    state: SourceState
    gaps: str

    @property
    def paths(self) -> list[str]:
        return [self.path_of(number) for number in range(len(self.names))]

    def path_of(self, number: int) -> str:
        """Return the path of a picture, counted from 0."""
        return f"{self.folder}/{self.names[number]}"

    @property
    def extension(self) -> str:
        """Extension of the files: lower case, jpg for jpeg and tif for tiff."""
        return _kind(self.names[0].rpartition(".")[2])


def is_numbered_picture(name: str) -> bool:
    """Return whether a file name is that of a numbered picture. Hidden ones are not: macOS leaves `._0001.jpg` beside `0001.jpg`."""
    if name.startswith("."):
        return False
    return name.rpartition(".")[2].lower() in PICTURE_EXTENSIONS and NUMBERED.fullmatch(name) is not None


def list_pictures(folder: str) -> PictureSeries:
    """List the numbered pictures of a folder. Raises ReadError."""
    try:
        with os.scandir(folder) as entries:
            pictures = [
                (entry.name, SourceState.build(entry.stat()))
                for entry in entries
                if is_numbered_picture(entry.name) and entry.is_file()
            ]
    except OSError as error:
        raise ReadError(f"its pictures cannot be listed: {error.strerror}", path=folder) from error
    return series_of(folder, pictures)


def series_of(folder: str, files: Iterable[tuple[str, SourceState]]) -> PictureSeries:
    """Order numbered pictures.

    Args:
        folder: Their folder.
        files: Their names and states.

    Raises:
        ReadError: There are none, two have one number, or they belong to several series.
    """
    names: dict[Decimal, str] = {}
    series: Counter[str] = Counter()
    size_bytes = mtime_ns = checksum = 0
    listed = sorted(files)
    times = _times([name for name, _ in listed])
    for name, state in listed:
        before, number, after, extension = times.get(name) or _parts(name)
        series[f"{before}*{after}.{_kind(extension)}"] += 1
        if (twin := names.setdefault(Decimal(number), name)) is not name and len(series) == 1:
            raise ReadError(f"two pictures have the number {number}: {twin} and {name}; remove one", path=folder)
        size_bytes += state.size_bytes
        mtime_ns = max(mtime_ns, state.mtime_ns)
        checksum = zlib.crc32(f"{name}\0{state}".encode("utf-8", "surrogateescape"), checksum)
    if not series:
        raise ReadError("holds no numbered pictures (.jpg, .png, .bmp, .tif, .webp)", path=folder)
    if len(series) > 1:
        shown = ", ".join(f"{count} {name}" for name, count in series.most_common(SERIES_SHOWN))
        more = ", …" if len(series) > SERIES_SHOWN else ""
        raise ReadError(
            f"holds {len(series)} series of pictures ({shown}{more}); put each into a separate folder", path=folder
        )
    numbers = sorted(names)
    ordered = tuple(names[number] for number in numbers)
    return PictureSeries(
        folder,
        ordered,
        SourceState(size_bytes, mtime_ns - mtime_ns % CHECKED + checksum % CHECKED),
        "" if times else _gaps(numbers, ordered),
    )


Parts = tuple[str, str, str, str]  # of a name: what is before the number, the number, what is behind it, the extension


def _parts(name: str) -> Parts:
    match = NUMBERED.fullmatch(name)
    assert match is not None
    before, number, after, extension = match.groups()
    return before, number, after, extension


def _times(names: Sequence[str]) -> dict[str, Parts]:
    """Return the parts of names that are times; nothing if their last numbers make one series, or the times make none."""
    if len({(before, after) for before, _, after, _ in map(_parts, names)}) < 2:
        return {}
    return _match_names(DATED, names) or _match_names(SECONDS, names)


def _match_names(pattern: re.Pattern[str], names: Sequence[str]) -> dict[str, Parts]:
    """Return the parts of names of one kind of time; nothing if they are not alike."""
    parts: dict[str, Parts] = {}
    for name in names:
        if (match := pattern.fullmatch(name)) is None:
            return {}
        before, number, after, extension = match.groups()
        parts[name] = before, re.sub(r"\D", "", number) if pattern is DATED else number, after, extension
    shapes = {
        (before, after, len(number if pattern is DATED else number.partition(".")[2]))
        for before, number, after, _ in parts.values()
    }
    numbers = sorted(Decimal(number) for _, number, _, _ in parts.values())
    steps = sorted(later - one for one, later in pairwise(numbers))
    is_even = pattern is DATED or steps[-1] <= MOST_STEPS * steps[len(steps) // 2]
    return parts if len(shapes) == 1 and is_even else {}


def _kind(extension: str) -> str:
    return SAME_KIND.get(extension.lower(), extension.lower())


def _gaps(numbers: list[Decimal], names: tuple[str, ...]) -> str:
    if any(number != int(number) for number in numbers):  # times, which need not rise evenly
        return ""
    steps = Counter(later - one for one, later in pairwise(numbers))
    if len(steps) < 2:
        return ""
    usual = min(steps)
    at = next(place for place, (one, later) in enumerate(pairwise(numbers)) if later - one != usual)
    count = steps.total() - steps[usual]
    more = f", and in {count_of(count - 1, 'more place')}" if count > 1 else ""
    return f"numbers are missing between {names[at]} and {names[at + 1]}{more}; the video has no pause there"
