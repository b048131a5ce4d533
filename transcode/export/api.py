"""`pack` for Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vidprep.formats.option import Option
from vidprep.formats.profiles import JPEG_SUBSAMPLINGS
from vidprep.formats.storage.arrow import ArrowStream
from vidprep.formats.stores.registry import STORES_OF_FRAMES
from vidprep.transcode.settings.parse import parse_bytes
from vidprep.transcode.settings.typed import typed

EXPORTS = ("frames", "hf", "torchcodec", "dali", "mmaction")


@dataclass(frozen=True, slots=True)
class Packed:
    """What `pack` wrote.

    Attributes:
        num_videos: Videos.
        labels: Rows of `labels` that were carried over.
        labels_unseen: Rows of `labels` at whose time no output has a frame.
    """

    num_videos: int
    labels: int = 0
    labels_unseen: int = 0


@typed()
def pack(
    store: str | Path,
    out: str | Path,
    *,
    to: Annotated[str, Option("What to make.", choices=(*STORES_OF_FRAMES, *EXPORTS))],
    quality: Annotated[int, Option("JPEG quality, where STORE has no JPEGs to copy.", "Q", least=1, most=100)] = 90,
    subsampling: Annotated[
        str, Option("Chroma subsampling, where STORE has no JPEGs to copy.", choices=JPEG_SUBSAMPLINGS)
    ] = "420",
    shard_size: Annotated[
        str | int, Option("Start a new shard beyond this size.", "BYTES", parse=parse_bytes)
    ] = "1GiB",
    labels: Annotated[
        str | Path | ArrowStream | None,
        Option(
            "Labels on frames or seconds of the sources, carried over into OUT/labels.csv: columns id or path, and start and end "
            "(seconds) or start_frame and end_frame.", "TABLE", path="any"
        ),
    ] = None,
    overwrite: Annotated[bool, Option("Replace what an earlier pack wrote to OUT.")] = False,
) -> Packed:  # fmt: skip
    """Convert a store into a format that another tool reads.

    Args:
        store: A destination of `transcode` or `burst`, or a folder of GulpIO or WebDataset.
        out: The folder to write.

    Returns:
        Packed, how many videos and labels were written.

    Raises:
        StoreError: `store` cannot be read.
        DestinationError: `out` cannot be written.
        SettingsError: A value is not allowed.
    """
    from vidprep.formats.stores.registry import open_store
    from vidprep.transcode.export.folders import export
    from vidprep.transcode.export.labels import carry_over
    from vidprep.transcode.export.pack import pack_store
    from vidprep.transcode.settings.output import FrameOutput

    store, out = Path(store), Path(out)
    opened = open_store(store)
    carried = None if labels is None else carry_over(store, Path(labels) if isinstance(labels, str) else labels)
    if to in STORES_OF_FRAMES:
        count = pack_store(
            opened, out, FrameOutput(to, quality, subsampling, parse_bytes(str(shard_size))), overwrite=overwrite
        )
    else:
        count = export(opened, out, to, FrameOutput("burst", quality, subsampling), overwrite=overwrite)
    if carried is None:
        return Packed(count)
    carried.write(out)
    return Packed(count, len(carried.rows), carried.unseen)
