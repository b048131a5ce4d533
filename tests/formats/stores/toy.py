"""A store for a test: a length before each JPEG, and `toy.json` that says where each video begins."""

import json
from fractions import Fraction
from itertools import accumulate

import simplejpeg

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.table import label_columns
from vidprep.formats.storage.local import replacing
from vidprep.formats.stores._indexed import decode_rows, scale_size
from vidprep.formats.stores.base import FrameStore, VideoFacts
from vidprep.formats.stores.shards import StoreLayout


class ToyLayout(StoreLayout):
    name, suffix, index_files = "toy", ".toy", ("toy.json",)

    def serialize(self, row, frames):
        for size in row.frame_sizes:
            yield size.to_bytes(4, "big") + frames.read(size)

    def offsets(self, row):
        return [at + 4 for at in accumulate((4 + size for size in row.frame_sizes), initial=row.offset)][:-1]

    def _index(self, rows):
        return {
            row.id: [row.file_name, self.offsets(row), row.frame_sizes, [row.frame_rate_num, row.frame_rate_den]]
            for row in rows
        }

    def write_index(self, root, rows, _about):
        with replacing(root / "toy.json") as file:
            file.write(json.dumps(self._index(rows)).encode())
        yield root / "toy.json"

    def faults_of_index(self, root, rows, *, are_all):
        if json.loads((root / "toy.json").read_text()) != self._index(rows):
            yield f"{root / 'toy.json'}: says something else than the manifest"


LAYOUT = ToyLayout()


def open_here(folder, options):
    return ToyStore(folder, options)


class ToyStore(FrameStore):
    """Reads it."""

    kind = "toy"

    def __init__(self, path, options):
        super().__init__(path)
        self._options, self._places = options, json.loads((self.path / "toy.json").read_text())

    def _ids(self):
        return sorted(self._places)

    def labels(self, id_):
        assert self._places[id_]  # or KeyError
        return label_columns(self.path).values_of(id_)

    def facts(self, id_):
        height, width = scale_size(*self._full(id_), self._options.short_side)
        return VideoFacts(len(self._places[id_][1]), height, width, Fraction(*self._places[id_][3]))

    def _full(self, id_):
        return simplejpeg.decode_jpeg_header(self.stored_jpegs(id_)[0])[:2]

    def stored_jpegs(self, id_):
        shard, offsets, sizes, _ = self._places[id_]
        try:
            stored = (self.path / shard).read_bytes()
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=self.path / shard) from error
        return [memoryview(stored[at : at + size]) for at, size in zip(offsets, sizes, strict=True)]

    def fill(self, id_, numbers, rows):
        full, stored = self._full(id_), self.stored_jpegs(id_)
        decode_rows(
            [stored[n] for n in numbers],
            rows,
            full=full,
            size=scale_size(*full, self._options.short_side),
            fast=self._options.fast,
            place=lambda n: f"frame {numbers[n]} of {id_}",
            path=self.path,
        )
