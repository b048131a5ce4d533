"""The command that times loaders: parse, call, print, exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidprep.formats.errors import DestinationError, MissingError
from vidprep.formats.files.local import check_writable
from vidprep.transcode.choose.bench.patterns import PATTERNS
from vidprep.transcode.cli.options import BriefCommand, Finite, LocalPath
from vidprep.transcode.run.text import megabytes, printable

if TYPE_CHECKING:
    from vidprep.transcode.choose.bench.bench import Wanted
    from vidprep.transcode.choose.bench.places import Place

COUNT = click.IntRange(min=1)
HEADER = (
    f"{'store':34} {'loader':15}{'access':17}{'cache':6}{'workers':>7}{'frames/s':>10}{'ms':>9}{'p25–p75':>18}{'CPU s/1000':>12}"
    f"{'memory':>10}{'× raw':>7}"
)


@click.command(cls=BriefCommand)
@click.argument("stores", metavar="STORE…", type=LocalPath(), nargs=-1, required=True)
@click.option("--loader", "loaders", multiple=True, metavar="NAME", help="Only these. Default: all that are installed.")
@click.option(
    "--pattern", "patterns", type=click.Choice(PATTERNS), multiple=True, default=("consecutive", "single"),
    show_default=True, help="How frames are asked for; may be repeated.",
)  # fmt: skip
@click.option("--frames", type=COUNT, default=8, show_default=True, metavar="N", help="Of a sequence.")
@click.option(
    "--stride", type=COUNT, default=4, show_default=True, metavar="N", help="From one to the next of strided."
)
@click.option(
    "--workers",
    type=COUNT,
    multiple=True,
    default=(1,),
    show_default=True,
    metavar="N",
    help="Processes; may be repeated.",
)
@click.option(
    "--cache", type=click.Choice(("warm", "cold", "both")), default="warm", show_default=True, help="The page cache."
)
@click.option("--seconds", type=Finite(min=0.01), default=2.0, show_default=True, help="Of each cell, at least.")
@click.option("--sample", type=COUNT, default=16, show_default=True, metavar="N", help="So many of the videos.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sample and of what is asked for.")
@click.option("--step-ms", type=Finite(min=0), metavar="MS", help="Simulate training with a step of this time.")
@click.option("--batch-size", type=COUNT, default=8, show_default=True, metavar="N", help="Of the simulated training.")
@click.option("--advise", is_flag=True, help="Search for the number of workers and the batch size.")
@click.option(
    "--out",
    type=LocalPath(file_okay=False),
    metavar="FOLDER",
    help="bench.html, .md, .json, .parquet.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="JSON lines on stdout, `what` says of which kind: cell, training, advice."
)
def bench(stores: tuple[Path, ...], **given: Any) -> None:
    """Time every installed loader on every STORE, side by side; loaders whose pixels are wrong are named and not timed.

    STORE is what transcode, burst or pack made, a folder of raw videos, or a folder that has a folder of .jpg or .png pictures
    for each video. Videos that all stores have are read, by id. With a folder of raw videos among them, the table says how
    many times as fast the others are.

    \b
    Exit codes: 0 measured, 1 nothing could be timed on one of the stores, 2 wrong usage.
    \b
    vidprep bench raw/ ready/ frames/ --cache both --out bench/
    vidprep bench ready/ --workers 1 --workers 4 --step-ms 50 --advise
    """
    from datetime import datetime

    from tqdm import tqdm

    from vidprep.transcode.choose.bench.bench import Wanted, add_speed_ups, survey
    from vidprep.transcode.run.text import for_json

    caches = ("warm", "cold") if given["cache"] == "both" else (given["cache"],)
    kept = ("loaders", "patterns", "frames", "stride", "workers", "seconds", "sample", "seed")
    wanted = Wanted(caches=caches, **{name: given[name] for name in kept})
    out, as_json = given["out"], given["as_json"]
    if out is not None:
        _check_page(out)
    with tqdm(bar_format="{desc}", leave=False, disable=None, file=sys.stderr) as bar:

        def say(text: str) -> None:
            bar.set_description_str(printable(text))

        def write(text: str) -> None:
            """At once: a full disk is to stop the command, and not to be found when it has ended well."""
            bar.write(text, file=sys.stdout)
            sys.stdout.flush()

        say("opening")
        found = survey(stores, wanted)
        for note in found.notes:
            bar.write(f"vidprep: {printable(note)}", file=sys.stderr)
        told: dict[str, Any] = {
            "format": "vidprep bench 1", "created": f"{datetime.now():%Y-%m-%d %H:%M}", "machine": _machine(),
            "notes": list(found.notes), **{kind: [] for kind in LINES},
        }  # fmt: skip
        if not as_json:
            write(HEADER)
        for kind, row in _results(found.places, wanted, given, say):
            told[kind].append(row)
            add_speed_ups(told["cell"])
            line = json.dumps({"what": kind} | for_json(row), ensure_ascii=False) if as_json else LINES[kind](row)
            write(line)
    if out is not None:
        from vidprep.transcode.report.bench_section import write as write_page

        click.echo(write_page(told, out), err=as_json)
    timed = {row["store"] for row in told["cell"] if not row["refused"]}
    idle = [str(place.path) for place in found.places if str(place.path) not in timed]
    for path in idle:
        click.echo(f"vidprep: {printable(path)}: no loader could be timed", err=True)
    sys.exit(1 if idle else 0)


def _results(
    places: Sequence[Place], wanted: Wanted, given: dict[str, Any], say: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows as they are measured, each with its key in LINES."""
    from vidprep.transcode.choose.bench.bench import bench as measure

    for row in measure(places, wanted, say):
        yield "cell", row
    if given["step_ms"] is None and not given["advise"]:
        return
    from vidprep.transcode.choose.bench.train import advice, simulations

    if given["step_ms"] is not None:
        for row in simulations(places, wanted, given["step_ms"] / 1e3, given["batch_size"], say):
            yield "training", row
    if given["advise"]:
        for row in advice(places, wanted, say):
            yield "advice", row


