"""Base of all commands: flags from declared options, errors as one line on stderr, exit codes, lines on stdout for
machines.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import click
from click.core import ParameterSource

from vidprep.formats.errors import STOPPED_CODE, SettingsError, VidprepError, printable
from vidprep.formats.option import Declared
from vidprep.formats.storage.base import hide_password, is_url
from vidprep.formats.storage.local import is_disk_full
from vidprep.transcode.settings.parse import check_path, parse_place

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class Flag(click.Option):
    """A click option with the heading of its group in `--help`."""

    def __init__(self, *args: Any, heading: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self.heading = heading


_RARELY_NEEDED = {
    "cut_origin",
    "max_area",
    "min_area",
    "scaler",
    "encoder_threads",
    "verify_every",
    "max_pixels",
    "max_frames",
    "target_mode",
    "vmaf_model",
}
MOST_USED, RARELY_NEEDED, BRIEF_WIDTH, FLAG_WIDTH = "Most used", "Rarely needed", 80, 28
QUIET = click.option("--quiet", is_flag=True, help="No progress bar.")


def options(declared: Iterable[Declared]) -> Decorator:
    """Return a decorator that adds a flag for each option. Choices and bounds are checked by the called function, so that
    Python calls are checked too.
    """

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
        how["type"] = _path_type(option.path)
    elif not option.parse and kinds & {int, float}:
        how["type"] = Number(float if float in kinds else int)
    is_list = any(get_origin(kind) in (tuple, Sequence, Mapping) for kind in kinds)
    how["multiple"] = option.repeated or is_list
    default = option.written or each.default
    if is_list and option.parse and not option.repeated:  # a list in one text; several add up
        how["callback"] = lambda _context, _flag, texts: ",".join(texts)
        default = (",".join(map(str, default)),) if isinstance(default, tuple) and default else default
        default = (default,) if isinstance(default, str) else default
    if default is not MISSING and default not in (None, (), ""):
        how |= {"default": default, "show_default": True}
    return how | {"required": default is MISSING}


def _path_type(kind: str) -> click.Path:
    return FolderOrUrl() if kind == "place" else LocalPath(str, file_okay=kind != "folder")


class Word(click.Choice):  # type: ignore[type-arg]  # before click 8.2 it had no parameter
    """One of several words, shown and completed as such; checked by the called function."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002 (click's)
        return value


class Number(click.ParamType):  # type: ignore[type-arg]  # before click 8.3 it had no parameter
    """A number. Lists are rejected with the name of a command that accepts several."""

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
    """A local path. URLs are rejected, because they would become folders of that name."""

    def __init__(self, path_type: type[str] | type[Path] = Path, **more: Any) -> None:
        super().__init__(path_type=path_type, **more)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            path = check_path(str(value)).removeprefix("file://")
        except SettingsError as error:
            self.fail(f"{error}.", param, ctx)
        if is_url(path):
            self.fail(f"{hide_password(path)} is a URL; give a path on this machine.", param, ctx)
        return super().convert(path, param, ctx)


