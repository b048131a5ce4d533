"""Values in the rows of a LeRobot dataset: whether they are of the declared width and type, and what statistics say of them."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import av.error
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import StoreError
from vidprep.formats.lerobot import MOMENTS, ROW_COLUMNS, STATES, STATS_NAME, LeRobotDataset
from vidprep.formats.video.pyav import open_input
from vidprep.transcode.audit.dataset import ERROR, WARNING, Finding
from vidprep.transcode.audit.statistics import Statistics, join_statistics, number_type, numbers_of

KINDS = {
    "text": (pa.types.is_string, pa.types.is_large_string),
    "truth": (pa.types.is_boolean,),
    "whole": (pa.types.is_integer,),
    "decimal": (pa.types.is_floating,),
}
NOT_MEASURED = ("video", "image", "string", "language", "bool")  # or in another way


def wrong_values(found: LeRobotDataset, table: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield columns of a data file that are not as declared, and what is wrong."""
    for feature, description in found.features.items():
        dtype = str(description.get("dtype"))
        if dtype in ("video", "language"):
            continue
        if feature not in table.column_names:
            text: str | None = f"has no column {feature}, which is declared"
        elif dtype == "image":
            text = _wrong_pictures(table, feature, description)
        else:
            text = _wrong_values(table, feature, dtype, description)
        if text is not None:
            yield feature, text


