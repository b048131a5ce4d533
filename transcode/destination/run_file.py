"""State of earlier runs: DST/.vidprep/run.json (settings and versions) and the rows; and free disk space."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from vidprep.formats.errors import DiskFullError, ManifestError, StoreError, VidprepError
from vidprep.formats.manifest.journal import Journal
from vidprep.formats.manifest.row import REMOVED, ManifestRow, is_text
from vidprep.formats.manifest.table import MANIFEST_NAME, read_rows
from vidprep.formats.model import Cut, Selected, SourceState
from vidprep.formats.option import options_of
from vidprep.formats.storage.base import Storage
from vidprep.formats.storage.local import is_disk_full
from vidprep.formats.storage.untrusted import read_json
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.options import FrameCount, QualityGate, Retime, Sampling, Scale, Target
from vidprep.transcode.settings.output import FrameOutput, VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.outputs import STATE_DIR

LEAST_BYTES = 1 << 16


@contextmanager
def explain_errors(storage: Storage) -> Iterator[None]:
    """Convert errors in the block: name files as the user knows them, and report a full disk.

    Raises:
        DiskFullError: The disk is full.
    """
    try:
        yield
    except DiskFullError:
        raise
    except ManifestError as error:
        path = (error.path or "").replace(str(storage.root), storage.shown)
        hint = " (`vidprep transcode --overwrite`, of all sources, does)" if path.endswith(MANIFEST_NAME) else ""
        raise ManifestError(f"{error.message}{hint}", path=path) from error
    except (OSError, VidprepError) as error:
        if is_disk_full(error):
            raise DiskFullError(no_room(storage)) from error
        if not isinstance(error, VidprepError) or storage.shown == str(storage.root):
            raise
        raise error.rename_files(str(storage.root), storage.shown) from error


def no_room(storage: Storage, source_bytes: int = 0) -> str:
    """Return a message about a full disk.

    Args:
        storage: The destination's storage.
        source_bytes: Size of the sources that are not done.
    """
    needed = f"the sources still to do hold {source_bytes} bytes"
    if not source_bytes:
        folders = [folder for folder in (storage.root, storage.root / STATE_DIR) if folder.is_dir()]
        there = [entry for folder in folders for entry in os.scandir(folder)]
        own = sum(entry.stat().st_size for entry in there if entry.name.endswith((".parquet", ".json", ".jsonl")))
        needed = f"writing anew what vidprep itself keeps there needs {max(own, LEAST_BYTES)} bytes"
    disk = os.statvfs(_existing(storage.root))
    room = f"{free_bytes(storage)} bytes are free"
    if disk.f_files and not disk.f_favail:
        room = f"it can hold no more files (all {disk.f_files} inodes are taken)"
    return f"no room left in {disk_of(storage)}: {room}, {needed}; make room and run the same command again"


def disk_of(storage: Storage) -> str:
    """Return the folder whose disk is used, for messages."""
    if storage.is_remote:
        return f"{tempfile.gettempdir()} (TMPDIR), where outputs wait until they are in {storage.shown}"
    return storage.shown


def free_bytes(storage: Storage) -> int:
    """Return the free bytes of the device on which a folder is, or will be."""
    return shutil.disk_usage(_existing(storage.root)).free


def _existing(place: Path) -> Path:
    while not place.exists():
        place = place.parent
    return place


RUN_BYTES_MAX = 16 << 20
SHOWN_LETTERS = 200
SETTINGS = (RunSettings, VideoOutput, EncoderOptions, FrameOutput, Retime, Scale, QualityGate, Target)


def settings_of(destination: Path, shown: str = "") -> RunSettings:
    """Return the settings of a destination. Raises StoreError if no run made it.

    Args:
        destination: The destination.
        shown: Its name in messages.
    """
    state_dir = destination / STATE_DIR
    try:
        return RunSettings.from_dict(read_run(state_dir)["settings"])
    except (OSError, ValueError) as error:
        place = shown or str(destination)
        if not destination.is_dir():
            what = "is a file" if destination.exists() else "does not exist"
            raise StoreError(f"{what}; give the destination of a run", path=place) from error
        if not state_dir.exists():
            inner = sorted(path.parents[1].name for path in destination.glob(f"[!.]*/{STATE_DIR}/run.json"))
            advice = f"; its folders {', '.join(inner)} were: give one" if inner else "; give the destination of a run"
            raise StoreError(f"was not made by vidprep{advice}", path=place) from error
        raise StoreError(
            f"cannot be read ({error}); give the destination of a run", path=f"{place}/{STATE_DIR}/run.json"
        ) from error


def made_by_run(folder: Path) -> bool:
    """Return whether a run of vidprep made a folder."""
    return (folder / STATE_DIR / "run.json").is_file()


def read_run(state_dir: Path) -> dict[str, Any]:
    """Read run.json, which contains at least `settings` and `versions`. Raises OSError, ValueError."""
    content = read_json(state_dir / "run.json", RUN_BYTES_MAX)
    settings, versions = content.get("settings"), content.setdefault("versions", {})
    if not isinstance(settings, dict):
        raise ValueError("it has no settings")
    if not isinstance(versions, dict) or not all(map(is_text, versions.values())):
        raise ValueError("its versions are not strings")
    return content


def value_found_for(target: Target, state_dir: Path) -> int | None:
    """Return the CRF or quality that an earlier run found for this target, or None."""
    try:
        before = RunSettings.from_dict(read_run(state_dir)["settings"])
    except (OSError, ValueError):
        return None
    return int(before.output.quality_value) if before.target == target else None


def differences(before: dict[str, Any], settings: RunSettings) -> list[str]:
    """Return a line for each difference between stored settings and these."""
    now = json.loads(json.dumps(settings.as_dict()))
    before = {"cut_origin": "picture", "time_rule": 1} | before  # the rules of version 0.1
    if is_other_store(before, settings):
        return [f"{_store_of(before)} -> {_store_of(now)}"]
    if before.get("frame_rate") and now["frame_rate"]:
        before.setdefault("clock_rule", 1)
    else:  # another rate, whatever the rule
        before["clock_rule"] = now.get("clock_rule")
    lines = list(_difference(before, now))
    if before.get("target") or now.get("target"):  # which chose the CRF or quality
        lines = [line for line in lines if not line.startswith(("--crf ", "--quality "))] or lines
    return lines


# Groups of settings in run.json that have a class of their own, and names there that are no field of any.
_GROUPS = {"sampling": Sampling, "count": FrameCount, "gate": QualityGate, "target": Target, "scale": Scale}
_RULES = {
    "time_rule": "the rule by which seconds become frames (CHANGELOG, 0.2.0)",
    "clock_rule": "--fps took the frame on screen (rule 1) and now takes the nearest one (2; CHANGELOG, 0.2.0): rule",
    "split": "--segment",  # its name in earlier versions, which stays in run.json
}


def _difference(before: Any, now: Any, name: str = "", group: str = "") -> Iterator[str]:
    """Yield differences. Unset fields of a group that the other settings lack entirely are ignored."""
    if isinstance(before, dict | None) and isinstance(now, dict | None):
        before, now = before or {}, now or {}
        for key in sorted(before.keys() | now.keys()):
            if key != "library_options":
                yield from _difference(before.get(key), now.get(key), key, name)
        if before.get("library_options") != now.get("library_options") and before.get("encoder") == now.get("encoder"):
            yield f"library_options {before.get('library_options')} -> {now.get('library_options')}"
    elif before != now and not all(value is None or value is False for value in (before, now)):
        yield f"{_flag_of(name, group)} {_brief(before)} -> {_brief(now)}"


def _flag_of(name: str, group: str) -> str:
    """Return the flag of a value in run.json, as it is typed."""
    kinds = [_GROUPS[group]] if group in _GROUPS else SETTINGS
    declared = [each for kind in kinds for each in options_of(kind)]
    return next((each.flag for each in declared if name in (each.name, each.keyword)), _RULES.get(name, name))


def _brief(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, float):
        return f"{value:g}"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}…"


def is_other_store(before: Mapping[str, Any], settings: RunSettings) -> bool:
    """Return whether earlier settings made another kind of store."""
    return _store_of(before) != _store_of(settings.as_dict())


def _store_of(settings: Mapping[str, Any]) -> str:
    frames = settings.get("frames")
    if isinstance(frames, dict):
        return str(frames.get("store"))
    return "encoded videos" if settings.get("store") is None else "encoded videos in shards"


class KnownUnit(NamedTuple):
    """Columns of a row that resuming needs."""

    id: str
    file_name: str
    status: str
    error: str | None
    attempts: int
    start_seconds: float | None
    end_seconds: float | None
    start_frame: int | None
    end_frame: int | None
    video_stream: int | None
    source: str
    source_size_bytes: int | None
    source_mtime_ns: int | None
    source_digest: str | None
    settings_digest: str | None
    encoder_version: str | None
    size_bytes: int | None
    offset: int | None
    stored_bytes: int | None
    run: int | None
    selected_from: str | None
    selected_id: str | None
    selected_start_frame: int | None
    selected_end_frame: int | None
    selected_sha256: str | None

    @classmethod
    def build(cls, row: ManifestRow) -> KnownUnit:
        """Return these columns of a row."""
        return cls._make(getattr(row, name) for name in cls._fields)

    @property
    def ok(self) -> bool:
        """Whether its output was made."""
        return self.status == "ok"

    @property
    def cut(self) -> Cut:
        """The requested part of the source."""
        return Cut(self.start_seconds, self.end_seconds, self.start_frame, self.end_frame, self.video_stream)

    @property
    def selected(self) -> Selected | None:
        """Frames of another destination that it was copied from; None if it was not."""
        if self.selected_from is None:
            return None
        frames = self.selected_start_frame, self.selected_end_frame
        return Selected(self.selected_from, self.selected_id or "", *frames, self.selected_sha256 or "")

    @property
    def source_state(self) -> SourceState | None:
        """State of the source when it was read; None if it was not."""
        if self.source_size_bytes is None or self.source_mtime_ns is None:
            return None
        return SourceState(self.source_size_bytes, self.source_mtime_ns)


def read_known_units(root: Path, journal: Journal) -> dict[str, KnownUnit]:
    """Return every unit with a row, by id. The journal is newer than the manifest."""
    known = {unit.id: unit for unit in read_rows(root, KnownUnit)}
    for row in journal.rows():
        if row.id in known and (known[row.id].run or 0) > (row.run or 0):
            continue
        if row.status == REMOVED:
            known.pop(row.id, None)
        else:
            known[row.id] = KnownUnit.build(row)
    return known