class FolderOrUrl(click.Path):
    """A local path, or a URL that fsspec knows, which stays text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        try:
            return parse_place(value)
        except SettingsError as error:
            self.fail(f"{error}.", param, ctx)


USAGE_ERROR = 2
INTERRUPTED = 130
BATCH_SIZE = 8  # frames of a sequence, or items of a batch, where reading is timed


def ignore(*_: object) -> None:
    """Accept any arguments and do nothing."""


def _print_error(error: Exception) -> None:
    """Print an error with control characters escaped."""
    text = error.on_command_line if isinstance(error, VidprepError) else str(error)
    click.echo("vidprep: " + "\n".join(map(printable, text.split("\n"))), err=True)


def refuse(error: click.UsageError, usage: str = "vidprep") -> NoReturn:
    """Print a click error on one line (click prints four), and exit.

    Args:
        error: The error.
        usage: Name of the command if the error does not contain it.
    """
    said = " ".join(error.format_message().split())
    usage = usage if error.ctx is None else error.ctx.command_path
    end = "" if said.endswith((".", "?")) else "."
    _print_error(Exception(f"{said[:1].lower()}{said[1:]}{end} See `{usage} --help`"))
    sys.exit(USAGE_ERROR)


# Flags of ffmpeg and of similar tools, and ours.
_OTHER_NAMES = {
    "-c": "--codec",
    "--vcodec": "--codec",
    "-g": "--gop",
    "--keyint": "--gop",
    "-r": "--fps",
    "--rate": "--fps",
    "--frame-rate": "--fps",
    "--framerate": "--fps",
    "-s": "--size",
    "--resolution": "--size",
    "--height": "--short-side",
    "-j": "--jobs",
    "--workers": "--jobs",
    "--num-workers": "--jobs",
    "--threads": "--jobs",
    "-y": "--overwrite",
    "--force": "--overwrite",
    "-q": "--quiet",
    "-c:v": "--codec",
    "-pix_fmt": "--pixel-format",
    "-preset": "--preset",
    "--width": "--size",
    "--resize": "--size",
    "--shard": "--partition",
    "--scheduler": "--cluster-address",
    "--address": "--cluster-address",
    "--split": "--segment",
    "--gop-size": "--gop",
    "--gpu": "--encoder",
    "--filter": "--include",
}
_PATHS = ("-i", "--input", "-o", "--output", "--src", "--dst")


def _no_such_option(error: click.NoSuchOption, args: Sequence[str]) -> str:
    """Return a message that names a similar option, or a command that has the option."""
    context, name = error.ctx, error.option_name
    assert context is not None
    own = [flag for each in context.command.params for flag in each.opts]
    # click reads -crf as -c -r -f.
    name = next((each for each in args if len(each) > 2 and each[1] != "-" and each.startswith(name)), name)
    said = f"No such option {name!r}"
    if name == "--split" and "--split-by" in own:
        return f"{said}. Did you mean '--split-by' (train, val), '--split-from-folder' or '--segment' (seconds)?"
    for meant in (_OTHER_NAMES.get(name), f"-{name}"):
        if meant in own:
            return f"{said}. Did you mean {meant!r}?"
    if name in ("--resume", "--continue"):
        return f"{said}. To go on, run the same command again"
    if name in _PATHS:
        places = [str(each.metavar) for each in context.command.params if isinstance(each, click.Argument)]
        return f"{said}. Paths are given without a flag: {context.command_path} {' '.join(places)}"
    if (other := _command_with(name, context.parent)) is not None:
        return f"{said}: it is an option of `vidprep {other}`"
    near = get_close_matches(name, own, 1, 0.7)
    return f"{said}. Did you mean {near[0]!r}?" if near else said


def _command_with(flag: str, parent: click.Context | None) -> str | None:
    """Return the first command that has an option; None if none has."""
    if parent is None or not isinstance(group := parent.command, click.Group):
        return None
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is not None and any(flag in each.opts for each in command.params):
            return name
    return None


def missing_for_pages() -> str | None:
    """Return the name of a missing package that pages need; None if all are installed."""
    try:
        import itables  # noqa: F401
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        return str(error.name)
    return None


class LinePrinter:
    """Prints lines for machines. If stdout fails the run goes on.

    Attributes:
        fault: The error of stdout, or None
    """

    def __init__(self) -> None:
        self.fault: OSError | None = None

    def print(self, line: str) -> None:
        if self.fault is not None:
            return
        try:
            click.echo(line)
        except OSError as error:
            self.fault = error
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 (what is left in its buffer goes there when Python ends)
                os.dup2(nowhere.fileno(), sys.stdout.fileno())


class Command(click.Command):
    """Prints vidprep's and the file system's errors as one line on stderr, and exits with 2 if a run did not start.

    Args:
        first: Keywords of the options that are needed on the first day: -h shows these alone. Without any it is --help.
    """

    interrupted = "interrupted; run the same command again to go on"

    def __init__(self, *args: Any, first: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self._first = first
        if first:
            brief = click.Option(["-h"], is_flag=True, is_eager=True, expose_value=False, callback=_print_brief)
            brief.help = "Show what is needed on the first day, and exit."
            self.params.append(brief)

    def get_help_option_names(self, _ctx: click.Context) -> list[str]:
        return ["--help"] if self._first else ["-h", "--help"]

    def brief_help(self, ctx: click.Context) -> str:
        """Return the help on one screen: examples, and the first sentence of the options that are needed on the first day."""
        lines, path = inspect.cleandoc(self.help or "").splitlines(), ctx.command_path
        records = [record for each in self.groups(ctx)[MOST_USED] if (record := each.get_help_record(ctx)) is not None]
        records = [_move_choices(flag, re.split(r"[.;]\s|\.$|\s+\[default", text)[0]) for flag, text in records]
        room = BRIEF_WIDTH - 4 - max(len(flag) for flag, _ in records)
        shown = click.HelpFormatter(width=BRIEF_WIDTH)
        shown.write_usage(path, " ".join(self.collect_usage_pieces(ctx)))
        with shown.indentation():
            shown.write_paragraph()
            shown.write_text(" ".join(lines[: lines.index("")]))
            shown.write_paragraph()
            for line in (each for each in lines if each.startswith(f"{path} ")):
                shown.write(f"  {line if len(line) < BRIEF_WIDTH - 2 else line.partition('  ')[0]}\n")
            shown.write_paragraph()
            shown.write_dl([(flag, _cut(text, room)) for flag, text in records], FLAG_WIDTH)
        shown.write(f"All {sum(map(len, self.groups(ctx).values()))} options: {path} --help")
        return shown.getvalue()

    def groups(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        """Return the options by heading, in the order of `--help`: first what is needed on the first day, last what rarely is."""
        groups: dict[str, list[click.Option]] = {MOST_USED: []} if self._first else {}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option):
                heading = RARELY_NEEDED if each.name in _RARELY_NEEDED else getattr(each, "heading", "") or "Options"
                heading = MOST_USED if each.name in self._first else heading
                groups.setdefault(heading, []).append(each)
        order = {name: place for place, name in enumerate(self._first)}
        groups.get(MOST_USED, []).sort(key=lambda each: order[str(each.name)])
        last = ("Options", RARELY_NEEDED)
        return dict(sorted(groups.items(), key=lambda group: last.index(group[0]) + 1 if group[0] in last else 0))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        given = list(args)  # click empties the list
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.NoSuchOption as error:
            refuse(click.UsageError(_no_such_option(error, given), error.ctx))
        except click.UsageError as error:
            refuse(error, f"vidprep {info_name}")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print options under their headings."""
        for heading, flags in self.groups(ctx).items():
            with formatter.section(heading):
                formatter.write_dl([record for each in flags if (record := each.get_help_record(ctx)) is not None])

    def invoke(self, ctx: click.Context) -> Any:
        # Flags that were not given are omitted: the function has the defaults.
        ctx.params = {
            name: value
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
        }
        try:
            return super().invoke(ctx)
        except VidprepError as error:
            _print_error(error)
            ctx.exit(STOPPED_CODE if is_disk_full(error) else error.exit_code)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            _print_error(OSError(_describe_os_error(error)))
            ctx.exit(STOPPED_CODE if is_disk_full(error) else USAGE_ERROR)
        except MemoryError:
            click.echo("vidprep: ran out of memory; use fewer --jobs, or check the input", err=True)
            ctx.exit(USAGE_ERROR)
        except KeyboardInterrupt:
            click.echo(f"vidprep: {self.interrupted}", err=True)
            ctx.exit(INTERRUPTED)


