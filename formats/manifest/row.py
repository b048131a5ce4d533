"""`ManifestRow`: all facts about one unit, and the columns of the manifest that hold them."""

from __future__ import annotations

import binascii
import json
import math
import re
import reprlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from fractions import Fraction
from itertools import groupby
from typing import Any

from vidprep.formats.errors import ManifestError
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import Cut, SourceState, StoredPackets, VideoFacts
from vidprep.formats.moments import LEAST_KNOWN, Tolerance, exact_seconds
from vidprep.formats.storage.untrusted import parse_json

ValueCheck = Callable[[Any], bool]
PYTHON_TYPES = {"string": "str", "bool": "bool", "double": "float", "int16": "int", "int32": "int", "int64": "int"}
NO_COLUMNS = ("labels", "packets")  # stored in a struct of the manifest, and in gops.parquet
EXACT_DOUBLE = 2**53  # whole numbers up to here are doubles without loss, and Arrow takes no others for one


def column(kind: str, meaning: str, *, low: int | None = 0, high: int | None = None, **how: Any) -> Any:
    """Return a field of a row.

    Args:
        kind: Arrow type, such as "int64" or "list<string>".
        meaning: Meaning in one line, with the unit.
        low: Smallest whole number in it; None means all that the type holds.
        high: Largest whole number in it.
        how: `default` or `default_factory`; None is the default.
    """
    return field(metadata={"kind": kind, "meaning": meaning, "bounds": (low, high)}, **(how or {"default": None}))


def kinds_of(row: Any) -> dict[str, str]:
    """Return the Arrow type of each column of a dataclass, in order, without NO_COLUMNS.

    Raises:
        TypeError: A field declares no column type, or one that contradicts its Python type.
    """
    kinds = {}
    for each in fields(row):
        if each.name in NO_COLUMNS:
            continue
        kind = each.metadata.get("kind", "")
        item = kind.removeprefix("list<").removesuffix(">")
        due = PYTHON_TYPES.get(item) if item == kind else f"list[{PYTHON_TYPES.get(item)}]"
        if due is None or str(each.type).removesuffix(" | None") != due or not each.metadata.get("meaning"):
            raise TypeError(
                f"{each.name}: {each.type} has metadata {dict(each.metadata)}; give column(Arrow's type, what it holds)"
            )
        kinds[each.name] = kind
    return kinds


def columns_table(row: Any) -> str:
    """Return the columns as a Markdown table, with columns of one meaning in one line."""
    lines = ["| column | type | meaning |", "| --- | --- | --- |"]
    each_field = [each for each in fields(row) if each.name not in NO_COLUMNS]
    for meaning, group in groupby(each_field, key=lambda each: each.metadata["meaning"]):
        several = list(group)
        kinds = dict.fromkeys(each.metadata["kind"] for each in several)
        shown_kinds = kinds if len(kinds) == 1 else [each.metadata["kind"] for each in several]
        lines.append(f"| {', '.join(f'`{each.name}`' for each in several)} | {', '.join(shown_kinds)} | {meaning} |")
    return "\n".join(lines)


def check_of(kind: str, low: int | None = None, high: int | None = None) -> ValueCheck:
    """Return a function that tests whether a value fits a column's type and bounds."""
    if kind.startswith("list<"):
        return _list_check(kind[5:-1], low, high)
    if kind.startswith("int"):
        low, high = _range(kind, low, high)
        return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    return {"string": is_text, "bool": lambda value: isinstance(value, bool), "double": _is_double}[kind]


def _range(kind: str, low: int | None, high: int | None) -> tuple[int, int]:
    bits = int(kind.removeprefix("int")) - 1
    return -(2**bits) if low is None else low, 2**bits - 1 if high is None else high


def _list_check(kind: str, low: int | None, high: int | None) -> ValueCheck:
    if not kind.startswith("int"):
        check = check_of(kind)
        return lambda values: isinstance(values, list | tuple) and all(map(check, values))
    low, high = _range(kind, low, high)

    def fits(values: Any) -> bool:
        """Test in three passes that run in C: lists have a value per frame."""
        if not isinstance(values, list | tuple):
            return False
        return not values or ({*map(type, values)} == {int} and low <= min(values) and max(values) <= high)

    return fits