def _wrong_values(table: pa.Table, feature: str, dtype: str, about: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a column of numbers or texts."""
    values, dims, per_row = table[feature], _shape(about), 1

    def at(place: int) -> str:
        row = place // per_row
        return f"in row {table['frame_index'][row].as_py()} of episode {table['episode_index'][row].as_py()}"

    stored, declared = _kind(number_type(values.type)), _kind_of_dtype(dtype)
    if declared is not None and stored != declared and (stored, declared) != ("whole", "decimal"):
        return f"{feature} is {values.type}, {dtype} is declared"
    while pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):
        if values.null_count:
            return f"{feature} is empty {at(pc.index(pc.is_null(values), True).as_py())}"
        due, lengths = dims.pop(0) if dims else 1, pc.list_value_length(values).to_numpy()
        if (wrong := np.flatnonzero(lengths != due)).size:
            return f"{feature} has {lengths[wrong[0]]} values {at(int(wrong[0]))}, {about.get('shape')} is declared"
        values, per_row = pc.list_flatten(values), per_row * max(1, due)
    if dims not in ([], [1]):
        return f"{feature} is one value in each row, {about.get('shape')} is declared"
    if values.null_count:
        return f"{feature} is empty {at(pc.index(pc.is_null(values), True).as_py())}"
    if stored == "decimal" and (wrong := np.flatnonzero(~np.isfinite(values.to_numpy()))).size:
        return f"{feature} is {values[int(wrong[0])].as_py()} {at(int(wrong[0]))}"
    return None


def _shape(about: Mapping[str, Any]) -> list[Any]:
    shape = about.get("shape")
    return list(shape) if isinstance(shape, list | tuple) else []


def _kind(stored: pa.DataType) -> str | None:
    return next((kind for kind, tests in KINDS.items() if any(test(stored) for test in tests)), None)


def _kind_of_dtype(dtype: str) -> str | None:
    begins = {"string": "text", "bool": "truth", "int": "whole", "uint": "whole", "float": "decimal"}
    return next((kind for begin, kind in begins.items() if dtype.startswith(begin)), None)


def _wrong_pictures(table: pa.Table, feature: str, about: Mapping[str, Any]) -> str | None:
    """Return the first picture of a column that cannot be decoded, or has another size than declared."""
    shape = _shape(about)
    due = shape[:2] if shape[2:] in ([1], [3], [4]) else shape[1:]
    for row, cell in enumerate(table[feature].to_pylist()):
        place = f"in row {table['frame_index'][row].as_py()} of episode {table['episode_index'][row].as_py()}"
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if cell is None:
            return f"the picture {feature} {place} is empty"
        if not isinstance(data, bytes):
            continue  # a path beside the rows
        try:
            height, width = size_of_picture(data)
        except (av.error.FFmpegError, ValueError, LookupError) as error:
            return f"the picture {feature} {place} cannot be decoded: {getattr(error, 'strerror', None) or error}"
        if len(shape) == 3 and [height, width] != due:
            return f"the picture {feature} {place} is {width}x{height}, {about.get('shape')} is declared"
    return None


def size_of_picture(data: bytes) -> tuple[int, int]:
    """Decode a picture. Return (height, width). Raises FFmpegError, ValueError."""
    with open_input(io.BytesIO(data), {"err_detect": "explode"}) as container:
        for frame in container.decode(video=0):
            return frame.height, frame.width
    raise ValueError("no picture in it")


def motion_of_rows(table: pa.Table) -> npt.NDArray[np.float64]:
    """Return (L,) how far states, or else actions, move from the row before; 0 in the first row."""
    for name in STATES:
        if name in table.column_names:
            try:
                values = numbers_of(table[name]).reshape(len(table), -1)
            except (ValueError, pa.ArrowException):
                continue
            scale = np.ptp(values, axis=0)
            steps = np.diff(values, axis=0, prepend=values[:1]) / np.where(scale > 0, scale, 1.0)
            return np.asarray(np.nan_to_num(np.abs(steps).sum(1)))
    return np.zeros(len(table))


def faults_of_statistics(found: LeRobotDataset, measured: Mapping[int, dict[str, Statistics]]) -> Iterator[Finding]:
    """Yield where the declared statistics are missing, or are not those of the rows."""
    names = [
        name
        for name, description in found.features.items()
        if description.get("dtype") not in NOT_MEASURED and name not in ROW_COLUMNS
    ]
    if len(measured) == len(found.episodes) and found.version != "v2.1":
        try:
            yield from _compare(
                found, found.statistics(), join_statistics(list(measured.values())), names, STATS_NAME, ""
            )
        except StoreError as error:
            yield Finding(ERROR, "statistics", STATS_NAME, "", None, error.message)
    try:
        declared = found.episode_statistics() if found.version != "v2.0" else {}
    except StoreError as error:
        yield Finding(ERROR, "statistics", "meta", "", None, f"{Path(error.path or '').name} {error.message}")
        return
    for number, statistics in measured.items():
        own, part = declared.get(number), f"episode {number}"
        if own is not None:
            yield from _compare(found, own, statistics, names, "meta/episodes", part)
        elif found.version == "v2.1":
            yield Finding(ERROR, "statistics", "meta/episodes", part, None, "has no statistics")


def _compare(
    found: LeRobotDataset,
    declared: Mapping[str, Any],
    measured: Mapping[str, Statistics],
    names: list[str],
    path: str,
    part: str,
) -> Iterator[Finding]:
    for name in names:
        own = declared.get(name)
        if name not in measured:
            continue  # a finding about the column reports this
        if not isinstance(own, Mapping):
            yield Finding(WARNING if part else ERROR, "statistics", path, part, None, f"has no statistics of {name}")
        elif (text := _difference(own, measured[name], _shape(found.features[name]))) is not None:
            yield Finding(ERROR, "statistics", path, part, None, f"{name}: {text}")


def _difference(declared: Mapping[str, Any], measured: Statistics, shape: list[Any]) -> str | None:
    """Return what differs between statistics of the same values, beyond their rounding."""
    largest = np.maximum(np.abs(measured["min"]), np.abs(measured["max"]))
    tolerance = 0.02 * measured["std"] + 1e-3 * largest + 1e-6
    for kind in MOMENTS:
        try:
            values = np.asarray(declared.get(kind), np.float64).reshape(-1)
        except (ValueError, TypeError):
            return f"its {kind} is {str(declared.get(kind))[:50]}"
        due = measured[kind].reshape(-1)
        if len(shape) > 1 and len(values) == math.prod(shape):
            continue  # of each value, as LeRobot wrote them before it put those of an axis together
        if len(values) != len(due):
            return f"its {kind} has {len(values)} values, and the rows have {len(due)}"
        wrong = np.flatnonzero(~(np.abs(values - due) <= tolerance))
        if len(wrong):
            at = int(wrong[0])
            return f"its {kind} is {values[at]:.6g}, and {due[at]:.6g} in the rows" + (
                f" (value {at})" if len(due) > 1 else ""
            )
    return None
