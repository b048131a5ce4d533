"""All videos below a folder here, by the rules for names, links and what cannot be read."""
# ruff: noqa: PTH110, PTH116

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from vidprep.formats.errors import SourceError
from vidprep.formats.model import SourceState
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.search import Identity, Missing, SourceSearch, fault_of_file, identity_of, why_not
from vidprep.transcode.sources.tables import VIDEO_EXTENSIONS, is_animated

NOT_LISTED = "folder cannot be listed"


def walk(search: SourceSearch, root: str) -> None:
    """All of a folder, in no particular order. A stack of its own: trees may be deeper than Python recurses."""
    _check_no_destination(root, "is this DST, and SRC the other? Give the folder of the raw videos")
    stack = [(root, "", frozenset([identity_of(os.stat(root))]))]
    while stack:
        folder, prefix, above = stack.pop()
        for entry in _entries(search, folder, is_root=not prefix):
            relative = prefix + entry.name
            if reason := _why_ignored(search, entry, relative, above):
                search.ignored.append((entry.path, reason))
            elif fault := _fault_of_entry(entry):
                if not isinstance(fault, Missing):
                    search.why_partial = f"{entry.path}: {fault}"
                search.problems.append((entry.path, fault))
            elif entry.is_dir():
                _check_no_destination(entry.path, "give the folder of the raw videos, or --exclude it")
                stack.append((entry.path, relative + "/", above | {identity_of(entry.stat())}))
            else:
                search.add(search.id_of(relative), entry.path, SourceState.of(entry.stat()))
            search.count()


def _check_no_destination(folder: str, advice: str) -> None:
    if os.path.exists(f"{folder}/{STATE_DIR}/run.json"):
        raise SourceError(
            f"is a destination of vidprep, which holds what was made and not what it was made of; {advice}", path=folder
        )


def _entries(search: SourceSearch, folder: str, *, is_root: bool) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        if is_root:
            raise SourceError(f"{NOT_LISTED}: {error.strerror}", path=folder) from error
        search.why_partial = f"a folder cannot be listed: {folder}"
        search.problems.append((folder, f"{NOT_LISTED}: {error.strerror}; allow it, or --exclude it"))


def _why_ignored(
    search: SourceSearch, entry: os.DirEntry[str], relative: str, above: frozenset[Identity]
) -> str | None:
    """Why an entry is no source and no folder to enter, or None. What is plainly no video costs no stat."""
    name = entry.name
    if name.startswith("."):
        return "hidden name"
    extension = name.rpartition(".")[2].lower() if "." in name else ""
    is_video = extension in VIDEO_EXTENSIONS
    identity = None
    try:
        if extension == "webp" and entry.is_file() and not (is_video := is_animated(entry.path)):
            return "a still picture"
        if not is_video and entry.is_file(follow_symlinks=False):
            return "unknown extension"
        is_folder, identity = entry.is_dir(), identity_of(entry.stat())
    except OSError as error:
        is_folder = entry.is_dir(follow_symlinks=False)
        if not is_folder and not is_video:
            return why_not(error, is_link=entry.is_symlink())
    is_destination = identity is not None and identity == search.destination_identity
    if is_destination or (entry.is_symlink() and search.in_destination(entry.path)):
        return "the destination"  # only the folder itself and links into it can be met outside of it
    if not is_folder:
        return search.why_left_out(relative, name) if is_video else "unknown extension"
    if search.excludes(relative, name):
        return "excluded"
    return "a link back to a folder that contains it" if identity in above else None


def _fault_of_entry(entry: os.DirEntry[str]) -> str | None:
    try:
        status = entry.stat()  # kept by the entry: after the first time it costs nothing
    except OSError as error:
        return why_not(error, is_link=entry.is_symlink())
    return None if stat.S_ISDIR(status.st_mode) else fault_of_file(entry.path, status)
