"""ShardWriter: what it says when the disk fails beside the run."""

from __future__ import annotations

import errno
import os

import pytest

from vidprep.formats.manifest.table import ManifestRow
from vidprep.formats.stores import shards
from vidprep.formats.stores.registry import layout_of
from vidprep.formats.stores.shards import ShardWriter


@pytest.mark.parametrize("failing", [1, 2, 3], ids=["first flush", "second flush", "closing"])
def test_a_shard_that_does_not_reach_the_disk_is_never_called_whole(failing, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "FLUSH_BYTES", 150)
    calls, fsync = [], os.fsync

    def fails_once(fd: int) -> None:
        calls.append(fd)
        if len(calls) == failing:
            raise OSError(errno.EIO, "Input/output error")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fails_once)
    writer = ShardWriter(tmp_path, layout_of("burst"), 1 << 20, run=1)
    for name in "abcd":
        row = ManifestRow(id=name, file_name="", source=f"/{name}", stored_bytes=100)
        writer.copy(row, iter([bytes(100)]))
    with pytest.raises(OSError, match="Input/output error"):
        writer.close()
    assert writer.whole == []
