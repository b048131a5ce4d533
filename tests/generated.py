"""What is written from options and columns where they stand: types of keywords for editors and type checkers, and tables for people.

`make generated` writes them; a test holds that they are up to date.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from tests.bench import history
from vidprep.formats.manifest.remarks import codes_described
from vidprep.formats.manifest.row import ManifestRow, columns_table
from vidprep.formats.option import Declared, options_of
from vidprep.transcode.cli._command import Command
from vidprep.transcode.cli.main import main
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.run import SAMPLE, SCORING, SOURCES, options_of_command

ROOT = Path(__file__).parents[1]
TYPES = ROOT / "transcode" / "settings" / "keyword_types.py"
TABLE = ROOT / "docs" / "options.md"
COLUMNS = ROOT / "docs" / "formats.md"
FIGURES = ROOT / "tests" / "bench" / "README.md"
HEAD = '''"""Types of the keywords of the Python functions. Written by `make generated` from the options of the dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, TypedDict
'''


def _type(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def _keyword(each: Declared) -> str:
    """The line of a keyword; one whose values are named takes these alone."""
    name = _type(each.taken)
    if each.option.choices and each.option.parse is None and "Sequence" not in name and "tuple" not in name:
        values = ", ".join(f'"{choice}"' for choice in each.option.choices)
        name = re.sub(r"\bstr\b", f"Literal[{values}]", name)
    return f"    {each.keyword}: {name}"


def _class(name: str, base: str, options: list[Declared]) -> str:
    head = f"class {name}({base or 'TypedDict'}, total=False):"
    return "\n".join([head, *map(_keyword, options)])


def keyword_types() -> str:
    of = {name: options_of_command(name) for name in ("transcode", "burst")}
    sources = [each for kind in SOURCES for each in options_of(kind)]
    sample = [each for kind in SAMPLE for each in options_of(kind)]
    both = [each for each in of["transcode"] if each in of["burst"]]
    classes = [
        _class("SourceKeywords", "", sources),
        _class("ValidateKeywords", "SourceKeywords", list(SCORING)),
        _class("ScanKeywords", "SourceKeywords", list(options_of(Retime))),
        _class("SampleKeywords", "SourceKeywords", sample[len(sources) :]),
        _class("TrialKeywords", "SampleKeywords", list(SCORING)),
        _class("RunKeywords", "SampleKeywords", both[len(sample) :]),
        *(
            _class(f"{name.capitalize()}Keywords", "RunKeywords", [each for each in of[name] if each not in both])
            for name in of
        ),
    ]
    return "\n\n\n".join([HEAD.rstrip(), *classes]) + "\n"


def every_command() -> dict[str, click.Command]:
    """By name."""
    with click.Context(main) as context:
        found = {name: main.get_command(context, name) for name in main.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def flags(command: click.Command) -> str:
    """A table for the options of each heading, in the order of `--help`."""
    parts = []
    with click.Context(command) as context:
        assert isinstance(command, Command)
        for heading, found in command.groups(context).items():
            rows = []
            for each in found:
                if each in command.params and each.name != "h" and each.help:
                    flag, text = each.get_help_record(context) or ("", "")
                    rows.append(f"| `{flag.replace('|', chr(92) + '|')}` | {text.replace('  [', ' [')} |")
            parts += ["\n".join([f"| {heading.lower()} | |", "| --- | --- |", *rows])] if rows else []
    return "\n\n".join(parts)


def table() -> str:
    parts = [
        "# Options",
        "The options of every command, as in `vidprep COMMAND --help`. This page is written by `make generated`.",
    ]
    for name, command in every_command().items():
        parts += [f"## vidprep {name}", flags(command)] if len(command.params) > 1 else []
    return "\n\n".join(parts) + "\n"


def columns() -> str:
    """Return docs/formats.md with the current tables of columns and codes."""
    return _with_tables(COLUMNS, columns_table(ManifestRow), codes_described())


def figures() -> str:
    """tests/bench/README.md with the newest figures that were kept."""
    return _with_tables(FIGURES, history.table())


def _with_tables(file: Path, *tables: str) -> str:
    text = file.read_text()
    for made in tables:
        old = text[text.index(made.partition("\n")[0]) :].partition("\n\n")[0]
        text = text.replace(old, made)
    return text


if __name__ == "__main__":
    COLUMNS.write_text(columns())
    FIGURES.write_text(figures())
    TYPES.write_text(keyword_types())
    TABLE.write_text(table())