def is_text(value: Any) -> bool:
    """Return whether a value is a string of valid Unicode; file names may not be."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_double(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= EXACT_DOUBLE


def show(value: object) -> str:
    """Return any value for a message: short, and without control characters."""
    try:
        text = reprlib.repr(value)
    except Exception:  # noqa: BLE001 (an object of any class; an integer of thousands of digits)
        text = f"a {type(value).__name__}"
    return text.encode("utf-8", "backslashreplace").decode()


OUTSIDE = r"^/|(^|/)\.\.(/|$)|\x00"  # in RE2's syntax and in Python's
OUTSIDE_MESSAGE = "%r is a file outside of the folder, which would be read or removed"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Values that a run adds to the row of a worker. None adds nothing.

    Attributes:
        labels: Labels of the unit, by name
        file_name: Name of the shard that contains its frames
        offset: Position of its first byte in the shard
    """

    run: int | None = None
    labels: dict[str, Any] | None = None
    file_name: str | None = None
    offset: int | None = None
    stored_bytes: int | None = None


@dataclass(slots=True)
class ManifestRow:
    """One unit: where it came from, what it became, and what was measured. None means unknown.

    Each field declares its Arrow type (`list<…>` for lists) and its meaning with the unit; the manifest, its checks and
    the table in docs/formats.md derive from that. If several rows belong to one unit, that with the highest `run`
    counts.
    """

    # fmt: off
    id: str = column("string", "name of the output without extension, relative, or the `id` of the table", default=MISSING)
    file_name: str = column("string", "file that holds it, relative to the destination: the video, or the shard", default=MISSING)
    source: str = column("string", "absolute path or URL of the source; of the store, where `pack` made it", default=MISSING)
    start_seconds: float | None = column("double", "s; the requested cut [start, end); null: none")
    end_seconds: float | None = column("double", "s; the requested cut [start, end); null: none")
    start_frame: int | None = column("int64", "the same in source frames, from 0; null: none")
    end_frame: int | None = column("int64", "the same in source frames, from 0; null: none")
    video_stream: int | None = column("int64", "the video stream that a table asks for, from 0; null: none")
    status: str = column("string", "`ok` or `failed`", default="failed")
    stage: str | None = column("string", "of a failure: the step, the class of the error, and the message with what to do")
    error: str | None = column("string", "of a failure: the step, the class of the error, and the message with what to do")
    message: str | None = column("string", "of a failure: the step, the class of the error, and the message with what to do")
    attempts: int = column("int16", "number of runs that tried it", default=1)
    run: int | None = column(
        "int64",
        "run that made the row: 100,000 for each run in this destination, plus the partition of an array. If a video has two rows, "
        "the higher run counts",
    )
    warnings: list[str] = column("list<string>", "a sentence for each loss, repair or guess", default_factory=list)
    warning_codes: list[str] = column("list<string>", "code of each warning, see below", default_factory=list)
    verified_in: str | None = column(
        "string", "`same pass`: packets were decoded as they left the encoder; `second pass`: the closed file was decoded"
    )
    source_size_bytes: int | None = column("int64", "bytes, and ns since 1970; a source with other values has changed")
    source_mtime_ns: int | None = column("int64", "bytes, and ns since 1970; a source with other values has changed", low=None)
    source_digest: str | None = column(
        "string",
        "SHA-256 of samples of the source, from its first byte to its last; distinguishes files of equal size and time",
    )
    source_codec: str | None = column("string", "as libavcodec names it")
    source_width: int | None = column("int32", "pixels as stored, after cropping and before rotation")
    source_height: int | None = column("int32", "pixels as stored, after cropping and before rotation")
    source_coded_width: int | None = column("int32", "pixels as stored, before cropping")
    source_coded_height: int | None = column("int32", "pixels as stored, before cropping")
    source_frame_rate: float | None = column("double", "frames per second of the frames of a cut, the mean")
    source_num_frames: int | None = column("int64", "frames of the source in the cut")
    source_duration_seconds: float | None = column("double", "s, to the end of the last frame")
    source_rotation: int | None = column("int16", "degrees, counter-clockwise, by which players rotate it", low=None)
    source_is_vfr: bool | None = column("bool", "whether the frame rate varies")
    source_is_interlaced: bool | None = column("bool", "whether frames had to be deinterlaced")
    mastering_display: str | None = column("string", "HDR metadata as used: x265's notation; MaxCLL,MaxFALL in cd/m²")
    content_light: str | None = column("string", "HDR metadata as used: x265's notation; MaxCLL,MaxFALL in cd/m²")
    settings_digest: str | None = column("string", "16 hexadecimal digits that change with any setting that the output depends on")
    engine: str | None = column("string", "`av` or `ffmpeg`")
    encoder: str | None = column("string", "such as `libx264`, and the versions of the libraries")
    encoder_version: str | None = column("string", "such as `libx264`, and the versions of the libraries")
    crf: float | None = column("double", "of the encoder, in its own scale")
    preset: str | None = column("string", "of the encoder, in its own scale")
    jpeg_quality: int | None = column("int16", "of JPEGs: 1 to 100; `420`, `444`, `gray`")
    subsampling: str | None = column("string", "of JPEGs: 1 to 100; `420`, `444`, `gray`")
    codec: str | None = column("string", "such as `h264` and `mp4`; for frames `jpeg` or `rawvideo`, and the store")
    container: str | None = column("string", "such as `h264` and `mp4`; for frames `jpeg` or `rawvideo`, and the store")
    width: int | None = column("int32", "pixels of the output")
    height: int | None = column("int32", "pixels of the output")
    frame_rate_num: int | None = column("int64", "frames per second as a fraction; null where frames have times of their own", low=1)
    frame_rate_den: int | None = column("int64", "frames per second as a fraction; null where frames have times of their own", low=1)
    num_frames: int | None = column("int64", "frames of the output")
    bucket: str | None = column("string", "width, height and frames of the output, such as `848x480x81`, with `--buckets`")
    duration_seconds: float | None = column("double", "s")
    pixel_format: str | None = column("string", "such as `yuv420p`")
    keyframe_interval_max: int | None = column("int32", "largest number of frames from one keyframe to the next")
    keyframes: list[int] | None = column("list<int32>", "numbers of the keyframes, from 0")
    source_frames: list[int] | None = column(
        "list<int32>", "number of the source frame of each output frame, from the first frame displayed; null: all of them in order",
    )
    source_pts: list[int] | None = column(
        "list<int64>", "start of those source frames, in ticks from the first frame displayed; null: at `pts`", low=None,
    )
    source_time_base_num: int | None = column("int64", "seconds per tick of `source_pts`, as a fraction", low=1)
    source_time_base_den: int | None = column("int64", "seconds per tick of `source_pts`, as a fraction", low=1)
    source_start_seconds: float | None = column("double", "s from the first frame displayed in the source to time 0 of the output")
    tolerance_seconds: float | None = column(
        "double", "s; maximum distance between a time in a table and the start of the source frame that it means",
    )
    selected_from: str | None = column("string", "by `select`: absolute path or URL of the destination, and its video")
    selected_id: str | None = column("string", "by `select`: absolute path or URL of the destination, and its video")
    selected_start_frame: int | None = column("int64", "by `select`: frames [start, end) of that video; null: all")
    selected_end_frame: int | None = column("int64", "by `select`: frames [start, end) of that video; null: all")
    selected_sha256: str | None = column("string", "by `select`: of that video")
    duplicated_frames: int | None = column("int64", "by `--fps`")
    dropped_frames: int | None = column("int64", "by `--fps`")
    pts: list[int] | None = column(
        "list<int64>", "start of each frame in ticks, from 0; null: frame n starts at n / rate", low=None,
    )
    time_base_num: int | None = column("int64", "seconds per tick as a fraction", low=1)
    time_base_den: int | None = column("int64", "seconds per tick as a fraction", low=1)
    size_bytes: int | None = column("int64", "size of the video; in a shard, of its frames back to back")
    sha256: str | None = column("string", "of the same bytes")
    offset: int | None = column(
        "int64", "in a shard: position of its first byte, and number of bytes with padding and headers", high=2**60,
    )
    stored_bytes: int | None = column(
        "int64", "in a shard: position of its first byte, and number of bytes with padding and headers", high=2**60,
    )
    frame_sizes: list[int] | None = column("list<int32>", "in a shard: bytes and CRC-32 of each frame")
    frame_crc32: list[int] | None = column("list<int64>", "in a shard: bytes and CRC-32 of each frame", high=2**32 - 1)
    psnr_y_db: float | None = column(
        "double",
        "dB relative to the frames that went into the encoder, from the mean squared error of all frames; infinite if lossless",
    )
    psnr_yuv_db: float | None = column(
        "double",
        "dB relative to the frames that went into the encoder, from the mean squared error of all frames; infinite if lossless",
    )
    psnr_y_p1_db: float | None = column("double", "dB: 1st percentile and minimum over frames")
    psnr_y_min_db: float | None = column("double", "dB: 1st percentile and minimum over frames")
    worst_frame: int | None = column("int64", "number of the frame with the minimum")
    ssim: float | None = column("double", "0 to 1, all planes, mean over frames")
    vmaf: float | None = column("double", "with `--score vmaf`: mean, harmonic mean and 1st percentile of frames")
    vmaf_harmonic_mean: float | None = column(
        "double", "with `--score vmaf`: mean, harmonic mean and 1st percentile of frames"
    )
    vmaf_p1: float | None = column("double", "with `--score vmaf`: mean, harmonic mean and 1st percentile of frames")
    vmaf_model: str | None = column("string", "model and version of libvmaf")
    xpsnr_db: float | None = column(
        "double", "with `--score xpsnr`: dB of all frames, and 1st percentile of frames, of the plane where it is lowest"
    )
    xpsnr_p1_db: float | None = column(
        "double", "with `--score xpsnr`: dB of all frames, and 1st percentile of frames, of the plane where it is lowest"
    )
    target_psnr_y_p1_db: float | None = column("double", "dB requested by `--target-psnr`")
    target_tried: list[float] | None = column("list<double>", "each CRF or quality that was tried, and the dB it reached")
    target_reached_db: list[float] | None = column("list<double>", "each CRF or quality that was tried, and the dB it reached")
    target_vmaf_p1: float | None = column("double", "VMAF requested by `--target-vmaf`")
    target_reached_vmaf: list[float] | None = column("list<double>", "the VMAF that each of `target_tried` reached")
    encode_seconds: float | None = column("double", "s: wall clock, and CPU time")
    cpu_seconds: float | None = column("double", "s: wall clock, and CPU time")
    # fmt: on
    labels: dict[str, Any] = field(default_factory=dict)
    packets: StoredPackets | None = None

    def record(self, added: Recorded) -> ManifestRow:
        """Return the row with what the run adds to it."""
        return replace(
            self, **{name: value for name in Recorded.__slots__ if (value := getattr(added, name)) is not None}
        )

    def describe(self, facts: VideoFacts) -> None:
        """Fill the columns about the size, the frames and the times of a video."""
        self.width, self.height, self.num_frames = facts.width, facts.height, facts.num_frames
        if facts.frame_rate is not None:
            self.frame_rate_num, self.frame_rate_den = facts.frame_rate.numerator, facts.frame_rate.denominator
        base = facts.time_base or (1 / facts.frame_rate if facts.frame_rate else None)
        if base is not None:
            self.time_base_num, self.time_base_den = base.numerator, base.denominator
        self.pts = None if facts.pts is None else [int(pts) for pts in facts.pts]
        self.keyframes = None if facts.keyframes is None else list(facts.keyframes)

    def warn(self, *remarks: Remark) -> None:
        """Add a warning."""
        self.warnings = [*self.warnings, *map(str, remarks)]
        self.warning_codes = [*self.warning_codes, *(each.code for each in remarks)]

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def source_state(self) -> SourceState | None:
        """State of the source when it was read; None if it was not."""
        if self.source_size_bytes is None or self.source_mtime_ns is None:
            return None
        return SourceState(self.source_size_bytes, self.source_mtime_ns)

    @property
    def cut(self) -> Cut:
        """The requested part of the source."""
        return Cut(self.start_seconds, self.end_seconds, self.start_frame, self.end_frame, self.video_stream)

    @property
    def tolerance(self) -> Tolerance:
        """Maximum distance between a time and the start of the source frame that it means."""
        seconds = self.tolerance_seconds
        return LEAST_KNOWN if seconds is None else Tolerance(exact_seconds(seconds))

    def source_ticks(self) -> tuple[Sequence[int], Fraction]:
        """Return the start of the source frames that the output shows, from the first frame displayed, and seconds per
        tick.
        """
        if self.source_pts is not None:
            return self.source_pts, Fraction(self.source_time_base_num or 1, self.source_time_base_den or 1)
        return self.output_ticks()

    def output_ticks(self) -> tuple[Sequence[int], Fraction]:
        """Return the start of the output's frames, from its first one, and seconds per tick."""
        if self.pts is not None:
            return self.pts, Fraction(self.time_base_num or 1, self.time_base_den or 1)
        return range(self.num_frames or 0), Fraction(self.frame_rate_den or 1, self.frame_rate_num or 1)

    def as_dict(self) -> dict[str, Any]:
        """Return the columns in order, with labels as an object."""
        return {name: getattr(self, name) for name in COLUMN_NAMES} | {"labels": self.labels}

    def as_json(self) -> str:
        """Return one line of JSON; infinity is "inf", since JSON has no number for it."""
        values = {name: _encode_json(value) for name, value in self.as_dict().items()}
        return json.dumps(values | {"labels": json_value(self.labels)}, ensure_ascii=False, default=str)

    def as_journal_line(self) -> str:
        """Return the row as JSON without labels, which are stored once per run (formats/manifest/labels.py)."""
        values = {name: _encode_json(getattr(self, name)) for name in COLUMN_NAMES}
        if self.packets is not None:
            values["packets"] = [_encode_base64(self.packets.extradata), _encode_base64(self.packets.packets or b"")]
        return json.dumps(values, ensure_ascii=False)


