"""What a column of a manifest can hold: one check for each kind of column, made from its type."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]
EXACT_DOUBLE = 2**53  # whole numbers up to here are doubles without loss, and Arrow takes no others for one


def check_of(kind: str) -> Check:
    """Whether a value that is there fits a column of this type, as the manifest names types."""
    if kind.startswith("list<"):
        return _list_check(kind[5:-1])
    if kind.startswith("int"):
        low, high = _range(kind)
        return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    return {"string": is_text, "bool": lambda value: isinstance(value, bool), "double": _is_double}[kind]


def _range(kind: str) -> tuple[int, int]:
    bits = int(kind.removeprefix("int")) - 1
    return -(2**bits), 2**bits - 1


def _list_check(kind: str) -> Check:
    if not kind.startswith("int"):
        check = check_of(kind)
        return lambda values: isinstance(values, list | tuple) and all(map(check, values))
    low, high = _range(kind)

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
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= EXACT_DOUBLE


def shown(value: object) -> str:
    """A value in a message, whatever it is: short, and without what a terminal would obey."""
    try:
        text = reprlib.repr(value)
    except Exception:  # noqa: BLE001 (an object of any class; an integer of thousands of digits)
        text = f"a {type(value).__name__}"
    return text.encode("utf-8", "backslashreplace").decode()
