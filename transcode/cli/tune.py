"""`vidprep tune`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidprep.formats.option import options_of
from vidprep.formats.text import count_of, megabytes, printable
from vidprep.transcode.choose.api import tune as recommend
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import LocalPath, options
from vidprep.transcode.settings.keywords import SAMPLE

if TYPE_CHECKING:
    from vidprep.transcode.choose.tune import Tuned

CARRIED_OVER = [
    *(each for kind in SAMPLE for each in options_of(kind)),
    *(each for each in options_of(recommend) if each.name == "hdr"),
]


@click.command(cls=Command)
@click.argument("source", metavar="SRC", type=LocalPath())
@options(each for kind in SAMPLE for each in options_of(kind))
@options(options_of(recommend))
def tune(source: Path, **given: Any) -> None:
    """Measure a sample of SRC in several formats, and recommend one for how your network reads.

    Prints every choice that no other beats in both size and time, and the command that makes the recommended one, with the reason.

    \b
    vidprep tune raw/ --short-side 240 --sequence-length 8 --target-psnr 38
    vidprep tune raw/ --fps 15 --sequence-length 16 --stride 2 --storage 200 --loader torchcodec
    """
    tuned = recommend(source, on_message=lambda text: click.echo(f"vidprep: {text}", err=True), **given)
    _print_choices(tuned)
    best = tuned.best
    coded = ["burst"] if best.gop is None else ["transcode"]
    own = [] if best.gop is None else ["--codec", best.codec, "--gop", str(best.gop)]
    command = shlex.join(
        ["vidprep", *coded, str(source), "DST", *_again(given), *own, "--target-psnr", f"{tuned.target_psnr:g}"]
    )
    click.echo(f"\n{command}\nbecause: {tuned.reason}.")


def _again(given: dict[str, Any]) -> list[str]:
    """The options of sources and pictures that were given, as they were."""
    words = []
    for keyword in (each.keyword for each in CARRIED_OVER if each.keyword in given):
        flag, value = f"--{keyword.replace('_', '-')}", given[keyword]
        for each in value if isinstance(value, tuple) else (value,):
            words += [flag] if each is True else [flag, str(each)]
    return words


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"


def _print_choices(tuned: Tuned) -> None:
    """What no other beats, as a table on stdout."""
    click.echo(f"{'':16}{'CRF/q':>6}{'p1 dB':>8}{'bytes/frame':>13}{'all':>10}{'ms/sequence':>13}{'CPU time':>11}")
    for choice in tuned.pareto:
        name = choice.codec if choice.gop is None else f"{choice.codec} GOP {choice.gop}"
        row = f"{choice.value:6}{choice.psnr_y_p1_db:8.2f}{choice.bytes_per_frame:13,.0f}{megabytes(choice.total_bytes):>10}"
        click.echo(f"{name:16}{row}{choice.ms_per_sequence:13.2f}{_duration(choice.encode_hours * 3600):>11}")
    beaten = len(tuned.choices) - len(tuned.pareto)
    sampled = f"{tuned.sampled} of {count_of(tuned.num_videos, 'video')}"
    click.echo(f"Measured on {sampled}. Not shown: {count_of(beaten, 'choice')} that others beat in size and time.")
    click.echo("Times vary from run to run; --sample and --seconds measure more.")
    for text in tuned.left_out:
        click.echo(f"left out: {printable(text)}")
