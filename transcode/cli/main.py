"""Entry point of the command line: a table of all commands. Only the module of the requested command is imported.

All commands except `show` and `monitor` are functions of `vidprep.transcode` too.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

COMMANDS = {
    "transcode": ("make", "Re-encode videos into a verified dataset."),
    "scan": ("scan", "Find the clips of long videos: shots, windows, facts, duplicates."),
    "burst": ("make", "Store frames as JPEGs in large shards."),
    "show": ("check", "Print outputs, warnings and failures."),
    "validate": ("check", "Check a finished dataset again, from its bytes."),
    "report": ("pages", "Make a page about one or more datasets."),
    "bench": ("bench", "Time loaders on datasets, side by side."),
    "sweep": ("choose", "Measure many settings on a sample of videos."),
    "tune": ("choose", "Recommend settings for how a network reads."),
    "label": ("manage", "Add, change and remove labels."),
    "select": ("select", "Take videos or frames of datasets, without encoding them again."),
    "pack": ("pack", "Convert a dataset for another tool."),
    "index": ("check", "Index every GOP, for reading without containers."),
    "merge": ("manage", "Join the partitions of an array run."),
    "compact": ("manage", "Free dead bytes in shards."),
    "monitor": ("pages", "Watch runs and loaders live."),
    "doctor": ("check", "Try what a run needs on this machine."),
}

_OTHER_NAMES = {
    "info": "show",
    "list": "show",
    "stats": "show",
    "convert": "pack",
    "encode": "transcode",
    "verify": "validate",
    "check": "validate",
}


if sys.platform == "win32":
    sys.exit("vidprep runs on Linux and macOS; on Windows run it in WSL")


class Commands(click.Group):
    """The commands in `COMMANDS`, each imported when it is requested."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.NoSuchOption as error:
            from vidprep.transcode.cli._command import refuse

            refuse(error)

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"vidprep.transcode.cli.{COMMANDS[cmd_name][0]}"), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; if it is unknown, suggest a similar name."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            from vidprep.transcode.cli._command import refuse

            near = [_OTHER_NAMES[args[0]]] if args[0] in _OTHER_NAMES else get_close_matches(args[0], COMMANDS, 1)
            meant = f". Did you mean {near[0]!r}?" if near else ""
            refuse(click.UsageError(f"No such command {args[0]!r}{meant}", ctx))
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="vidprep", prog_name="vidprep")
def main() -> None:
    """Build a verified, training-ready video dataset in one pass.

    \b
    vidprep transcode raw/ ready/ --fps 15 --short-side 240 --gop 16
    vidprep transcode clips.csv ready/ --codec av1 --size 224x224 --fit crop
    vidprep doctor
    """
