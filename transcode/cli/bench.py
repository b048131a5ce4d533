"""`vidprep bench`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import click

from vidprep.formats.errors import DestinationError, MissingError, SettingsError, format_bytes, printable
from vidprep.formats.option import Option
from vidprep.formats.storage.local import check_writable
from vidprep.transcode.choose.bench.places import PATTERNS
from vidprep.transcode.cli._command import (
    BATCH_SIZE,
    BriefCommand,
    FolderOrUrl,
    LocalPath,
    command_of,
    ignore,
    missing_for_pages,
)
from vidprep.transcode.settings.parse import check_types

# Title, width, and priority: in a narrow terminal, columns with the highest number are dropped first.
COLUMNS = (
    ("store", 24, 0),
    ("loader", 13, 0),
    ("access", 15, 0),
    ("cache", 6, 1),
    ("workers", 8, 2),
    ("frames/s", 10, 0),
    ("ms", 9, 0),
    ("p25–p75", 15, 5),
    ("CPU s/1000", 12, 4),
    ("memory", 11, 3),
    ("× raw", 7, 0),
)
LEFT = ("store", "loader", "access", "cache")


def _columns() -> list[tuple[str, int]]:
    """Return the columns that fit, with their widths."""
    room, shown = shutil.get_terminal_size((130, 24)).columns, list(COLUMNS)
    while sum(width for _, width, _ in shown) > room and any(order for *_, order in shown):
        shown.remove(max(shown, key=lambda column: column[2]))
    return [(title, width) for title, width, _ in shown]


def _format_columns(values: dict[str, str]) -> str:
    cells = []
    for title, width in _columns():
        text = values[title]
        if title in LEFT:
            half = (width - 2) // 2
            text = text if len(text) < width else f"{text[:half]}…{text[-half:]}"
        cells.append(f"{text:<{width}}" if title in LEFT else f" {text}".rjust(width))
    return "".join(cells).rstrip()


@check_types()
def bench(
    stores: str | Path | Sequence[str | Path],
    *,
    loader: Annotated[
        Sequence[str], Option("Time only this loader; may be repeated. Default: all that are installed.", "NAME")
    ] = (),
    pattern: Annotated[Sequence[str], Option("Access pattern; may be repeated.", choices=PATTERNS)] = (
        "consecutive",
        "single",
    ),
    frames: Annotated[int, Option("Frames per sequence.", "N", least=1)] = BATCH_SIZE,
    stride: Annotated[int, Option("Distance between frames in the pattern strided.", "N", least=1)] = 4,
    workers: Annotated[Sequence[int], Option("Worker processes that read at once; may be repeated.", "N", least=1)] = (
        1,
    ),
    cache: Annotated[str, Option("State of the page cache.", choices=("warm", "cold", "both"))] = "warm",
    seconds: Annotated[float, Option("Time each cell for at least this long.", "SECONDS", least=0.01)] = 2.0,
    sample: Annotated[int, Option("Number of videos to read.", "N", least=1)] = 16,
    seed: Annotated[int, Option("Seed of the sample and of the requested frames.", "N")] = 0,
    step_ms: Annotated[float | None, Option("Simulate training with a step of this time.", "MS", least=0)] = None,
    batch_size: Annotated[int, Option("Batch size of the simulated training.", "N", least=1)] = BATCH_SIZE,
    advise: Annotated[bool, Option("Search for the best number of workers and batch size.")] = False,
    on_row: Callable[[str, dict[str, Any]], object] | None = None,
    on_note: Callable[[str], object] | None = None,
    on_step: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Time video loaders on stores, side by side. A loader that returns wrong pixels is reported and not timed.

    Args:
        stores: One path or several: destinations of runs or their URLs, exports, or folders of raw videos.
        on_row: Called with the kind of each row ("cell", "training" or "advice") and the row.
        on_note: Called with each line about what was left out.
        on_step: Called with what is being timed.

    Returns:
        A dict with `machine`, `notes`, and the rows under `cell`, `training` and `advice`.

    Raises:
        SettingsError: A value is not allowed.
        StoreError: A path is no store.
        MissingError: A loader that was named is not installed.
    """
    from datetime import datetime

    from vidprep.transcode.choose.bench.bench import BenchOptions, add_speed_ups, survey
    from vidprep.transcode.choose.bench.train import machine, results
    from vidprep.transcode.settings.parse import parse_place

    if batch_size != BATCH_SIZE and step_ms is None and not advise:
        raise SettingsError("<batch_size> needs <step_ms>", batch_size=batch_size, step_ms=50)
    caches = ("warm", "cold") if cache == "both" else (cache,)
    options = BenchOptions(tuple(loader), tuple(pattern), frames, stride, tuple(workers), caches, seconds, sample, seed)
    given = [stores] if isinstance(stores, str | Path) else stores
    on_row, on_note, on_step = on_row or ignore, on_note or ignore, on_step or ignore
    on_step("opening")
    surveyed = survey([parse_place(path) for path in given], options)
    for note in surveyed.notes:
        on_note(note)
    collected: dict[str, Any] = {
        "format": "vidprep bench 1",
        "created": f"{datetime.now():%Y-%m-%d %H:%M}",
        "machine": machine(),
        "notes": list(surveyed.notes),
        "stores": [str(place.path) for place in surveyed.places],
        "cell": [],
        "training": [],
        "advice": [],
    }
    for kind, row in results(surveyed.places, options, step_ms, batch_size, advise, on_step):
        collected[kind].append(row)
        add_speed_ups(collected["cell"])
        on_row(kind, row)
    return collected


