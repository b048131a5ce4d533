"""`ManifestRow`: what is known of one unit, the columns that it stands in, and what each of them can hold."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vidprep.formats.errors import ManifestError
from vidprep.formats.files.untrusted import parse_json
from vidprep.formats.manifest.columns import check_of, is_text, shown

OUTSIDE = r"^/|(^|/)\.\.(/|$)|\x00"  # in RE2's syntax and in Python's
OUTSIDE_MESSAGE = "%r is a file outside of the folder, which would be read or removed"


@dataclass(slots=True)
class ManifestRow:
    """One unit: where it came from, what was made of it, and what was measured. None where there is nothing to say.

    source_frames: index of the source frame of every output frame, counted from the first frame shown; None means all
    of them in order. source_width, source_height: as it is stored and shown, without what is cropped and before it is turned;
    source_coded_…: with it. run: the number of the run that made this row; of several rows of a unit the one of the highest counts.
    keyframes: 0-based output frames. pts: ticks of time_base from 0; None means frame n is at n / rate.
    Of a unit inside a shard, offset and stored_bytes say which bytes of `file_name` are its own, padding and headers
    included; size_bytes and sha256 are of its frames back to back, frame_sizes and frame_crc32 of each. Of a target for the
    1st percentile of PSNR-Y: what was asked, each CRF or JPEG quality that was tried, and what each reached. Of high dynamic
    range: mastering_display and content_light (MaxCLL and MaxFALL) as they were used, in the notation of x265.
    """

    id: str
    file_name: str
    source: str
    start_seconds: float | None = None
    end_seconds: float | None = None
    status: str = "failed"
    stage: str | None = None
    error: str | None = None
    message: str | None = None
    attempts: int = 1
    run: int | None = None
    warnings: list[str] = field(default_factory=list)
    verified_in: str | None = None
    source_size_bytes: int | None = None
    source_mtime_ns: int | None = None
    source_digest: str | None = None
    source_codec: str | None = None
    source_width: int | None = None
    source_height: int | None = None
    source_coded_width: int | None = None
    source_coded_height: int | None = None
    source_frame_rate: float | None = None
    source_num_frames: int | None = None
    source_duration_seconds: float | None = None
    source_rotation: int | None = None
    source_is_vfr: bool | None = None
    source_is_interlaced: bool | None = None
    mastering_display: str | None = None
    content_light: str | None = None
    settings_digest: str | None = None
    engine: str | None = None
    encoder: str | None = None
    encoder_version: str | None = None
    crf: float | None = None
    preset: str | None = None
    jpeg_quality: int | None = None
    subsampling: str | None = None
    codec: str | None = None
    container: str | None = None
    width: int | None = None
    height: int | None = None
    frame_rate_num: int | None = None
    frame_rate_den: int | None = None
    num_frames: int | None = None
    duration_seconds: float | None = None
    pixel_format: str | None = None
    keyframe_interval_max: int | None = None
    keyframes: list[int] | None = None
    source_frames: list[int] | None = None
    duplicated_frames: int | None = None
    dropped_frames: int | None = None
    pts: list[int] | None = None
    time_base_num: int | None = None
    time_base_den: int | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    offset: int | None = None
    stored_bytes: int | None = None
    frame_sizes: list[int] | None = None
    frame_crc32: list[int] | None = None
    psnr_y_db: float | None = None
    psnr_yuv_db: float | None = None
    psnr_y_p1_db: float | None = None
    psnr_y_min_db: float | None = None
    worst_frame: int | None = None
    ssim: float | None = None
    target_psnr_y_p1_db: float | None = None
    target_tried: list[float] | None = None
    target_reached_db: list[float] | None = None
    encode_seconds: float | None = None
    cpu_seconds: float | None = None
    labels: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def as_dict(self) -> dict[str, Any]:
        """Columns in order, and the labels as an object of their own."""
        return {name: getattr(self, name) for name in COLUMN_NAMES} | {"labels": self.labels}

    def as_json(self) -> str:
        """One line of JSON; infinity is "inf", since JSON has no number for it."""
        values = {name: _to_json(value) for name, value in self.as_dict().items()}
        return json.dumps(values | {"labels": json_value(self.labels)}, ensure_ascii=False, default=str)

    def as_journal_line(self) -> str:
        """As `as_json`, without labels: they are those of the run (formats/manifest/labels.py)."""
        return json.dumps({name: _to_json(getattr(self, name)) for name in COLUMN_NAMES}, ensure_ascii=False)


# Column -> type, in pyarrow's own names; `list<…>` marks lists.
_INTS = {
    "attempts": "int16", "run": "int64", "source_size_bytes": "int64", "source_mtime_ns": "int64", "source_width": "int32",
    "source_height": "int32", "source_num_frames": "int64", "source_rotation": "int16", "width": "int32",
    "height": "int32", "frame_rate_num": "int64", "frame_rate_den": "int64", "num_frames": "int64",
    "keyframe_interval_max": "int32", "keyframes": "list<int32>", "source_frames": "list<int32>",
    "duplicated_frames": "int64", "dropped_frames": "int64", "size_bytes": "int64", "worst_frame": "int64",
    "pts": "list<int64>", "time_base_num": "int64", "time_base_den": "int64", "offset": "int64", "stored_bytes": "int64",
    "source_coded_width": "int32", "source_coded_height": "int32", "frame_sizes": "list<int32>",
    "frame_crc32": "list<int64>", "jpeg_quality": "int16",
}  # fmt: skip
_STRINGS = (
    "id", "file_name", "source", "status", "stage", "error", "message", "verified_in", "source_codec",
    "settings_digest", "source_digest", "engine", "encoder", "encoder_version", "preset", "codec", "container", "pixel_format", "sha256",
    "subsampling", "mastering_display", "content_light",
)  # fmt: skip
_BOOLS = ("source_is_vfr", "source_is_interlaced")
_DOUBLE_LISTS = ("target_tried", "target_reached_db")
COLUMN_NAMES = tuple(f.name for f in fields(ManifestRow) if f.name != "labels")
COLUMNS: dict[str, str] = {
    name: _INTS.get(name)
    or (
        "string"
        if name in _STRINGS
        else "bool"
        if name in _BOOLS
        else "list<string>"
        if name == "warnings"
        else "list<double>"
        if name in _DOUBLE_LISTS
        else "double"
    )
    for name in COLUMN_NAMES
}
_DOUBLES = frozenset(name for name, kind in COLUMNS.items() if kind == "double")
_CHECKS = {name: check_of(kind) for name, kind in COLUMNS.items()}
REQUIRED = ("id", "file_name", "source", "status")
_NEVER_NONE = frozenset({*REQUIRED, "attempts", "warnings"})
LABEL_PREFIX = "label_"  # of 0.1.0, whose labels stood among the columns
REMOVED = "removed"  # the status of a line of the journal that takes a row away


def escaped_label(name: str, taken: Container[str]) -> str:
    """The column of a label: its name, behind one more `label_` where that, without any, is taken. No two share one."""
    bare = name
    while bare not in taken and bare.startswith(LABEL_PREFIX):
        bare = bare.removeprefix(LABEL_PREFIX)
    return LABEL_PREFIX + name if bare in taken else name


def unescaped_label(column: str, taken: Container[str]) -> str:
    """The label that stands in a column."""
    name = column.removeprefix(LABEL_PREFIX)
    return name if name != column and escaped_label(name, taken) == column else column


def removed(row: ManifestRow, run: int) -> ManifestRow:
    """A line of the journal that takes a row away, and its output."""
    return ManifestRow(row.id, row.file_name, row.source, status=REMOVED, run=run)


def what_does_not_fit(row: ManifestRow) -> str | None:
    """What of a row its column cannot hold, in words; None where all fits."""
    for name, fits in _CHECKS.items():
        value = getattr(row, name)
        if (value is not None or name in _NEVER_NONE) and not fits(value):
            return f"{name} is {shown(value)}, which a column of {COLUMNS[name]} cannot hold"
    return None


def checked(row: ManifestRow) -> ManifestRow:
    """The row itself when its columns can hold it; else a failed one that says which value they cannot hold."""
    fault = what_does_not_fit(row)
    return row if fault is None else unwritable(row, fault)


def unwritable(row: ManifestRow, why: str) -> ManifestRow:
    """A failed row in the place of one that cannot be written; it keeps what can be."""
    kept = {name: getattr(row, name) for name, fits in _CHECKS.items() if fits(getattr(row, name))}
    named = {name: shown(getattr(row, name)) for name in ("id", "file_name", "source")} | kept
    failed = {"status": "failed", "stage": "manifest", "error": ManifestError.__name__, "message": why}
    return ManifestRow(**(named | failed))


def _to_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list) and value and isinstance(value[0], float):
        return [_to_json(item) for item in value]
    return value


def json_value(value: Any) -> Any:
    """The same with a word for each number in it that JSON has not."""
    if isinstance(value, dict):
        return {str(key): json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    return _to_json(value)


def row_from_dict(values: Mapping[str, Any]) -> ManifestRow:
    """The row of one JSON object. Raises ValueError when id, file_name or source is no string, and for a file_name that leads
    out of the destination; TypeError for a value of another kind than its column's.
    """
    known = {name: values[name] for name in COLUMN_NAMES if name in values}
    for name in _DOUBLES & known.keys():
        if known[name] is not None:
            known[name] = float(known[name])
    for name in _DOUBLE_LISTS:
        if known.get(name) is not None:
            known[name] = [float(item) for item in known[name]]
    known["warnings"] = list(known.get("warnings") or ())
    _check_identity(known)
    row = ManifestRow(**known)
    if (fault := what_does_not_fit(row)) is not None:
        raise ValueError(fault)
    return row


def _check_identity(values: Mapping[str, Any]) -> None:
    for required in ("id", "file_name", "source"):
        if not is_text(values.get(required)):
            raise ValueError(f"a row without {required}")
    if re.search(OUTSIDE, values["file_name"]):
        raise ValueError(OUTSIDE_MESSAGE % values["file_name"])


def row_of_line(line: bytes) -> ManifestRow:
    """The row of a line of the journal; a failed one where a column cannot hold its value. Raises ValueError for no row."""
    values = parse_json(line)
    if not isinstance(values, dict):
        raise ValueError(f"a JSON object was expected, not {type(values).__name__}")
    try:
        return row_from_dict(values)
    except (ValueError, TypeError, OverflowError) as error:
        _check_identity(values)
        row = ManifestRow(**{name: values[name] for name in ("id", "file_name", "source")})
        return unwritable(row, f"its line in the journal cannot be used: {error}")