COLUMNS = kinds_of(ManifestRow)
COLUMN_NAMES = tuple(COLUMNS)
_DOUBLES = frozenset(name for name, kind in COLUMNS.items() if kind == "double")
_DOUBLE_LISTS = frozenset(name for name, kind in COLUMNS.items() if kind == "list<double>")
BOUNDS = {each.name: each.metadata.get("bounds", (None, None)) for each in fields(ManifestRow)}
_CHECKS = {name: check_of(kind, *BOUNDS[name]) for name, kind in COLUMNS.items()}
REQUIRED = ("id", "file_name", "source", "status")
_NEVER_NONE = frozenset({*REQUIRED, "attempts", "warnings", "warning_codes"})
LABEL_PREFIX = "label_"  # version 0.1.0 stored labels among the columns, with this prefix
REMOVED = "removed"  # the status of a line of the journal that takes a row away


def escape_label(name: str, taken: Container[str]) -> str:
    """Return the column of a label: its name, with one more prefix `label_` if the name without prefixes is taken. Columns
    are unique.
    """
    bare = name
    while bare not in taken and bare.startswith(LABEL_PREFIX):
        bare = bare.removeprefix(LABEL_PREFIX)
    return LABEL_PREFIX + name if bare in taken else name


def unescape_label(column: str, taken: Container[str]) -> str:
    """Return the label that a column holds."""
    name = column.removeprefix(LABEL_PREFIX)
    return name if name != column and escape_label(name, taken) == column else column


