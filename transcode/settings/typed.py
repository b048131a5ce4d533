"""Arguments of the functions that people call, held against their annotations before anything is done with them."""

from __future__ import annotations

import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from vidprep.formats.errors import SettingsError
from vidprep.formats.files.arrow import ArrowStream
from vidprep.formats.option import Declared, hints_of, options_of

P = ParamSpec("P")
R = TypeVar("R")

# Of each type: which values are taken for it, and how it is called. True is no number, and no file has a NUL in its name.
_TAKEN: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "True or False"),
    int: (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63,
        "a whole number",
    ),
    float: (lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"),
    Fraction: (lambda value: isinstance(value, Fraction), "a Fraction"),
    str: (lambda value: isinstance(value, str) and "\0" not in value, "text"),
    Path: (lambda value: isinstance(value, os.PathLike) and "\0" not in os.fsdecode(value), "a path"),
    ArrowStream: (lambda value: hasattr(value, "__arrow_c_stream__"), "a table of Arrow, pandas or polars"),
    type(None): (lambda value: value is None, "None"),
}


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises SettingsError for an argument of another type than it declares, with the argument's name, and for one
    that its Option does not take. Text is parsed where the Option says how.

    What is declared by other types than those above and sequences of them is taken as it is.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        hints, options = _hints(function), {each.name: each for each in options_of(function)}
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            is_open = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            if name in options and isinstance(value, str) and _is_many(options[name]):
                bound.arguments[name] = value = (value,)
            elif name in options and _is_written(value):
                bound.arguments[name] = value = options[name].option.parsed(name, value)
            for keyword, given in value.items() if is_open else ((name, value),):
                hint = hints.get(keyword)
                if hint is not None and not _fits(given, hint):
                    raise SettingsError(f"<{keyword}>: give {_words(hint)}", **{keyword: _Shown(given)})
            if name in options:
                options[name].option.check(name, value)
        return function(*bound.args, **bound.kwargs)

    return checked


def show_keywords(function: Callable[..., Any], declared: Iterable[Declared]) -> None:
    """Let `help`, editors and notebooks see each keyword that a function takes as one of many."""
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            each.keyword,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.option.written or each.default,
            annotation=each.taken,
        )
        for each in declared
        if each.keyword not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]


def _is_many(declared: Declared) -> bool:
    """Whether one text would be taken for many letters."""
    return declared.option.parse is None and typing.get_origin(declared.hint) is Sequence


def _is_written(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, tuple) and all(isinstance(each, str) for each in value))


class _Shown(str):
    """A value as Python writes it."""

    __slots__ = ()

    def __new__(cls, value: object) -> _Shown:
        return super().__new__(cls, repr(value))

    def __repr__(self) -> str:
        return str(self)


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """By name, those of an Unpack[TypedDict] too."""
    found: dict[str, Any] = {}
    for name, hint in hints_of(function).items():
        if typing.get_origin(hint) is typing.Unpack:
            found |= typing.get_type_hints(typing.get_args(hint)[0])
        elif name != "return":
            found[name] = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    return found


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _fits(value: object, hint: Any) -> bool:
    return any(_fits_one(value, member) for member in _members(hint))


def _fits_one(value: object, hint: Any) -> bool:
    if hint in _TAKEN:
        return _TAKEN[hint][0](value)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and Ellipsis not in inner:
        return isinstance(value, tuple | list) and len(value) == len(inner) and all(map(_fits, value, inner))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if origin in (Sequence, list, tuple):
        return (
            isinstance(value, Sequence)
            and not isinstance(value, bytes)
            and all(_fits(each, inner[0]) for each in value)
        )
    return True


def _words(hint: Any) -> str:
    words = [_TAKEN[member][1] if member in _TAKEN else _words_of_many(member) for member in _members(hint)]
    return " or ".join(words)


def _words_of_many(hint: Any) -> str:
    inner = [each for each in typing.get_args(hint) if each is not Ellipsis]
    if typing.get_origin(hint) is Mapping:
        return f"a mapping from {_words(inner[0])} to {_words(inner[1])}"
    if typing.get_origin(hint) is tuple and len(inner) > 1:
        return f"({', '.join(map(_words, inner))})"
    return f"a list of {_words(inner[0])}" if inner else getattr(hint, "__name__", str(hint))
