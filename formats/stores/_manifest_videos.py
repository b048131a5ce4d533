"""The videos of a manifest, for a destination without `gops.parquet`: it was made by an earlier version, or by the tasks of
an array that are not merged yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import StoreError
from vidprep.formats.profiles import CONTAINERS
from vidprep.formats.storage.shared import SharedTable
from vidprep.formats.storage.untrusted import PICTURE_SIDE_MAX
from vidprep.formats.stores.gops import PLACE, VideoEntry, entry_of, facts_in
from vidprep.formats.stores.ids import Ids


class ManifestVideos:
    """The videos of a manifest. It has the methods of `GopsFile`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        table = facts_in(folder)
        if table is None:
            raise StoreError("has no manifest.parquet", path=folder)
        self._check(table)
        self.version = uuid4().hex  # what other processes map was read once
        self._shared = SharedTable(table.combine_chunks(), can_be_read_again=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._shared.table is None:
            self.__init__(self.path)  # type: ignore[misc]

    def _check(self, table: pa.Table) -> None:
        """Raise StoreError for rows that no run writes."""
        if not len(table):
            return
        if others := {*pc.unique(table["container"]).to_pylist()}.difference({*CONTAINERS, None}):
            raise StoreError(
                f"the index of its {' and '.join(sorted(others))} store is not there; restore it, or run the same command again",
                path=self.path,
            )
        needed = ("width", "height", "num_frames", "keyframes", "time_base_num", "time_base_den")
        if missing := [name for name in needed if table[name].null_count == len(table)]:
            raise StoreError(f"its manifest has no {', '.join(missing)}; make it again", path=self.path)
        for name in needed:
            if table[name].null_count:
                raise StoreError(f"its manifest has a video without {name}; make it again", path=self.path)
            if name != "keyframes" and (least := pc.min(table[name]).as_py()) < 1:
                raise StoreError(f"its manifest has a video whose {name} is {least}; make it again", path=self.path)
        for name in ("width", "height"):
            if (most := pc.max(table[name]).as_py()) > PICTURE_SIDE_MAX:
                raise StoreError(f"its manifest has a video whose {name} is {most}; make it again", path=self.path)
        self._check_lists(table)
        if pc.count_distinct(table["id"]).as_py() < len(table):
            raise StoreError("its manifest has several videos of one id; make it again", path=self.path)

    def _check_lists(self, table: pa.Table) -> None:
        """Raise StoreError if times or keyframes do not match the frames."""
        counts = table["num_frames"]
        times = pc.coalesce(pc.cast(pc.list_value_length(table["pts"]), counts.type), counts)
        keyframes = table["keyframes"]
        first = pc.list_element(keyframes.filter(pc.greater(pc.list_value_length(keyframes), 0)), 0)
        if not pc.all(pc.equal(times, counts)).as_py():
            raise StoreError("its manifest has a video with times for other frames; make it again", path=self.path)
        if len(first) < len(table) or not pc.all(pc.equal(first, 0)).as_py():
            raise StoreError(
                "its manifest has a video that does not begin with a keyframe; make it again", path=self.path
            )
        rates = (pc.fill_null(table[name], 0) for name in ("frame_rate_num", "frame_rate_den"))
        has_rate = pc.and_(*(pc.greater(part, 0) for part in rates))
        if pc.any(pc.and_not(pc.is_null(table["pts"]), has_rate)).as_py():
            raise StoreError(
                "its manifest has a video with neither a frame rate nor times; make it again", path=self.path
            )

    @property
    def _table(self) -> pa.Table:
        table = self._shared.table
        assert table is not None
        return table

    def ids(self) -> Ids:
        return Ids.build(self._table["id"])

    def sizes(self) -> npt.NDArray[np.int64]:
        columns = [self._table[name].to_numpy() for name in ("num_frames", "height", "width")]
        return np.stack(columns, 1).astype(np.int64)

    def sha256(self) -> pa.ChunkedArray:
        return self._table["sha256"]

    def storage(self) -> tuple[pa.ChunkedArray, ...]:
        return tuple(self._table[name] for name in PLACE)

    def entry(self, id_: str) -> VideoEntry:
        place = self.ids().place(id_)
        if place is None:
            raise KeyError(f"{id_!r} is not in {self.path}")
        row = {name: self._table[name][place].as_py() for name in self._table.column_names}
        try:
            return entry_of(row | {"packets": None, "extradata": None})
        except (ValueError, TypeError, ArithmeticError) as error:
            raise StoreError(f"{id_}: {error}; make it again", path=self.path) from error