def removal_row(row: ManifestRow, run: int) -> ManifestRow:
    """Return a row for the journal that removes this row and its output from the manifest."""
    return ManifestRow(row.id, row.file_name, row.source, status=REMOVED, run=run)


def unfit_value(row: ManifestRow) -> str | None:
    """Return a message about the value that its column cannot hold; None if all fit."""
    for name, fits in _CHECKS.items():
        value = getattr(row, name)
        if (value is not None or name in _NEVER_NONE) and not fits(value):
            return f"{name} is {show(value)}; expected {_words(name)}"
    if row.ok and row.offset is not None:
        for name in ("frame_sizes", "frame_crc32") if row.keyframes is None else ():  # null for a video in a shard
            if len(getattr(row, name) or ()) != row.num_frames:
                return f"{name} is {show(getattr(row, name))}, and num_frames is {row.num_frames}"
        if row.stored_bytes is None:
            return "it has an offset and no stored_bytes"
    return None


def _words(name: str) -> str:
    """Return the range of a column in words, such as `int64 from 0`."""
    low, high = BOUNDS[name]
    within = [f"from {low}"] if low is not None else []
    within += [f"to {high}"] if high is not None else []
    return " ".join([COLUMNS[name], *(within if "int" in COLUMNS[name] else [])])


