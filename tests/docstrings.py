"""The public API's docstrings: which parameters do they not describe?"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator

import vidprep.formats
import vidprep.formats.errors
import vidprep.transcode


def undocumented() -> list[str]:
    """Return `name.parameter` of each public function or class whose docstring has no entry for it."""
    return [f"{name}.{each}" for name, call in _public() for each in _parameters(call) if not _is_described(call, each)]


def _public() -> Iterator[tuple[str, object]]:
    for package in (vidprep.formats, vidprep.transcode):
        for name in package.__all__:
            found = getattr(package, name)
            if dataclasses.is_dataclass(found) and any(
                "meaning" in each.metadata for each in dataclasses.fields(found)
            ):
                continue  # a row, whose columns docs/formats.md describes
            yield name, found
            if inspect.isclass(found):
                yield from (
                    (f"{name}.{each}", method)
                    for each, method in vars(found).items()
                    if inspect.isfunction(method) and not each.startswith("_") and method.__doc__
                )


def _parameters(call: object) -> list[str]:
    """Names of the parameters; one alone is described by the first line."""
    try:
        names = [each for each in inspect.signature(call).parameters if each != "self" and not each.startswith("_")]  # type: ignore[arg-type]
    except ValueError:
        return []
    return names if len(names) > 1 or inspect.isclass(call) else []


def _is_described(call: object, parameter: str) -> bool:
    return bool(re.search(rf"(?m)^ +\*{{0,2}}{parameter}: \S|`{parameter}`", inspect.getdoc(call) or ""))
