"""Partitions of an array run: the units of each, and its files in the destination.

DST/manifest-00003-of-00064.parquet   rows of partition 3, counted from 0; all partitions are read as one manifest
DST/gops-00003-of-00064.parquet       index of its videos, until `merge` has joined them
DST/.vidprep/part-00003-of-00064/     its lease, journal and partial files
    plan.json                         written before its work (array_plan.py)
    end.json                          written after it
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vidprep.formats.errors import SettingsError
from vidprep.transcode.sources.unit import Unit

FILE_COST, BYTES_PER_SECOND = 100_000, 1_000_000
MAX_PARTITIONS = 99_999


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition `index` (from 0 to count - 1) of an array run."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index:05d}-of-{self.count:05d}"

    @property
    def manifest_name(self) -> str:
        return f"manifest-{self}.parquet"

    @property
    def gops_name(self) -> str:
        return f"gops-{self}.parquet"

    @property
    def state_dir_name(self) -> str:
        return f"part-{self}"


def assign_partitions(units: Sequence[Unit], count: int) -> Iterator[tuple[Unit, int]]:
    """Yield each unit with its partition: the most expensive first, each to the partition with the least work."""
    loads = [(0, index) for index in range(count)]
    for unit in sorted(units, key=_cost, reverse=True):
        load, index = loads[0]
        heapq.heapreplace(loads, (load + _cost(unit), index))
        yield unit, index


def _cost(unit: Unit) -> int:
    """Return the bytes to be read, as far as known without opening the source."""
    cost = unit.size_bytes
    if unit.cut.end_seconds is not None:
        cost = min(cost, int((unit.cut.end_seconds - (unit.cut.start_seconds or 0.0)) * BYTES_PER_SECOND))
    return cost + FILE_COST


def parse_partition(text: str, environment: Mapping[str, str]) -> Partition:
    """Parse `3/64`, or `auto` for the numbers of Slurm's array. Raises SettingsError."""
    if text == "auto":
        try:
            last = int(environment["SLURM_ARRAY_TASK_MAX"])
            first, step = (int(environment.get(f"SLURM_ARRAY_TASK_{name}", default)) for name, default in _SLURM)
            index = (int(environment["SLURM_ARRAY_TASK_ID"]) - first) // step
            count = (last - first) // step + 1
            if count != int(environment.get("SLURM_ARRAY_TASK_COUNT", count)):
                raise ValueError(f"its tasks do not run from {first} to {last} by {step}")
        except KeyError as error:
            raise SettingsError(
                f"<partition>: not in a Slurm array ({error.args[0]} is not set); give I/N", partition=text
            ) from None
        except ValueError as error:
            raise SettingsError(
                f"<partition>: not in an even Slurm array ({error}); give I/N", partition=text
            ) from None
    else:
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if match is None:
            raise SettingsError("<partition>: give I/N with I from 0 to N - 1, or auto", partition=text)
        index, count = int(match[1]), int(match[2])
    if not 0 <= index < count <= MAX_PARTITIONS:
        raise SettingsError(
            f"<partition>: there is no partition {index} of {count}; I goes from 0 to N - 1, N to 99999", partition=text
        )
    return Partition(index, count)


_SLURM = (("MIN", "0"), ("STEP", "1"))


def partitions_in(root: Path, state_dir: Path) -> list[Partition]:
    """Return the partitions that have started, by their manifests, plans and journals. The folder of a refused one does
    not count.
    """
    files = (
        *root.glob("manifest-*.parquet"),
        *state_dir.glob("part-*/plan.json"),
        *state_dir.glob("part-*/journal*.jsonl"),
    )
    names = {path.name if path.parent == root else path.parent.name for path in files}
    matches = (re.fullmatch(r"(?:manifest|part)-(\d{5})-of-(\d{5})(?:\.parquet)?", name, re.ASCII) for name in names)
    parts = {Partition(int(each[1]), int(each[2])) for each in matches if each and each[1] < each[2]}
    return sorted(parts, key=lambda part: (part.count, part.index))