def check_row(row: ManifestRow) -> ManifestRow:
    """Return the row if its columns can hold it; else a failed row that names the invalid value."""
    fault = unfit_value(row)
    return row if fault is None else unwritable(row, fault)


def unwritable(row: ManifestRow, why: str) -> ManifestRow:
    """Return a failed row that replaces one that cannot be written, with all values that fit."""
    kept = {name: getattr(row, name) for name, fits in _CHECKS.items() if fits(getattr(row, name))}
    if not {"warnings", "warning_codes"} <= kept.keys():  # one is useless without the other
        kept |= {"warnings": [], "warning_codes": []}
    named = {name: show(getattr(row, name)) for name in ("id", "file_name", "source")} | kept
    failed = {"status": "failed", "stage": "manifest", "error": ManifestError.__name__, "message": why}
    return ManifestRow(**(named | failed))


def _encode_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list) and value and isinstance(value[0], float):
        return [_encode_json(item) for item in value]
    return value


def json_value(value: Any) -> Any:
    """Return a value with words for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {str(key): json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    return _encode_json(value)


def row_from_dict(values: Mapping[str, Any]) -> ManifestRow:
    """Return the row of a JSON object.

    Raises:
        ValueError: id, file_name or source is missing, not text or contains NUL; file_name leads out of the
            destination; or a column cannot hold its value.
        TypeError: A number or a list has a value of another type.
        OverflowError: A number is too large for a float.
    """
    known = {name: values[name] for name in COLUMN_NAMES if name in values}
    for name in _DOUBLES & known.keys():
        if known[name] is not None:
            known[name] = float(known[name])
    for name in _DOUBLE_LISTS:
        if known.get(name) is not None:
            known[name] = [float(item) for item in known[name]]
    for name in ("warnings", "warning_codes"):
        known[name] = list(known.get(name) or ())
    _check_identity(known)
    row = ManifestRow(**known)
    if values.get("packets") is not None:
        extradata, packets = map(_decode_base64, values["packets"])
        row.packets = StoredPackets(extradata, packets or None)
    if (fault := unfit_value(row)) is not None:
        raise ValueError(fault)
    return row


def _encode_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _decode_base64(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


def _check_identity(values: Mapping[str, Any]) -> None:
    for required in ("id", "file_name", "source"):
        if not is_text(values.get(required)):
            raise ValueError(f"a row without {required}")
        if "\0" in values[required]:
            raise ValueError(f"a NUL in {required}")
    if re.search(OUTSIDE, values["file_name"]):
        raise ValueError(OUTSIDE_MESSAGE % values["file_name"])


def row_of_line(line: bytes) -> ManifestRow:
    """Return the row of a journal line; a failed row if a column cannot hold its value. Raises ValueError for an invalid
    line.
    """
    values = parse_json(line)
    if not isinstance(values, dict):
        raise ValueError(f"a JSON object was expected, not {type(values).__name__}")
    try:
        return row_from_dict(values)
    except (ValueError, TypeError, OverflowError) as error:
        _check_identity(values)
        row = ManifestRow(**{name: values[name] for name in ("id", "file_name", "source")})
        return unwritable(row, f"its line in the journal cannot be used: {error}")
