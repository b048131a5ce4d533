"""Arguments of the functions that people call, held against their annotations before anything is done with them."""

from __future__ import annotations

import functools
import inspect
import os
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
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

# What `--help` calls arguments, and what they are called in Python.
_ARGUMENTS = {"SRC": "source", "DST": "destination", "OUT": "out", "STORE": "store", "TABLE": "table"}


def typed(*keywords: Declared) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks the arguments of a public function and completes what `help` shows of it.

    The decorated function raises TypeError for a keyword that it does not have, and SettingsError, with the argument's name, for a value
    of another type than the annotation or one that the argument's Option rejects. Text is parsed where the Option has a parser. Types
    that `_TAKEN` does not list are not checked.

    Args:
        keywords: The options that the function takes as ``**keywords``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        bare = inspect.signature(function)
        declared = {each.name: each for each in options_of(function)}
        positional = [name for name, each in bare.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
        shown = _shown_signature(bare, declared, keywords)
        hints = {name: each.hint for name, each in declared.items()} | {each.keyword: each.taken for each in keywords}

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(args) > len(positional):
                first = next(each for each in shown.parameters if each not in positional)
                raise TypeError(
                    f"{function.__name__}() takes only {' and '.join(positional)} by position; give the others by name, as {first}=…"
                )
            for keyword in kwargs:
                if keyword not in shown.parameters:
                    near = get_close_matches(keyword, shown.parameters, 1)
                    meant = f"; did you mean {near[0]!r}?" if near else ""
                    raise TypeError(f"{function.__name__}() has no keyword {keyword!r}{meant}")
            bound = bare.bind(*args, **kwargs)
            accepted = _plain_hints(function) | hints
            for name, value in bound.arguments.items():
                is_open = bare.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
                if name in declared and isinstance(value, str) and _is_many(declared[name]):
                    bound.arguments[name] = value = (value,)
                elif name in declared and _is_written(value):
                    bound.arguments[name] = value = declared[name].option.parsed(name, value)
                for keyword, given in value.items() if is_open else ((name, value),):
                    hint = accepted.get(keyword)
                    if hint is not None and not _fits(given, hint):
                        raise SettingsError(f"<{keyword}>: give {_words(hint)}", **{keyword: _Bare(repr(given))})
                if name in declared:
                    declared[name].option.check(name, value)
            return function(*bound.args, **bound.kwargs)

        checked.__signature__ = shown  # type: ignore[attr-defined]
        checked.__doc__ = _with_options(inspect.cleandoc(function.__doc__ or ""), [*declared.values(), *keywords])
        return checked

    return decorate


class _Bare(str):
    """Text whose repr has no quotation marks: a value or an annotation as Python code."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown_signature(
    bare: inspect.Signature, declared: Mapping[str, Declared], keywords: Iterable[Declared]
) -> inspect.Signature:  # fmt: skip
    """Return the signature for `help` and editors: plain types, defaults as people write them, each keyword by its name."""
    parameters = []
    for each in bare.parameters.values():
        if each.name in declared:
            option = declared[each.name]
            default = option.option.written or each.default
            parameters.append(each.replace(annotation=_code(option.taken), default=default))
        elif each.kind is not each.VAR_KEYWORD:
            parameters.append(each.replace(annotation=_Bare(each.annotation)))
    for more in keywords:
        default, annotation = more.option.written or more.default, _code(more.taken)
        parameters.append(
            inspect.Parameter(more.keyword, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return bare.replace(parameters=parameters, return_annotation=_Bare(bare.return_annotation))


def _code(hint: Any) -> _Bare:
    """Return a type as one writes it after its import."""
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return _Bare(re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text))


def _with_options(doc: str, options: Iterable[Declared]) -> str:
    """Return a docstring whose section `Args:` describes the options too, in the words of `--help`."""
    rows = []
    for each in options:
        words = each.option.help.replace("; may be repeated", "")
        words = re.sub(r"--([a-z][a-z-]*)", lambda flag: f"`{flag[1].replace('-', '_')}`", words)
        words = re.sub(r"\b(SRC|DST|OUT|STORE|TABLE)\b", lambda name: f"`{_ARGUMENTS[name[1]]}`", words)
        if each.option.choices:
            words += f" One of {', '.join(each.option.choices)}."
        rows.append(textwrap.fill(f"{each.keyword}: {words}", 100, initial_indent=" " * 4, subsequent_indent=" " * 8))
    if not rows:
        return doc
    head, args, tail = doc.partition("\nArgs:\n")
    listed, gap, rest = tail.partition("\n\n")
    return "".join((head, args or "\n\nArgs:\n", listed.rstrip(), "\n" if listed else "", "\n".join(rows), gap, rest))


def _is_many(declared: Declared) -> bool:
    """Whether one text would be taken for many letters."""
    return declared.option.parse is None and typing.get_origin(declared.hint) is Sequence


def _is_written(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, tuple) and all(isinstance(each, str) for each in value))


@functools.cache
def _plain_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the arguments that are no options, by name."""
    hints = {name: hint for name, hint in hints_of(function).items() if name != "return"}
    return {
        name: hint for name, hint in hints.items() if typing.get_origin(hint) not in (typing.Unpack, typing.Annotated)
    }


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