def _check_page(out: Path) -> None:
    """Before anything is measured. Raises MissingError, DestinationError."""
    try:
        import itables  # noqa: F401
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise MissingError(f"--out writes a page, which needs {error.name}: pip install 'vidprep[report]'") from error
    check_writable(out, "give another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DestinationError(
            f"cannot be a folder for the page: {error.strerror}; give another --out", path=out
        ) from error


def _machine() -> str:
    import os
    import platform

    import av

    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, PyAV {av.__version__}"


def _cell_line(row: dict[str, Any]) -> str:
    """Of the table under HEADER."""
    begin = f"{_shown(row):34} {row['loader']:15}"
    if row["refused"]:
        return f"{begin}refused: {printable(row['refused'])}"
    spread = f"{row['ms_p25']:.2f}–{row['ms_p75']:.2f}"
    faster = f"{row['speed_up']:.1f}" if row["speed_up"] else ""
    return (
        f"{begin}{row['access']:16} {row['cache']:6}{row['workers']:7}{row['frames_per_second']:10,.0f}{row['ms_median']:9.2f}"
        f"{spread:>18}{row['cpu_seconds_per_1000_frames']:12.2f}{megabytes(row['peak_memory_bytes']):>10}{faster:>7}"
    )


def _shown(row: dict[str, Any]) -> str:
    from vidprep.transcode.report.bench_section import place_name

    return printable(place_name(row))


def _training_line(row: dict[str, Any]) -> str:
    begin = f"training: {_shown(row)}: {row['loader']}, {row['workers']} workers, batches of {row['batch_size']}: "
    if row["failed"]:
        return f"{begin}failed: {printable(row['failed'])}"
    return (
        f"{begin}{row['overhead_ms']:.1f} ms over a step of {row['step_ms']:g} ms, {row['of_synthetic']:.0%} of the synthetic "
        f"rate, {len(row['stragglers'])} of {row['batches']} batches late"
    )


def _advice_line(row: dict[str, Any]) -> str:
    if row["failed"]:
        return f"advice: {_shown(row)}: failed: {printable(row['failed'])}"
    best = row["advised"]
    return (
        f"advice: {_shown(row)}: {best['workers']} workers, batches of {best['batch_size']}: "
        f"{best['sequences_per_second']:.0f} sequences a second"
    )


LINES = {"cell": _cell_line, "training": _training_line, "advice": _advice_line}
