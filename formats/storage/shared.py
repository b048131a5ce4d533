"""Arrow tables that child processes map into their memory instead of copying or reading them again."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import context, reduction
from typing import IO, TYPE_CHECKING, Any

from vidprep.formats.storage.untrusted import import_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

_inherited: ContextVar[list[int] | None] = ContextVar("_inherited", default=None)


@contextmanager
def pass_files() -> Iterator[list[int]]:
    """Within this block, pickled tables refer to file descriptors, which are put into the yielded list. The process that
    unpickles them must have inherited these under the same numbers.
    """
    descriptors: list[int] = []
    before = _inherited.set(descriptors)
    try:
        yield descriptors
    finally:
        _inherited.reset(before)


def is_for_child() -> bool:
    """Return whether what is pickled now is for a child process of this one."""
    return _inherited.get() is not None or context.get_spawning_popen() is not None


class SharedTable:
    """An Arrow table whose memory is shared with child processes.

    A forked process shares it anyway. When a child is started otherwise, by `multiprocessing` or within
    `pass_files`, the table is written to a file without a name, once, and the child maps that file. Any other
    pickle contains the table, or, if it can be read again, None in place of it.

    Args:
        table: The table.
        can_be_read_again: Leave the table out of pickles.
    """

    def __init__(self, table: pa.Table, *, can_be_read_again: bool = False) -> None:
        self.table: pa.Table | None = table
        self._can_be_read_again = can_be_read_again
        self._file: IO[bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        inherited, kept = _inherited.get(), {"_can_be_read_again": self._can_be_read_again}
        plain = kept | {"table": None if self._can_be_read_again else self.table}
        if inherited is None and context.get_spawning_popen() is None:
            return plain
        try:
            descriptor = self._write().fileno()
        except OSError:  # the disk is full
            return plain
        if inherited is None:
            return kept | {"duplicate": reduction.DupFd(descriptor)}
        inherited.append(descriptor)
        return kept | {"descriptor": descriptor}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._can_be_read_again, self._file = state["_can_be_read_again"], None
        if "table" in state:
            self.table = state["table"]
            return
        import_pyarrow()
        import pyarrow as pa

        descriptor = state["descriptor"] if "descriptor" in state else state["duplicate"].detach()
        mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        os.close(descriptor)
        self.table = pa.ipc.open_file(pa.py_buffer(mapped)).read_all()

    def _write(self) -> IO[bytes]:
        if self._file is None:
            import pyarrow as pa

            file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the table)
            assert self.table is not None
            weakref.finalize(self, file.close)
            with pa.ipc.new_file(file, self.table.schema) as writer:
                writer.write_table(self.table)
            file.flush()
            self._file = file
        return self._file