@command_of(
    bench,
    click.argument("stores", metavar="STORE…", type=FolderOrUrl(), nargs=-1, required=True),
    flags=(
        click.option(
            "--out",
            type=LocalPath(file_okay=False),
            metavar="FOLDER",
            help="Write bench.html, .md, .json and .parquet here.",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Write JSON lines to stdout; `what` is cell, training or advice."
        ),
    ),
    first=("loader", "pattern", "frames", "stride", "workers", "batch_size", "step_ms", "sample", "out", "as_json"),
    cls=BriefCommand,
)
def bench_command(stores: tuple[Path, ...], out: Path | None = None, as_json: bool = False, **given: Any) -> None:
    """Time every installed loader on every STORE, side by side. A loader that returns wrong pixels is reported, not
    timed.

    STORE is an output of transcode, burst or pack, a folder of raw videos, or a folder with a folder of .jpg or .png
    pictures for each video. The videos that all stores share are read, by id. If one of the stores is a folder of raw
    videos, the table shows the speed-up over it.

    \b
    Exit codes: 0 measured, 1 a store without any timing, 2 wrong usage.
    \b
    vidprep bench raw/ ready/ frames/ --cache both --out bench/
    vidprep bench ready/ --workers 1 --workers 4 --step-ms 50 --advise
    """
    from tqdm import tqdm

    from vidprep.formats.errors import for_json

    if out is not None:
        _check_page(out)
    with tqdm(bar_format="{desc}", leave=False, disable=None, file=sys.stderr) as bar:

        def write(text: str) -> None:
            """Write and flush, so that a full disk stops the command immediately."""
            bar.write(text, file=sys.stdout)
            sys.stdout.flush()

        steps = 0

        def show(kind: str, row: dict[str, Any]) -> None:
            write(json.dumps({"what": kind} | for_json(row), ensure_ascii=False) if as_json else LINES[kind](row))

        def note(text: str) -> None:
            bar.write(f"vidprep: {printable(text)}", file=sys.stderr)

        def step(text: str) -> None:
            """Print progress; all stores are open when the second message comes."""
            nonlocal steps
            steps += 1
            if steps == 2 and not as_json:
                write(_format_columns({title: title for title, *_ in COLUMNS}))
            bar.set_description_str(printable(text))

        results = bench(stores, **given, on_row=show, on_note=note, on_step=step)
    if out is not None:
        from vidprep.transcode.pages.bench_section import write as write_page

        click.echo(write_page(results, out), err=as_json)
    timed = {row["store"] for row in results["cell"] if not row["refused"]}
    idle = [path for path in results["stores"] if path not in timed]
    for path in idle:
        click.echo(f"vidprep: {printable(path)}: no loader could be timed", err=True)
    sys.exit(1 if idle else 0)


def _check_page(out: Path) -> None:
    """Check before measuring that the page can be written. Raises MissingError, DestinationError."""
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
    """Return a line of the table under the titles of COLUMNS."""
    if row["refused"]:
        return f"{_format_row(row)}: {row['loader']}: refused: {printable(row['refused'])}"
    return _format_columns(
        {
            "store": _format_row(row),
            "loader": row["loader"],
            "access": row["access"],
            "cache": row["cache"],
            "workers": f"{row['workers']}",
            "frames/s": f"{row['frames_per_second']:,.0f}",
            "ms": _ms(row["ms_median"]),
            "p25–p75": f"{_ms(row['ms_p25'])}–{_ms(row['ms_p75'])}",
            "CPU s/1000": f"{row['cpu_seconds_per_1000_frames']:.2f}",
            "memory": format_bytes(row["peak_memory_bytes"]),
            "× raw": f"{row['speed_up']:.1f}" if row["speed_up"] else "",
        }
    )


def _format_row(row: dict[str, Any]) -> str:
    from vidprep.transcode.choose.bench.places import place_name

    return printable(place_name(row))


def _training_line(row: dict[str, Any]) -> str:
    begin = f"training: {_format_row(row)}: {row['loader']}, {row['workers']} workers, batches of {row['batch_size']}: "
    if row["failed"]:
        return f"{begin}failed: {printable(row['failed'])}"
    return (
        f"{begin}{row['overhead_ms']:.1f} ms over a step of {row['step_ms']:g} ms, {row['of_synthetic']:.0%} of the synthetic "
        f"rate, {len(row['stragglers'])} of {row['batches']} batches late"
    )


def _advice_line(row: dict[str, Any]) -> str:
    if row["failed"]:
        return f"advice: {_format_row(row)}: failed: {printable(row['failed'])}"
    best = row["advised"]
    return (
        f"advice: {_format_row(row)}: {best['workers']} workers, batches of {best['batch_size']}: "
        f"{best['sequences_per_second']:.0f} sequences a second"
    )


LINES = {"cell": _cell_line, "training": _training_line, "advice": _advice_line}
