"""Flags of commands, made of the options of dataclasses and functions; and what paths they take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_args, get_origin

import click

from vidprep.formats.errors import SettingsError
from vidprep.formats.option import Declared
from vidprep.formats.storage.base import is_url, without_password
from vidprep.transcode.settings.parse import as_place, given

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class Flag(click.Option):
    """heading: of the group that it stands in, in `--help`."""

    def __init__(self, *args: Any, heading: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self.heading = heading


QUIET = click.option("--quiet", is_flag=True, help="No progress bar.")


def options(declared: Iterable[Declared]) -> Decorator:
    """A flag for each. Choices and bounds are checked where the values go, so that Python hears of them too."""

    def apply(function: Callable[..., None]) -> Callable[..., None]:
        for each in reversed(list(declared)):
            names = each.flag, each.keyword
            function = click.option(*names, cls=Flag, heading=each.heading, **_how(each))(function)
        return function

    return apply


def _how(each: Declared) -> dict[str, Any]:
    option, kinds = each.option, {each.hint, *get_args(each.hint)}
    how: dict[str, Any] = {"help": option.help, "metavar": option.metavar or None}
    if kinds == {bool} and not option.parse:
        return how | {"is_flag": True}
    if option.choices:
        how["type"] = Word(tuple(option.choices))
    elif option.path:
        how["type"] = LocalPath(str, file_okay=option.path != "folder")
    elif not option.parse and kinds & {int, float}:
        how["type"] = Number(float if float in kinds else int)
    default = option.written or each.default
    if option.parse and isinstance(default, tuple):
        default = ",".join(map(str, default))
    how["multiple"] = option.repeated or (not option.parse and get_origin(each.hint) in (tuple, Sequence))
    if default is not MISSING and default not in (None, (), ""):
        how |= {"default": default, "show_default": True}
    return how | {"required": default is MISSING}


class Word(click.Choice):  # type: ignore[type-arg]  # before click 8.2 it had no parameter
    """One of several, shown and completed as such; checked where the value goes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002 (click's)
        return value


class Number(click.ParamType):  # type: ignore[type-arg]  # before click 8.3 it had no parameter
    """One number. Whoever gives several gets to know which command takes them."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind, self.name = kind, kind.__name__

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        try:
            return self.kind(value)
        except ValueError:
            what = "a whole number" if self.kind is int else "a number"
            is_swept = param is not None and param.name in ("crf", "quality", "gop") and re.search(r"\d[,:;-]\d", value)
            more = "; `vidprep sweep` compares several" if is_swept else ""
            if param is not None and param.multiple and "," in value:
                more = "; repeat the option for several"
            self.fail(f"give {what}{more}; this is {value!r}.", param, ctx)


class LocalPath(click.Path):
    """A path on this machine, where a URL would become a folder of that name; it is refused before anything is done."""

    def __init__(self, path_type: type[str] | type[Path] = Path, **more: Any) -> None:
        super().__init__(path_type=path_type, **more)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            path = given(str(value)).removeprefix("file://")
        except SettingsError as error:
            self.fail(f"{error}.", param, ctx)
        if is_url(path):
            self.fail(f"{without_password(path)} is a URL; give a path on this machine.", param, ctx)
        return super().convert(path, param, ctx)


class FolderOrUrl(click.Path):
    """A path here, or a URL that fsspec knows, which stays text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        try:
            return as_place(value)
        except SettingsError as error:
            self.fail(f"{error}.", param, ctx)
