"""`vidprep bench`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from vidprep.formats.errors import DestinationError, MissingError
from vidprep.formats.option import options_of
from vidprep.formats.storage.local import check_writable
from vidprep.formats.text import megabytes, printable
from vidprep.transcode.choose.api import bench as measure
from vidprep.transcode.cli.command import BriefCommand
from vidprep.transcode.cli.options import LocalPath, options
from vidprep.transcode.pages.api import missing_for_pages

# Title, width, and when the terminal is narrow which go first: the highest number.
COLUMNS = (
    ("store", 24, 0), ("loader", 13, 0), ("access", 15, 0), ("cache", 6, 1), ("workers", 8, 2), ("frames/s", 10, 0), ("ms", 9, 0),
    ("p25–p75", 15, 5), ("CPU s/1000", 12, 4), ("memory", 11, 3), ("× raw", 7, 0),
)  # fmt: skip
LEFT = ("store", "loader", "access", "cache")


def _columns() -> list[tuple[str, int]]:
    """Those that fit, with their widths."""
    room, shown = shutil.get_terminal_size((130, 24)).columns, list(COLUMNS)
    while sum(width for _, width, _ in shown) > room and any(order for *_, order in shown):
        shown.remove(max(shown, key=lambda column: column[2]))
    return [(title, width) for title, width, _ in shown]


def _in_columns(values: dict[str, str]) -> str:
    cells = []
    for title, width in _columns():
        text = values[title]
        if title in LEFT:
            half = (width - 2) // 2
            text = text if len(text) < width else f"{text[:half]}…{text[-half:]}"
        cells.append(f"{text:<{width}}" if title in LEFT else f" {text}".rjust(width))
    return "".join(cells).rstrip()


@click.command(cls=BriefCommand)
@click.argument("stores", metavar="STORE…", type=LocalPath(), nargs=-1, required=True)
@options(options_of(measure))
@click.option(
    "--out", type=LocalPath(file_okay=False), metavar="FOLDER", help="Write bench.html, .md, .json and .parquet here."
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON lines to stdout; `what` is cell, training or advice.")
def bench(stores: tuple[Path, ...], out: Path | None = None, as_json: bool = False, **given: Any) -> None:
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
    from tqdm import tqdm

    from vidprep.formats.text import for_json

    if out is not None:
        _check_page(out)
    with tqdm(bar_format="{desc}", leave=False, disable=None, file=sys.stderr) as bar:

        def write(text: str) -> None:
            """At once: a full disk is to stop the command, and not to be found when it has ended well."""
            bar.write(text, file=sys.stdout)
            sys.stdout.flush()

        steps = 0

        def show(kind: str, row: dict[str, Any]) -> None:
            write(json.dumps({"what": kind} | for_json(row), ensure_ascii=False) if as_json else LINES[kind](row))

        def note(text: str) -> None:
            bar.write(f"vidprep: {printable(text)}", file=sys.stderr)

        def step(text: str) -> None:
            """All stores are open when the second comes."""
            nonlocal steps
            steps += 1
            if steps == 2 and not as_json:
                write(_in_columns({title: title for title, *_ in COLUMNS}))
            bar.set_description_str(printable(text))

        results = measure(stores, **given, on_row=show, on_note=note, on_step=step)
    if out is not None:
        from vidprep.transcode.pages.bench_section import write as write_page

        click.echo(write_page(results, out), err=as_json)
    timed = {row["store"] for row in results["cell"] if not row["refused"]}
    idle = [path for path in results["stores"] if path not in timed]
    for path in idle:
        click.echo(f"vidprep: {printable(path)}: no loader could be timed", err=True)
    sys.exit(1 if idle else 0)


def _check_page(out: Path) -> None:
    """Before anything is measured. Raises MissingError, DestinationError."""
    if (absent := missing_for_pages()) is not None:
        raise MissingError(f"--out writes a page, which needs {absent}: pip install 'vidprep[report]'")
    check_writable(out, "give another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DestinationError(
            f"cannot be a folder for the page: {error.strerror}; give another --out", path=out
        ) from error


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _cell_line(row: dict[str, Any]) -> str:
    """Of the table under the titles of COLUMNS."""
    if row["refused"]:
        return f"{_shown(row)}: {row['loader']}: refused: {printable(row['refused'])}"
    return _in_columns(
        {
            "store": _shown(row), "loader": row["loader"], "access": row["access"], "cache": row["cache"], "workers": f"{row['workers']}",
            "frames/s": f"{row['frames_per_second']:,.0f}", "ms": _ms(row["ms_median"]),
            "p25–p75": f"{_ms(row['ms_p25'])}–{_ms(row['ms_p75'])}", "CPU s/1000": f"{row['cpu_seconds_per_1000_frames']:.2f}",
            "memory": megabytes(row["peak_memory_bytes"]), "× raw": f"{row['speed_up']:.1f}" if row["speed_up"] else "",
        }
    )  # fmt: skip


def _shown(row: dict[str, Any]) -> str:
    from vidprep.transcode.pages.bench_section import place_name

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
