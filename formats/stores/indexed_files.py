"""A folder of videos that others made, with the index that `vidprep index` wrote.

    DST/gops.parquet        position of each GOP: formats/stores/gops.py
    DST/a/b.mp4 …           the videos

A video that is not indexed is read like one that was not prepared (formats/stores/raw_files.py), and so is all audio.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from vidprep.formats.errors import StoreError
from vidprep.formats.stores.base import Frames, Samples
from vidprep.formats.stores.data_files import DataFiles, Handles, ReadOptions
from vidprep.formats.stores.encoded import VideoStore
from vidprep.formats.stores.gops import size_of
from vidprep.formats.stores.raw_files import VideoFiles


def open_here(files: DataFiles, options: ReadOptions) -> IndexedFiles:
    options.refuse(files.path, "short_side", "stores of JPEGs")
    options.refuse(files.path, "hardware", "videos that vidprep made")
    return IndexedFiles(files, checksum=options.checksum, fast=options.fast)


class IndexedFiles(VideoStore):
    """Reads such a folder."""

    def _open_handles(self) -> None:
        super()._open_handles()
        self._raw = Handles(self._open_raw, VideoFiles.close)

    def _open_raw(self, id_: str) -> VideoFiles:
        entry, path = self.entry(id_), self.file(id_)
        if isinstance(path, str):
            raise StoreError(
                "has no index of its GOPs, by which alone it is read behind a URL; fetch it first", path=path
            )
        raw = VideoFiles([path], fast=self._fast)
        found, due = raw.facts(raw.ids[0]), entry.facts
        if size_of(path) != entry.size_bytes or found.num_frames != due.num_frames or found.height != due.height:
            raise StoreError(
                "changed since it was indexed; run `vidprep index` again, and open the store again", path=path
            )
        return raw

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        if self.entry(id_).packets is not None:
            super().fill(id_, numbers, rows)
        else:
            raw = self._raw[id_]
            raw.fill(raw.ids[0], numbers, rows)

    def sample_rate(self, id_: str) -> int | None:
        raw = self._raw[id_]
        return raw.sample_rate(raw.ids[0])

    def samples(self, id_: str, span: tuple[Fraction, Fraction], rate: int | None, num_channels: int | None) -> Samples:
        raw = self._raw[id_]
        return raw.samples(raw.ids[0], span, rate, num_channels)

    def frame_mappings(self, id_: str, origin_pts: int = 0) -> str:
        raw = self._raw[id_]
        return super().frame_mappings(id_, origin_pts + (raw.scan(raw.ids[0]).origin_pts or 0))