def _print_brief(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.command, Command):
        click.echo(ctx.command.brief_help(ctx))
        ctx.exit()


def _cut(text: str, room: int) -> str:
    """Return a text, or its first clause, or as many of its words as there is room for."""
    clause = re.match(rf".{{8,{room - 1}}}(?=[,:] )", text)
    return text if len(text) <= room else clause[0] if clause else f"{text[: room - 1].rpartition(' ')[0]}…"


def _move_choices(flag: str, text: str) -> tuple[str, str]:
    """Return an option and its text, with choices that take much room behind the text."""
    name, _, choices = flag.partition(" [")
    return (f"{name} KIND", f"{text}: {choices[:-1]}") if choices and len(flag) > FLAG_WIDTH else (flag, text)


def _describe_os_error(error: OSError) -> str:
    what = str(error) if error.filename is None else f"{os.fsdecode(error.filename)}: {error.strerror}"
    return f"{what}; make room and run the same command again" if is_disk_full(error) else what


class Viewer(Command):
    """Shows something until it is interrupted."""

    interrupted = "no longer shown"


class BriefCommand(Command):
    """Writes its output at its end, all or nothing."""

    interrupted = "interrupted; nothing was written"


def command_of(
    function: Callable[..., Any],
    *arguments: Decorator,
    flags: Sequence[Decorator] = (),
    first: Sequence[str] = (),
    cls: type[Command] = Command,
) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command from a public function and the function that runs it on the command line.

    The command has the name of the public function, a flag for each of its options, and --quiet if it has a progress
    bar. Its help is the docstring of the decorated function, which receives the values that were given as keywords.

    Args:
        function: The public function, decorated by `check_types`.
        arguments: click's decorators for the arguments.
        flags: click's decorators for flags that the public function lacks.
        first: Keywords of the options that -h shows; none: all.
        cls: Class of the command.
    """

    def decorate(run: Callable[..., None]) -> click.Command:
        own = options(function.__options__)  # type: ignore[attr-defined]
        quiet: list[Decorator] = [QUIET] if "progress" in inspect.signature(function).parameters else []
        for each in reversed([*arguments, own, *flags, *quiet]):
            run = each(run)
        return click.command(function.__name__, cls=cls, first=first)(run)

    return decorate
