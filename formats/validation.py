"""Arguments of the classes that people call, checked before anything is done with them."""

from __future__ import annotations

import operator
from typing import SupportsIndex, cast

from vidprep.formats.errors import SettingsError


def whole(name: str, value: object, least: int) -> int:
    """The value as an int. Raises SettingsError where it is no whole number, or below `least`."""
    try:
        number = operator.index(cast(SupportsIndex, value))
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r}; give a whole number, {least} or more")
    return number
