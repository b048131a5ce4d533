"""`pack` for Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vidprep.formats.errors import SettingsError
from vidprep.formats.files.arrow import ArrowStream
from vidprep.formats.stores.registry import STORES_OF_FRAMES
from vidprep.transcode.settings.typed import typed
from vidprep.transcode.workers.unguarded import end_if_worker_starts

EXPORTS = ("frames", "hf", "torchcodec", "dali", "mmaction")


@dataclass(frozen=True, slots=True)
class Packed:
    """num_videos: written. labels: carried over. labels_unseen: of times at which no output has a frame."""

    num_videos: int
    labels: int = 0
    labels_unseen: int = 0


@typed
def pack(
    store: str | Path, out: str | Path, *, to: str, quality: int = 90, subsampling: str = "420",
    shard_size: str | int = "1GiB", labels: str | Path | ArrowStream | None = None,
) -> Packed:  # fmt: skip
    """Make of a store (any destination of `transcode` or `burst`, or a GulpIO or WebDataset folder) what another tool reads.

    to: another store (burst, gulp, webdataset, tensor), or frames, hf, torchcodec, dali, mmaction. quality, subsampling: of JPEGs
    that the store does not have. labels: a table of labels on frames or seconds of the sources, carried over into
    OUT/labels.csv. Raises StoreError, DestinationError, SettingsError, OSError.
    """
    end_if_worker_starts()
    from vidprep.formats.stores.registry import open_store
    from vidprep.transcode.export.folders import export
    from vidprep.transcode.export.labels import carry_over
    from vidprep.transcode.export.pack import pack_store
    from vidprep.transcode.settings.options import FrameOptions
    from vidprep.transcode.settings.parse import parse_bytes

    if to not in (*STORES_OF_FRAMES, *EXPORTS):
        raise SettingsError(f"<to>: not one of {', '.join((*STORES_OF_FRAMES, *EXPORTS))}", to=to)
    store, out = Path(store), Path(out)
    opened = open_store(store)
    if to in STORES_OF_FRAMES:
        count = pack_store(opened, out, FrameOptions(to, quality, subsampling, parse_bytes(str(shard_size))))
    else:
        count = export(opened, out, to, FrameOptions("burst", quality, subsampling))
    if labels is None:
        return Packed(count)
    return Packed(count, *carry_over(store, Path(labels) if isinstance(labels, str) else labels, out))
