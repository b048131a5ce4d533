"""What people may set: its type, its default, what it means and what it takes, said once, where its value is kept."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, is_dataclass
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from vidprep.formats.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Option:
    """Stands in the annotation of a field or argument: `gop: Annotated[int, Option("A keyframe every N frames.", "N", least=1)] = 16`.

    help: as `--help` shows it. metavar: what stands for the value there. keyword: its name for people, where that is another than the
    field's. choices, or least and most (both taken) or above (not taken): what is allowed. other_names: what
    choices are called elsewhere. unit: of the bounds, for the message; must: the message where that made of the bounds would not be
    clear. parse: makes the value of what people write, or raises SettingsError or ValueError; its argument's type is then the keyword's.
    written: the default as people write it. repeated: the flag may be. path: the value is one, of a "file", a "folder" or "any".
    only: the one command that has it. heading: of its group in `--help`; else that is `HEADING` of the dataclass.
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

    def parsed(self, keyword: str, written: Any) -> Any:
        """The value of what people wrote. Raises SettingsError."""
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
        """Raises SettingsError for a value that it does not take."""
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
    """name: of the field or argument. hint: its type. default: MISSING for an argument that has none."""

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

    @property
    def taken(self) -> Any:
        """The type of the keyword."""
        kind = self.hint
        if self.option.parse is not None:
            kind = next(hint for name, hint in hints_of(self.option.parse).items() if name != "return")
        is_open = self.default is None or type(None) in get_args(self.hint)
        if get_origin(kind) is tuple and Ellipsis in get_args(kind):
            kind = GenericAlias(Sequence, get_args(kind)[:1])
        return kind | None if is_open and type(None) not in get_args(kind) else kind


@functools.cache
def options_of(owner: Any) -> tuple[Declared, ...]:
    """Those of the fields of a dataclass, or of the arguments of a function, in order."""
    hints = hints_of(owner)
    if is_dataclass(owner):
        defaults = {each.name: None if each.default is MISSING else each.default for each in fields(owner)}
    else:
        given = inspect.signature(owner).parameters.values()
        defaults = {each.name: MISSING if each.default is each.empty else each.default for each in given}
    found = []
    for name, default in defaults.items():
        hint = hints.get(name)
        if get_origin(hint) is Annotated:
            plain, *more = get_args(hint)
            heading = getattr(owner, "HEADING", "")
            found += [
                Declared(name, plain, default, each, each.heading or heading)
                for each in more
                if isinstance(each, Option)
            ]
    return tuple(found)


def check_options(values: object) -> None:
    """Of a dataclass, when it is built. Raises SettingsError."""
    kind: Any = type(values)
    for each in options_of(kind):
        each.option.check(each.keyword, getattr(values, each.name))


def hints_of(owner: Any) -> dict[str, Any]:
    """Annotations, evaluated. One that names what is imported for the type checker alone is left out."""
    names = vars(sys.modules[owner.__module__])
    found: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(owner).items():
        try:
            # Compiled first: a KeyboardInterrupt in the eval of a text makes Python end by SIGINT, whoever catches it.
            found[name] = (
                eval(compile(annotation, name, "eval"), dict(names)) if isinstance(annotation, str) else annotation
            )
        except NameError:
            continue
    return found
