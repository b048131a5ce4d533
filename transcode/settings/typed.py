"""Arguments of the functions that people call, held against their annotations before anything is done with them."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

from vidprep.formats.errors import SettingsError
from vidprep.formats.option import TAKEN, Bare, Declared, code_of, fits, hints_of, options_of, with_options, words_for
from vidprep.formats.storage.arrow import ArrowStream

TAKEN[ArrowStream] = (lambda value: hasattr(value, "__arrow_c_stream__"), "a table of Arrow, pandas or polars")
P = ParamSpec("P")
R = TypeVar("R")


def typed(*keywords: Declared) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks the arguments of a public function and completes what `help` shows of it.

    The decorated function raises TypeError for a keyword that it does not have, and SettingsError, with the argument's name, for a value
    of another type than the annotation or one that the argument's Option rejects. Text is parsed where the Option has a parser. Types
    that `TAKEN` does not list are checked with `isinstance`.

    Args:
        keywords: The options that the function takes as ``**keywords``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        bare = inspect.signature(function)
        declared = {each.name: each for each in options_of(function)}
        known = {each.keyword: each for each in keywords}
        positional = [name for name, each in bare.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
        shown = _shown_signature(bare, declared, keywords)
        hints = {each.keyword: each.taken for each in keywords}

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
                if name in declared:
                    declared[name].check(value)
                    continue
                for keyword, given in value.items() if is_open else ((name, value),):
                    hint = accepted.get(keyword)
                    if hint is not None and not fits(given, hint):
                        if keyword in known:
                            raise known[keyword].wrong_type(given)
                        raise SettingsError(f"<{keyword}>: give {words_for(hint)}", **{keyword: Bare(repr(given))})
            return function(*bound.args, **bound.kwargs)

        checked.__signature__ = shown  # type: ignore[attr-defined]
        checked.__options__ = (*keywords, *declared.values())  # type: ignore[attr-defined]  # of which a command has flags
        checked.__doc__ = with_options(inspect.cleandoc(function.__doc__ or ""), [*declared.values(), *keywords])
        return checked

    return decorate


def _shown_signature(
    bare: inspect.Signature, declared: Mapping[str, Declared], keywords: Iterable[Declared]
) -> inspect.Signature:
    """Return the signature for `help` and editors: plain types, defaults as people write them, each keyword by its name."""
    parameters = []
    for each in bare.parameters.values():
        if each.name in declared:
            option = declared[each.name]
            default = option.option.written or each.default
            parameters.append(each.replace(annotation=code_of(option.taken), default=default))
        elif each.kind is not each.VAR_KEYWORD:
            parameters.append(each.replace(annotation=Bare(each.annotation)))
    for more in keywords:
        default, annotation = more.option.written or more.default, code_of(more.taken)
        parameters.append(
            inspect.Parameter(more.keyword, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return bare.replace(parameters=parameters, return_annotation=Bare(bare.return_annotation))


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
