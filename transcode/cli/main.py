"""The command line. Each command is a file of its own: parse, call, print, exit code. What it does not need is not imported."""

from __future__ import annotations

import sys
from importlib import import_module

import click

if sys.platform == "win32":
    sys.exit("vidprep runs on Linux and macOS; on Windows run it in WSL")

COMMANDS = {
    "transcode": "make", "burst": "make", "sweep": "sweep", "tune": "tune", "bench": "bench", "validate": "validate", "report": "report",
    "monitor": "monitor", "merge": "merge", "compact": "compact", "label": "label", "pack": "pack", "doctor": "doctor",
}  # fmt: skip


class Commands(click.Group):
    """Those of `COMMANDS`, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"vidprep.transcode.cli.{COMMANDS[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="vidprep", prog_name="vidprep")
def main() -> None:
    """Build a verified, training-ready video dataset in one pass.

    \b
    vidprep transcode raw/ ready/ --fps 15 --short-side 240 --gop 16
    vidprep transcode clips.csv ready/ --codec av1 --size 224x224 --fit crop
    vidprep doctor
    """
