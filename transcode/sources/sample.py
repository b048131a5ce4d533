"""A few that stand for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar


class Sized(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def size_bytes(self) -> int | None: ...


if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T", bound=Sized)


def choose(items: Sequence[T], count: int) -> tuple[T, ...]:
    """`count` of the sources or rows, all when there are fewer; the same ones each time.

    Systematic: ordered by folder and then by size, every n-th is taken, so that folders and sizes are there in
    proportion.
    """
    ordered = sorted(items, key=lambda item: (item.id.rpartition("/")[0], item.size_bytes or 0, item.id))
    return tuple(ordered[place] for place in _places(len(ordered), count))


def choose_ids(table: pa.Table, count: int) -> list[str]:
    """The ids that `choose` takes of the rows of a manifest, of which there may be millions. table: with `id` and `size_bytes`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    folders = pc.replace_substring_regex(table["id"], "/?[^/]*$", "")
    keys = pa.table([folders, pc.fill_null(table["size_bytes"], 0), table["id"]], ["folder", "size", "id"])
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])
    ids: list[str] = table["id"].take(order.take(pa.array(_places(len(order), count), pa.int64()))).to_pylist()
    return ids


def _places(total: int, count: int) -> list[int]:
    return [*range(total)] if count >= total else [(2 * n + 1) * total // (2 * count) for n in range(count)]
