"""Labels: what users say about units, in columns of any Arrow type, separate from the facts that vidprep measures.

In a manifest, an index and DST/.vidprep/labels.parquet, labels are the fields of one struct column, `labels`, beside
`id`. So a label may have any name, and a column that is added later never replaces it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vidprep.formats.errors import ManifestError, SourceError, count_of
from vidprep.formats.manifest.row import show
from vidprep.formats.storage.untrusted import arrow_file, open_parquet, seal_footer

LABELS = "labels"
CLASS_LABEL, SPLIT_LABEL = "label", "split"
NOTES_KEY = b"vidprep.labels"


@dataclass(frozen=True)
class Labels:
    """Labels of units.

    Attributes:
        columns: A value for each of `ids`, by name of the label
        split_rule: Rule by which the label `split` was drawn; "" if it was not
    """

    ids: Sequence[str]
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    split_rule: str = ""

    @cached_property
    def places(self) -> dict[str, int]:
        """Position of each id in `ids`."""
        return {id_: place for place, id_ in enumerate(self.ids)}

    def values_of(self, id_: str) -> dict[str, Any]:
        """Return the values of a unit by name; empty for an unknown unit."""
        place = self.places.get(id_)
        return {} if place is None else {name: value_of(array[place]) for name, array in self.columns.items()}

    def select(self, ids: Sequence[str]) -> Labels:
        """Return the labels of these units, in this order; null for a unit without labels."""
        places = pa.array([self.places.get(id_) for id_ in ids], pa.int64())
        return replace(self, ids=ids, columns={name: array.take(places) for name, array in self.columns.items()})

    def select_places(self, places: Any, ids: Sequence[str]) -> Labels:
        """Return the labels of the units at these positions, whose ids are `ids`."""
        return replace(
            self, ids=ids, columns={name: array.take(pa.array(places)) for name, array in self.columns.items()}
        )

    def select_columns(self, names: Iterable[str]) -> Labels:
        """Return only these columns, as far as they exist."""
        return replace(self, columns={name: self.columns[name] for name in names if name in self.columns})

    def struct(self) -> pa.StructArray | None:
        """Return the values as one struct column; None without labels, as Parquet has no struct without fields."""
        if not self.columns:
            return None
        return pa.StructArray.from_arrays(list(self.columns.values()), names=list(self.columns))

    def table(self) -> pa.Table:
        """Return a table with `id` and, if there are any, `labels`."""
        struct = self.struct()
        columns = {"id": pa.array(self.ids, pa.string())} | ({} if struct is None else {LABELS: struct})
        return pa.table(columns).replace_schema_metadata({NOTES_KEY: json.dumps(self.notes()).encode()})

    def notes(self) -> dict[str, Any]:
        """Return the metadata that `labels_in` reads besides the values."""
        return {"split_rule": self.split_rule} if self.split_rule else {}

    def as_bytes(self) -> bytes:
        """Return a file that `read_labels` reads."""
        file = io.BytesIO()
        pq.write_table(self.table(), file, compression="zstd", write_page_checksum=True)
        seal_footer(file)
        return file.getvalue()


def labels_in(table: pa.Table, ids: Sequence[str] | None = None) -> Labels:
    """Return the labels of a table that may have the column `labels`.

    Args:
        table: The table.
        ids: Ids of its rows; None means its column `id`.
    """
    rule = str(notes_of(table.schema).get("split_rule", ""))
    labels = Labels(table["id"].to_pylist() if ids is None else ids, {}, rule)
    if LABELS not in table.column_names:
        return labels
    column = table[LABELS].combine_chunks()
    struct = column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column
    if isinstance(struct, pa.ChunkedArray):
        struct = pa.array([], table.schema.field(LABELS).type)
    names = [struct.type.field(number).name for number in range(struct.type.num_fields)]
    return replace(labels, columns=dict(zip(names, struct.flatten(), strict=True)))


def read_labels(path: Path) -> Labels:
    """Read a file of `Labels.as_bytes`. Raises ManifestError."""
    try:
        with arrow_file(path) as source, open_parquet(source, path) as file:
            return labels_in(file.read())
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError, MemoryError) as error:
        raise ManifestError(
            f"cannot be read ({error}); remove it, and run the same command again", path=path
        ) from error


def notes_of(schema: pa.Schema) -> dict[str, Any]:
    """Return a file's metadata about labels: the rule of its splits, and its `classes` in the order of their numbers."""
    notes = json.loads((schema.metadata or {}).get(NOTES_KEY, b"{}"))
    return notes if isinstance(notes, dict) else {}


def labels_of_dicts(ids: Sequence[str], values: Sequence[Mapping[str, Any]]) -> Labels:
    """Return labels from JSON of other tools. A label whose values have no common type becomes text."""
    names = dict.fromkeys(name for each in values for name in each)
    return Labels(ids, {name: _infer([each.get(name) for each in values]) for name in names})


