"""State of a search for sources, and checks that apply to every file however it is listed."""
# ruff: noqa: PTH118, PTH122

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from vidprep.formats.model import WHOLE, Cut, SourceState
from vidprep.formats.pictures import PictureSeries
from vidprep.transcode.sources.tables import SourceTable, storable
from vidprep.transcode.sources.unit import Unit

PROGRESS_EVERY = 10_000

Identity = tuple[int, int]  # st_dev, st_ino


@dataclass(slots=True)
class SourceSearch:
    """Options of a search, and what it has found so far.

    Attributes:
        destination: Resolved destination, ending in a slash
        destination_identity: Device and inode of the destination; None while it does not exist
        include: Pattern of names to take
        exclude: Pattern of names to skip
        keep_source_suffix: Whether outputs are named x.avi.mp4
        progress: Called with the number of files or rows so far
        seen: Number of files or rows so far
        known: Whether a folder is in the destination, by path
        ignored: (path, reason) of files that are not sources
        problems: (path, reason) of sources that cannot be started
        asked: Row number and unit of a problem, by its index in `problems`
        takes_pictures: Whether a folder of numbered pictures is a source
    """

    destination: str
    destination_identity: Identity | None
    include: re.Pattern[str] | None
    exclude: re.Pattern[str] | None
    keep_source_suffix: bool
    progress: Callable[[int], None] | None
    seen: int = 0
    known: dict[str, bool] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    asked: dict[int, tuple[int, Unit]] = field(default_factory=dict)
    table: SourceTable | None = None
    why_partial: str | None = None
    takes_pictures: bool = False

    def count(self) -> None:
        self.seen += 1
        if self.progress is not None and self.seen % PROGRESS_EVERY == 0:
            self.progress(self.seen)

    def in_destination(self, path: str) -> bool:
        """Return whether a path is in the destination, following links. Answers are cached: the rows of a table share few
        folders.
        """
        if path not in self.known:
            self.known[path] = os.path.join(os.path.realpath(path), "").startswith(self.destination)
        return self.known[path]

    def excludes(self, relative: str, name: str) -> bool:
        return bool(self.exclude and (self.exclude.match(relative) or self.exclude.match(name)))

    def why_left_out(self, relative: str, name: str) -> str | None:
        if self.include and not (self.include.match(relative) or self.include.match(name)):
            return "not included"
        return "excluded" if self.excludes(relative, name) else None

    def id_of(self, relative: str) -> str:
        return relative if self.keep_source_suffix else os.path.splitext(relative)[0]

    def add(self, name: str, path: str, state: SourceState, cut: Cut = WHOLE, row: int = -1) -> None:
        self.units.append(Unit(name, path, *state, cut, row=row))

    def add_series(self, name: str, path: str, pictures: PictureSeries, cut: Cut = WHOLE, row: int = -1) -> None:
        self.units.append(Unit(name, path, *pictures.state, cut, row=row, is_series=True))

    def refuse(self, number: int, unit: Unit, reason: str) -> None:
        """Record that a row of a table cannot be started."""
        self.asked[len(self.problems)] = number, unit
        self.problems.append((unit.path, reason))


def fault_of_file(path: str, status: os.stat_result) -> str | None:
    """Return why a file cannot be a source, without opening it: opening a FIFO would block."""
    if storable(path) != path:
        return "its name is not valid UTF-8, which a manifest cannot hold; rename it"
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
        if stat.S_ISDIR(status.st_mode):
            return "a folder; --source-fps R takes a folder of numbered pictures as a video"
        return f"not a regular file: a {kinds.get(stat.S_IFMT(status.st_mode), 'device')}"
    return None if os.access(path, os.R_OK) else "cannot be read: no permission"


class MissingFile(str):
    """Message that a file does not exist, or that a link leads nowhere."""

    __slots__ = ()


def why_not(error: OSError, *, is_link: bool) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return MissingFile("broken link: " * is_link + "no such file or folder")
    return "broken link: " * is_link + f"cannot be read: {error.strerror}"


def identity_of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino
