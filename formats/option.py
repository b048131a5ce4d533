"""Options: the one place where the type, default, help and bounds of a setting are declared."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, SupportsIndex, TypeVar, Union, cast, get_args, get_origin

from vidprep.formats.errors import SettingsError

Kind = TypeVar("Kind")
RENAMED = {"split": "segment"}  # keywords of earlier versions


@dataclass(frozen=True, slots=True)
class Option:
    """Declares an option in an annotation: `gop: Annotated[int, Option("A keyframe every N frames.", "N", least=1)] = 16`.

    Attributes:
        metavar: Placeholder of the value in `--help`
        keyword: Name of the flag and keyword, if it differs from the field's
        choices: Allowed values
        other_names: Other names of choices, such as those that ffmpeg uses
        least: Smallest allowed value
        above: Exclusive lower bound
        most: Largest allowed value
        unit: Unit of the bounds, for messages
        must: Message for a value outside the bounds, if the generated one would not be clear
        parse: Converts what a user wrote, or raises SettingsError or ValueError; the type of its argument is the
            keyword's type
        written: The default as a user would write it
        repeated: Whether the flag may be given several times
        path: "file", "folder" or "any" if the value is a path; "place" if it may be a URL, too
        only: The single command that has this option
        heading: Heading of its group in `--help`, if it is not the `HEADING` of the dataclass
    """

    help: str
    metavar: str = ""
    _: KW_ONLY
    keyword: str = ""
    choices: Collection[str] = ()
    other_names: Mapping[str, str] = field(default_factory=dict)
    least: float | None = None
    above: float | None = None
    most: float | None = None
    unit: str = ""
    must: str = ""
    parse: Callable[[Any], Any] | None = None
    written: str = ""
    repeated: bool = False
    path: str = ""
    only: str = ""
    heading: str = ""

    def parse_value(self, keyword: str, written: Any) -> Any:
        """Return the value of what a user wrote. Raises SettingsError."""
        if self.parse is None or written is None:
            return written
        if self.choices and isinstance(written, str) and written not in self.choices:
            raise self._none_of(keyword, written)
        try:
            return self.parse(written)
        except SettingsError:
            raise
        except ValueError as error:
            named: dict[str, Any] = {keyword: " ".join(written) if isinstance(written, tuple) else written}
            raise SettingsError(f"<{keyword}>: {error}", **named) from None

    def _none_of(self, keyword: str, value: Any) -> SettingsError:
        from difflib import get_close_matches

        name = self.other_names.get(str(value).lower(), str(value).lower())
        near = [name] if name in self.choices else get_close_matches(name, self.choices, 1)
        named: dict[str, Any] = {keyword: value}
        meant = f"; did you mean {near[0]}?" if near else ""
        return SettingsError(f"<{keyword}>: not one of {', '.join(self.choices)}{meant}", **named)

    def check(self, keyword: str, value: object) -> None:
        """Raise SettingsError for an invalid value."""
        if value is None:
            return
        for each in value if isinstance(value, list | tuple) else (value,):
            named: dict[str, Any] = {keyword: each}
            if self.choices and not isinstance(each, bool) and each not in self.choices:
                raise self._none_of(keyword, each)
            if isinstance(each, int | float) and not isinstance(each, bool) and not self._is_within(each):
                raise SettingsError(f"<{keyword}>: {self.must or self._bounds}", **named)

    def _is_within(self, value: float) -> bool:
        return (
            (isinstance(value, int) or math.isfinite(value))
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    @property
    def _bounds(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.above is not None:
            return f"give a number above {self.above:g}{f', at most {self.most:.10g}' if self.most is not None else ''}{unit}"
        if self.least is None:
            return "give a finite number"
        return (
            f"give {self.least:.10g} to {self.most:.10g}{unit}"
            if self.most is not None
            else f"give {self.least:g}{unit} or more"
        )


class Declared(NamedTuple):
    """An option as its owner declares it.

    Attributes:
        name: Name of the field or argument
        default: Its default; MISSING for an argument that has none
        option: What `Annotated` says about it
        heading: Heading of its group in `--help`
    """

    name: str
    hint: Any
    default: Any
    option: Option
    heading: str

    @property
    def keyword(self) -> str:
        return self.option.keyword or self.name

    @property
    def flag(self) -> str:
        return f"--{self.keyword.replace('_', '-')}"

    def check(self, value: object) -> None:
        """Raise SettingsError for a value of another type, or an invalid one."""
        if type(value) is int and {int, float} & {
            *_members(self.hint)
        }:  # bounds say more than a type of a number that is too long
            self.option.check(self.keyword, value)
        if not fits(value, self.hint):
            raise self.wrong_type(value)
        self.option.check(self.keyword, value)

    def wrong_type(self, value: object) -> SettingsError:
        """Return the error for a value of another type."""
        choices = f", one of {', '.join(self.option.choices)}" if self.option.choices else ""
        named: dict[str, Any] = {self.keyword: CodeText(repr(value))}
        return SettingsError(f"<{self.keyword}>: give {words_for(self.taken)}{choices}", **named)

    @property
    def taken(self) -> Any:
        """Type of the keyword."""
        kind = self.hint
        if self.option.parse is not None:
            written = next(hint for name, hint in hints_of(self.option.parse).items() if name != "return")
            is_mapping = any(get_origin(each) is Mapping for each in _members(kind))
            if not is_mapping or any(get_origin(each) is Mapping for each in _members(written)):
                kind = written
        is_open = self.default is None or type(None) in get_args(self.hint)
        if get_origin(kind) is tuple and Ellipsis in get_args(kind):
            kind = GenericAlias(Sequence, get_args(kind)[:1])
        return kind | None if is_open and type(None) not in get_args(kind) else kind


# Per type: a check, and its name in messages. bool is not a number, and no file name contains NUL.
TAKEN: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "True or False"),
    int: (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63,
        "a whole number",
    ),
    float: (lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"),
    Fraction: (lambda value: isinstance(value, Fraction), "a Fraction"),
    str: (lambda value: isinstance(value, str) and "\0" not in value, "text"),
    Path: (lambda value: isinstance(value, os.PathLike) and "\0" not in os.fsdecode(value), "a path"),
    type(None): (lambda value: value is None, "None"),
}


class CodeText(str):
    """Text without quotation marks in its repr: a value or an annotation as Python code."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def code_of(hint: Any) -> CodeText:
    """Return a type as Python code."""
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return CodeText(re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text))


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)


def fits(value: object, hint: Any) -> bool:
    return any(_fits_one(value, member) for member in _members(hint))


def _fits_one(value: object, hint: Any) -> bool:
    if hint in TAKEN:
        return TAKEN[hint][0](value)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple and Ellipsis not in inner:
        return isinstance(value, tuple | list) and len(value) == len(inner) and all(map(fits, value, inner))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if origin in (Sequence, list, tuple):
        return (
            isinstance(value, Sequence) and not isinstance(value, bytes) and all(fits(each, inner[0]) for each in value)
        )
    return not isinstance(hint, type) or isinstance(value, hint)


def words_for(hint: Any) -> str:
    words = [TAKEN[member][1] if member in TAKEN else _words_of_many(member) for member in _members(hint)]
    return " or ".join(words)


def _words_of_many(hint: Any) -> str:
    inner = [each for each in get_args(hint) if each is not Ellipsis]
    if get_origin(hint) is Mapping:
        return f"a mapping from {words_for(inner[0])} to {words_for(inner[1])}"
    if get_origin(hint) is tuple and len(inner) > 1:
        return f"({', '.join(map(words_for, inner))})"
    return f"a list of {words_for(inner[0])}" if inner else getattr(hint, "__name__", str(hint))


# Names of arguments in `--help`, and in Python.
ARGUMENTS = {"SRC": "source", "DST": "destination", "OUT": "out", "STORE": "store", "TABLE": "table"}


def document_options(doc: str, options: Iterable[Declared]) -> str:
    """Return a docstring whose section `Args:` describes the options too, with the texts of `--help`."""
    rows = []
    for each in options:
        words = each.option.help.replace("; may be repeated", "")
        words = re.sub(r"--([a-z][a-z-]*)", lambda flag: f"`{flag[1].replace('-', '_')}`", words)
        words = re.sub(r"\b(SRC|DST|OUT|STORE|TABLE)\b", lambda name: f"`{ARGUMENTS[name[1]]}`", words)
        if each.option.choices:
            words += f" One of {', '.join(each.option.choices)}."
        rows.append(textwrap.fill(f"{each.keyword}: {words}", 100, initial_indent=" " * 4, subsequent_indent=" " * 8))
    if not rows:
        return doc
    head, args, tail = doc.partition("\nArgs:\n")
    listed, gap, rest = tail.partition("\n\n")
    return "".join((head, args or "\n\nArgs:\n", listed.rstrip(), "\n" if listed else "", "\n".join(rows), gap, rest))


