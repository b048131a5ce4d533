"""pyarrow without pandas, which it looks for with its first value: seconds of CPU time in each process where that is installed."""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Any, Protocol


class ArrowStream(Protocol):
    """A table in memory: of Arrow, pandas, polars, or whatever else shows itself so."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@cache
def import_pyarrow() -> None:
    """What reading and writing tables imports. pyarrow asks for pandas again when a table is to be a data frame."""
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet

    finder: Any = _NoPandas(threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas:
    """A finder of modules that hides pandas from one thread; another may import it at the same time."""

    def __init__(self, thread: int) -> None:
        self._thread = thread

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(name=name)
