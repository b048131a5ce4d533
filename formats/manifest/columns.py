"""What a column of a manifest is, as its field in the dataclass says it, and what it can hold."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from dataclasses import field, fields
from itertools import groupby
from typing import Any

Check = Callable[[Any], bool]
PYTHON_TYPES = {"string": "str", "bool": "bool", "double": "float", "int16": "int", "int32": "int", "int64": "int"}
EXACT_DOUBLE = 2**53  # whole numbers up to here are doubles without loss, and Arrow takes no others for one


def column(kind: str, meaning: str, *, low: int | None = 0, high: int | None = None, **how: Any) -> Any:
    """A field of a row.

    Args:
        kind: Arrow's type.
        meaning: In a line, with the unit.
        low: The lowest whole number in it; None for all that the type holds.
        high: The highest.
        how: `default` or `default_factory`; None is the default.
    """
    return field(metadata={"kind": kind, "meaning": meaning, "bounds": (low, high)}, **(how or {"default": None}))


def kinds_of(row: Any) -> dict[str, str]:
    """The types of the columns of a dataclass, in order; `labels` is none. Raises TypeError for a field that does not say it, or is of
    another type in Python.
    """
    found = {}
    for each in fields(row):
        if each.name == "labels":
            continue
        kind = each.metadata.get("kind", "")
        item = kind.removeprefix("list<").removesuffix(">")
        due = PYTHON_TYPES.get(item) if item == kind else f"list[{PYTHON_TYPES.get(item)}]"
        if due is None or str(each.type).removesuffix(" | None") != due or not each.metadata.get("meaning"):
            raise TypeError(
                f"{each.name}: {each.type} has metadata {dict(each.metadata)}; give column(Arrow's type, what it holds)"
            )
        found[each.name] = kind
    return found


def described(row: Any) -> str:
    """The columns as a table in Markdown, those that mean the same in one line."""
    lines = ["| column | type | meaning |", "| --- | --- | --- |"]
    each_field = [each for each in fields(row) if each.name != "labels"]
    for meaning, group in groupby(each_field, key=lambda each: each.metadata["meaning"]):
        several = list(group)
        kinds = dict.fromkeys(each.metadata["kind"] for each in several)
        shown_kinds = kinds if len(kinds) == 1 else [each.metadata["kind"] for each in several]
        lines.append(f"| {', '.join(f'`{each.name}`' for each in several)} | {', '.join(shown_kinds)} | {meaning} |")
    return "\n".join(lines)


def check_of(kind: str, low: int | None = None, high: int | None = None) -> Check:
    """Whether a value that is there fits a column of this type, as the manifest names types, and lies within bounds."""
    if kind.startswith("list<"):
        return _list_check(kind[5:-1], low, high)
    if kind.startswith("int"):
        low, high = _range(kind, low, high)
        return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    return {"string": is_text, "bool": lambda value: isinstance(value, bool), "double": _is_double}[kind]


def _range(kind: str, low: int | None, high: int | None) -> tuple[int, int]:
    bits = int(kind.removeprefix("int")) - 1
    return -(2**bits) if low is None else low, 2**bits - 1 if high is None else high


def _list_check(kind: str, low: int | None, high: int | None) -> Check:
    if not kind.startswith("int"):
        check = check_of(kind)
        return lambda values: isinstance(values, list | tuple) and all(map(check, values))
    low, high = _range(kind, low, high)

    def fits(values: Any) -> bool:
        """Three passes in C: lists have a value for each frame."""
        if not isinstance(values, list | tuple):
            return False
        return not values or ({*map(type, values)} == {int} and low <= min(values) and max(values) <= high)

    return fits


def is_text(value: Any) -> bool:
    """A string that is valid Unicode: names of files may not be."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_double(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= EXACT_DOUBLE


def shown(value: object) -> str:
    """A value in a message, whatever it is: short, and without what a terminal would obey."""
    try:
        text = reprlib.repr(value)
    except Exception:  # noqa: BLE001 (an object of any class; an integer of thousands of digits)
        text = f"a {type(value).__name__}"
    return text.encode("utf-8", "backslashreplace").decode()