def unknown_keyword(function: str, keyword: str, known: Collection[str]) -> TypeError:
    """Return the error for a keyword that a function does not have, with the one that may be meant."""
    from difflib import get_close_matches

    near = [RENAMED[keyword]] if RENAMED.get(keyword) in known else get_close_matches(keyword, known, 1)
    return TypeError(f"{function}() has no keyword {keyword!r}{f'; did you mean {near[0]!r}?' if near else ''}")


def suggesting(**instead: str) -> Callable[[type[Kind]], type[Kind]]:
    """Return a decorator for a class that is called with keywords: for one that it does not have, the error names the nearest.

    Args:
        instead: Keywords of other libraries, and what takes their place here.
    """

    def decorate(kind: type[Kind]) -> type[Kind]:
        owner: Any = kind
        init, known = owner.__init__, [*inspect.signature(kind).parameters]

        @functools.wraps(init)
        def checked(self: Kind, *args: Any, **keywords: Any) -> None:
            for keyword in keywords:
                if keyword in instead:
                    raise TypeError(f"{kind.__name__}() has no keyword {keyword!r}: {instead[keyword]}")
                if keyword not in known:
                    raise unknown_keyword(kind.__name__, keyword, known)
            init(self, *args, **keywords)

        owner.__init__ = checked
        return kind

    return decorate


def document(kind: type[Kind]) -> type[Kind]:
    """Decorate a dataclass of options so that `help` shows plain types and describes each field."""
    owner: Any = kind
    options = {each.name: each for each in options_of(owner)}
    bare = inspect.signature(kind)
    shown = [
        each.replace(annotation=code_of(options[name].hint) if name in options else CodeText(each.annotation))
        for name, each in bare.parameters.items()
    ]
    signature = bare.replace(parameters=shown, return_annotation=inspect.Signature.empty)
    owner.__signature__ = owner.__init__.__signature__ = signature
    by_field = [each._replace(option=replace(each.option, keyword=each.name)) for each in options.values()]
    owner.__doc__ = document_options(inspect.cleandoc(kind.__doc__ or ""), by_field)
    return kind


@functools.cache
def options_of(owner: Any) -> tuple[Declared, ...]:
    """Return the options that the fields of a dataclass, or the arguments of a function, declare, in order."""
    hints = hints_of(owner)
    if is_dataclass(owner):
        defaults = {each.name: None if each.default is MISSING else each.default for each in fields(owner)}
    else:
        given = inspect.signature(owner).parameters.values()
        defaults = {each.name: MISSING if each.default is each.empty else each.default for each in given}
    declared = []
    for name, default in defaults.items():
        hint = hints.get(name)
        if get_origin(hint) is Annotated:
            plain, *more = get_args(hint)
            heading = getattr(owner, "HEADING", "")
            declared += [
                Declared(name, plain, default, each, each.heading or heading)
                for each in more
                if isinstance(each, Option)
            ]
    return tuple(declared)


def check_options(values: object) -> None:
    """Raise SettingsError if a field of a dataclass has an invalid value. Called when it is built."""
    kind: Any = type(values)
    for each in options_of(kind):
        each.check(getattr(values, each.name))


def whole(name: str, value: object, least: int) -> int:
    """Return an argument as an int. Raises SettingsError if it is not a whole number, or below `least`."""
    try:
        number = operator.index(cast(SupportsIndex, value))
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r}; give a whole number, {least} or more")
    return number


def hints_of(owner: Any) -> dict[str, Any]:
    """Return the evaluated annotations, without those whose names are imported for the type checker only."""
    names = vars(sys.modules[owner.__module__])
    hints: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(owner).items():
        try:
            # Compiled first: a KeyboardInterrupt while `eval` compiles text makes Python exit by SIGINT even if it is caught.
            hints[name] = (
                eval(compile(annotation, name, "eval"), dict(names)) if isinstance(annotation, str) else annotation
            )
        except NameError:
            continue
    return hints
