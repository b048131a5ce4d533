"""`vidprep doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidprep.formats.option import options_of
from vidprep.transcode.check.api import doctor as examine
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import FolderOrUrl, options

if TYPE_CHECKING:
    from vidprep.transcode.check.finding import Finding


@click.command(cls=Command)
@click.argument("destination", metavar="[DST]", type=FolderOrUrl(), required=False)
@options(options_of(examine))
def doctor(destination: Path | str | None = None, **given: Any) -> None:
    """Try out what a run needs on this machine, and say what to do about what does not work.

    With DST, also what its file system or store can do: whether one run keeps another out.

    A rotated clip with audio is made in every codec, by both engines and as burst, validated, and read back.
    Exit 1 when a default is broken.
    """
    findings = examine(destination, on_finding=_print, **given)
    sys.exit(0 if all(finding.ok or not finding.needed for finding in findings) else 1)


def _print(finding: Finding) -> None:
    click.echo(f"{'ok  ' if finding.ok else 'no  ' if finding.needed else '-   '} {finding.what}: {finding.detail}")
    if not finding.ok:
        click.echo(f"     {finding.advice}")