def _infer(values: list[Any]) -> pa.Array:
    try:
        return storable(pa.array(values))
    except (pa.ArrowException, OverflowError, ValueError, TypeError, RecursionError):
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def storable(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values in a type that Parquet preserves. Raises ValueError if there is no such type."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    try:
        if pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        if (plain := _plain_type(array.type)) != array.type:
            array = pa.array(values_of(array), plain)
        kept = parquet_schema(pa.schema([("x", array.type)])).field("x").type
        return array if kept == array.type else array.cast(kept)
    except pa.ArrowException as error:
        raise ValueError(f"values of Arrow's type {array.type} cannot be stored in Parquet") from error


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return an equivalent type without dictionaries and views, which few of Arrow's functions support."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_plain_type(kind.value_type))
    plain = {"string_view": pa.string(), "binary_view": pa.binary()}
    return plain.get(str(kind), kind)


def parquet_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema as Parquet returns it: it renames the items of lists and has no unit of seconds, for example."""
    file = io.BytesIO()
    pq.write_table(schema.empty_table(), file)
    return pq.read_schema(io.BytesIO(file.getvalue()))


def values_of(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return an array as Python values; times with odd nanoseconds, which Python lacks, as NumPy values."""
    try:
        values: list[Any] = array.to_pylist()
        return values
    except ValueError:
        return [value_of(scalar) for scalar in array]


def value_of(scalar: pa.Scalar) -> Any:
    """Return a scalar as `values_of` does."""
    try:
        return scalar.as_py()
    except ValueError:
        if isinstance(scalar, pa.StructScalar):
            return {name: value_of(value) for name, value in scalar.items()}
        if isinstance(scalar, pa.ListScalar):
            return values_of(scalar.values)
        from numpy import datetime64, timedelta64

        return (datetime64 if pa.types.is_timestamp(scalar.type) else timedelta64)(scalar.value, "ns")


def concatenate(several: Sequence[Labels]) -> Labels:
    """Concatenate labels. If a label has types without a common type, such as 3 and "walk", its values become text."""
    ids = [id_ for each in several for id_ in each.ids]
    names = dict.fromkeys(name for each in several for name in each.columns)
    columns = {}
    for name in names:
        arrays = [each.columns.get(name, pa.nulls(len(each.ids))) for each in several]
        columns[name] = _concatenate(arrays)
    rules = [each.split_rule for each in several if each.split_rule]
    return Labels(ids, columns, rules[-1] if rules else "")


def _concatenate(arrays: list[pa.Array]) -> pa.Array:
    tables = [pa.table({"x": array}) for array in arrays]
    try:
        column = pa.concat_tables(tables, promote_options="permissive")["x"].combine_chunks()
    except pa.ArrowException:
        column = pa.chunked_array([_convert_to_text(array) for array in arrays], pa.string()).combine_chunks()
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _convert_to_text(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowException:
        return pa.array([None if value is None else _text(value) for value in values_of(array)], pa.string())


def _text(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)
    except (TypeError, ValueError, RecursionError):
        text = show(value)
    return text.encode("utf-8", "backslashreplace").decode()


def update(kept: Labels, given: Labels, ids: Sequence[str]) -> Labels:
    """Return the labels of these units: given ones for units that have them, else the existing ones."""
    old = kept.select([id_ for id_ in ids if id_ not in given.places])
    new = given.select([id_ for id_ in ids if id_ in given.places])
    if not old.ids:
        return new
    both = old if not new.ids else concatenate([old, new])
    said = given if new.ids else kept
    return replace(both.select(ids), split_rule=said.split_rule)


def fit(given: Labels, kept: Labels) -> Labels:
    """Convert given labels to the types of their columns together with other units: 3 beside "walk" becomes "3".

    Raises:
        SourceError: Values of the other units would have to change.
    """
    columns = dict(given.columns)
    for name in columns.keys() & kept.columns.keys():
        stays = kept.select_columns([name])
        both = concatenate([stays, given.select_columns([name])])
        columns[name] = both.columns[name].slice(len(kept.ids))
        values = zip(values_of(stays.columns[name]), values_of(both.columns[name].slice(0, len(kept.ids))), strict=True)
        pairs = [pair for pair in values if pair[0] is not None]
        if any(one != other and repr(one) != repr(other) for one, other in pairs):
            raise SourceError(
                f"label {show(name)}: values here are of type {given.columns[name].type}, such as {_example(given.columns[name])}, and "
                f"those of {count_of(len(pairs), 'video')} not listed here of type {stays.columns[name].type}; change the table, "
                "list those videos too, or leave the column out with --labels"
            )
    return replace(given, columns=columns)


def _example(array: pa.Array) -> str:
    return next((show(value) for value in values_of(array) if value is not None), "nothing")


def differing(one: Labels, other: Labels) -> list[str]:
    """Return the units of both whose labels differ. A null label counts as missing."""
    ids = [id_ for id_ in one.ids if id_ in other.places]
    first, second = one.select(ids), other.select(ids)
    changed: set[int] = set()
    for name in {*first.columns, *second.columns}:
        a, b = first.columns.get(name), second.columns.get(name)
        if a is not None and b is not None and a.equals(b):
            continue
        left, right = ([None] * len(ids) if array is None else values_of(array) for array in (a, b))
        changed |= {place for place, pair in enumerate(zip(left, right, strict=True)) if repr(pair[0]) != repr(pair[1])}
    return [ids[place] for place in sorted(changed)]


def classes_of(labels: Labels) -> list[str] | None:
    """Return the sorted text values of `label`; None if they are numbers, or missing."""
    column = labels.columns.get(CLASS_LABEL)
    if column is None or not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    return sorted(pc.unique(column.drop_null()).to_pylist())
