"""Bursts, and what makes one whole."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from functools import partial
from itertools import pairwise
from pathlib import Path

from tests.helpers import transcode
from vidprep.formats.manifest.table import ManifestRow, read_manifest

FORMATS = ("burst", "gulp", "webdataset", "tensor")


SUFFIXES = {"burst": ".bin", "gulp": ".gulp", "webdataset": ".tar", "tensor": ".raw"}


burst = partial(transcode, verb="burst")


def good(destination: Path) -> dict[str, ManifestRow]:
    return {row.id: row for row in read_manifest(destination) if row.ok}


def stored_frames(destination: Path, row: ManifestRow) -> list[bytes]:
    """The frames of a unit, found without our readers: by what each layout is documented to be."""
    assert row.offset is not None and row.stored_bytes is not None and row.frame_sizes is not None
    with (destination / row.file_name).open("rb") as file:
        file.seek(row.offset)
        data = file.read(row.stored_bytes)
    assert len(data) == row.stored_bytes
    if row.file_name.endswith(".tar"):
        with tarfile.open(fileobj=io.BytesIO(data + bytes(1024))) as tar:
            return [tar.extractfile(member).read() for member in tar if member.name.endswith(".jpg")]  # type: ignore[union-attr]
    step = 4 if row.file_name.endswith(".gulp") else 1
    frames, at = [], 0
    for size in row.frame_sizes:
        frames.append(data[at : at + size])
        at += size + -size % step
    assert at == len(data)
    return frames


def is_whole(destination: Path) -> dict[str, list[bytes]]:
    """Frames by id; no two units share a byte, few bytes of a shard are dead (of a tar, which others read, none), every checksum holds,
    and nothing else lies about.
    """
    rows = good(destination)
    found = {}
    for row in rows.values():
        frames = found[row.id] = stored_frames(destination, row)
        assert [len(frame) for frame in frames] == row.frame_sizes
        assert [zlib.crc32(frame) for frame in frames] == row.frame_crc32
        assert hashlib.sha256(b"".join(frames)).hexdigest() == row.sha256
        assert sum(map(len, frames)) == row.size_bytes
        assert len(frames) == row.num_frames
    shards = {p for p in destination.iterdir() if p.suffix in SUFFIXES.values()}
    for shard in shards:
        mine = sorted((row.offset or 0, row.stored_bytes or 0) for row in rows.values() if row.file_name == shard.name)
        assert all(at + size <= following for (at, size), (following, _) in pairwise(mine))
        dead = shard.stat().st_size - sum(size for _, size in mine)
        assert dead == 1024 if shard.suffix == ".tar" else 0 <= dead <= shard.stat().st_size / 4
    assert not list((destination / ".vidprep" / "partial").iterdir())
    assert not list(destination.glob(".*.partial"))
    return found
