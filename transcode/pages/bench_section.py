"""Files of `vidprep bench --out`, and its page: stores by loaders, every cell, rejected loaders, batch times, advice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vidprep.formats.errors import for_json, format_bytes
from vidprep.formats.storage.local import replacing
from vidprep.transcode.choose.bench.places import place_name
from vidprep.transcode.pages.page import (
    COLOURS,
    LOG,
    Chart,
    Column,
    Page,
    Section,
    Table,
    Tile,
    chart_text,
    decimals,
    format_percent,
    layout,
    render_html,
    render_markdown,
)

BenchRow = dict[str, Any]
ONE, TWO = decimals(1), decimals(2)
BESIDE = {"orientation": "v", "x": 1.02, "y": 1}


def write(results: dict[str, Any], out: Path) -> Path:
    """Write bench.html, .md, .json, bench.parquet (a row for each cell) and training.parquet. Return the page."""
    page = bench_page(results)
    texts = {".html": render_html(page), ".md": render_markdown(page), ".json": json.dumps(for_json(results), indent=1)}
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in (("bench", results["cell"]), ("training", results["training"])):
        if rows:
            with replacing(out / f"{name}.parquet") as file:
                pq.write_table(pa.Table.from_pylist(_fill(rows)), file)
    for suffix, text in texts.items():
        with replacing(out / f"bench{suffix}") as file:
            file.write(text.encode())
    return out / "bench.html"


def _fill(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Return rows with all columns: a table takes its columns from the first row."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def bench_page(results: dict[str, Any]) -> Page:
    """Return the page of bench.json's content: machine, created, notes, and the rows of cell, training and advice."""
    sections = [_summary(results), *_access_sections(results), _every(results)]
    sections += [_refused_section(results)] if any(row["refused"] for row in results["cell"]) else []
    sections += [_training(results)] if results["training"] else []
    sections += [_advice(results)] if results["advice"] else []
    return Page("vidprep bench", f"{results['machine']} — {results['created']}", sections)


def select_timed(results: dict[str, Any]) -> list[BenchRow]:
    """Return the rows that have figures."""
    return [row for row in results["cell"] if not row["refused"]]


def _summary(results: dict[str, Any]) -> Section:
    rows = select_timed(results)
    section = Section("What was measured")
    section.text = " ".join(
        [
            "Each loader was checked against reference frames, and is timed only if it returns them. A cell is the "
            "work of fresh processes, each decoding with one thread, with 16 videos open at most; every round reads each video "
            "once. Warm: the files were read before. Cold: what is about to be read is dropped from the page cache by "
            "posix_fadvise, outside of the time.",
            *(f"{note}." for note in results["notes"]),
        ]
    )
    if any(row["cache"] == "cold" and row["storage_bytes_per_frame"] == 0 for row in rows):
        section.text += (
            " Some cold cells read nothing from storage: the page cache could not be emptied there, they are warm."
        )
    if rows:
        best = max(rows, key=lambda row: float(row["frames_per_second"]))
        section.tiles.append(
            Tile(
                f"{best['frames_per_second']:,.0f}",
                "frames a second, the most",
                f"{best['loader']}, {best['access']}, {best['cache']}, on {place_name(best)}",
            )
        )
    faster = [row for row in rows if row["speed_up"]]
    if faster:
        best = max(faster, key=lambda row: float(row["speed_up"]))
        note = f"{best['loader']}, {best['access']}, {best['cache']}, from {place_name(best)}"
        section.tiles.append(Tile(f"{best['speed_up']:.1f} ×", "as fast as from raw files, at best", note))
    return section


def _access_sections(results: dict[str, Any]) -> list[Section]:
    """Return a section of stores by loaders for each access pattern, cache and number of workers."""
    groups: dict[tuple[str, str, int], list[BenchRow]] = {}
    for row in select_timed(results):
        groups.setdefault((row["access"], row["cache"], row["workers"]), []).append(row)
    sections = []
    for (access, cache, workers), rows in groups.items():
        readers = "1 worker" if workers == 1 else f"{workers} workers"
        section = Section(f"{access}, {cache} cache, {readers}", charts=[_rates(rows)], tables=[_matrix(results, rows)])
        section.text = (
            "Median ms for a sequence; in brackets, times the frames a second of the same loader on raw files."
        )
        sections.append(section)
    return sections


def _loaders(rows: Sequence[BenchRow]) -> list[str]:
    return list(dict.fromkeys(row["loader"] for row in rows))


def _matrix(results: dict[str, Any], rows: Sequence[BenchRow]) -> Table:
    refused = {(row["store"], row["loader"]) for row in results["cell"] if row["refused"]}
    cells = {(row["store"], row["loader"]): row for row in rows}
    names = {row["store"]: place_name(row) for row in results["cell"]}
    sizes = {row["store"]: row["frame_size"] for row in results["cell"]}
    loaders = _loaders(rows)

    def cell(store: str, loader: str) -> str | None:
        row = cells.get((store, loader))
        if row is None:
            return "refused" if (store, loader) in refused else None
        return f"{row['ms_median']:.2f}" + (f" ({row['speed_up']:.1f} ×)" if row["speed_up"] else "")

    lines = [(names[store], sizes[store], *(cell(store, loader) for loader in loaders)) for store in names]
    return Table([Column("store"), Column("frames"), *map(Column, loaders)], lines)


def _rates(rows: Sequence[BenchRow]) -> Chart:
    stores = list(dict.fromkeys(place_name(row) for row in rows))
    bars = []
    for number, loader in enumerate(_loaders(rows)):
        mine = {place_name(row): row for row in rows if row["loader"] == loader}
        bars.append(
            {
                "type": "bar",
                "name": chart_text(loader),
                "x": [chart_text(store) for store in stores],
                "y": [mine[store]["frames_per_second"] if store in mine else None for store in stores],
                "marker": {"color": COLOURS[number % len(COLOURS)]},
            }
        )
    style = layout("", "frames a second", barmode="group", xaxis={"automargin": True}, yaxis=LOG, legend=BESIDE)
    return Chart({"data": bars, "layout": style}, "Frames a second of all workers together. The scale is logarithmic.")


def _every(results: dict[str, Any]) -> Section:
    columns = [
        Column("store", key="place"),
        Column("frames", key="frame_size"),
        Column("loader", key="loader"),
        Column("access", key="access"),
        Column("cache", key="cache"),
        Column("workers", decimals(0), "workers"),
        Column("sequences", decimals(0), "sequences"),
        Column("frames/s", decimals(0), "frames_per_second"),
        Column("ms p25", TWO, "ms_p25"),
        Column("ms median", TWO, "ms_median"),
        Column("ms p75", TWO, "ms_p75"),
        Column("CPU s per 1,000 frames", TWO, "cpu_seconds_per_1000_frames"),
        Column("peak memory", format_bytes, "peak_memory_bytes"),
        Column("read per frame", format_bytes, "read_bytes_per_frame"),
        Column("from storage per frame", format_bytes, "storage_bytes_per_frame"),
        Column("packets per frame", TWO, "packets_per_frame"),
        Column("lowest PSNR", decimals(1, " dB"), "lowest_psnr_db"),
        Column("speed-up", decimals(1, " ×"), "speed_up"),
    ]
    rows = ({"place": place_name(row), **row} for row in select_timed(results))
    section = Section("Every cell", tables=[Table.build(columns, rows, sortable=True)])
    section.text = (
        "Memory is the sum over the processes, shared libraries counted in each. Bytes read do not show where files are mapped "
        "into memory or read by another program. Packets are those that a decoder needs for what was asked, whoever reads. "
        "Lowest PSNR: of the pictures that were compared before."
    )
    return section


def _refused_section(results: dict[str, Any]) -> Section:
    rows = ({"place": place_name(row), **row} for row in results["cell"] if row["refused"])
    columns = [
        Column("store", key="place"),
        Column("loader", key="loader"),
        Column("access", key="access"),
        Column("why", key="refused"),
    ]
    text = "What gives other pictures, or none, is not measured."
    return Section("Not timed", text, tables=[Table.build(columns, rows)])


def _training(results: dict[str, Any]) -> Section:
    columns = [
        Column("store", key="place"),
        Column("loader", key="loader"),
        Column("workers", decimals(0), "workers"),
        Column("batch", decimals(0), "batch_size"),
        Column("frames", key="frame_size"),
        Column("step, ms", ONE, "step_ms"),
        Column("overhead, ms", ONE, "overhead_ms"),
        Column("of synthetic", format_percent, "of_synthetic"),
        Column("sequences/s", ONE, "sequences_per_second"),
        Column("stragglers", decimals(0), "num_stragglers"),
        Column("first batch, ms", decimals(0), "first_batch_ms"),
        Column("CPU s per 1,000 frames", TWO, "cpu_seconds_per_1000_frames"),
        Column("peak memory", format_bytes, "peak_memory_bytes"),
        Column("failed", key="failed"),
    ]
    rows = (
        {"place": place_name(row), "num_stragglers": None if row["failed"] else len(row["stragglers"]), **row}
        for row in results["training"]
    )
    done = [row for row in results["training"] if not row["failed"]]
    section = Section("A training loop", tables=[Table.build(columns, rows)], charts=[_series(done)] if done else [])
    section.text = (
        "A pause stands for the network. Overhead is what an iteration takes longer than over one synthetic batch that is handed "
        "out again and again; of synthetic, what is left of that rate. Sequences do not overlap, and at most a tenth of the "
        "decoded frames is cached, so that a small sample does not look like a cache. Memory that processes share counts in each."
    )
    return section


def _series(rows: Sequence[BenchRow]) -> Chart:
    traces = []
    for number, row in enumerate(rows):
        late = set(row["stragglers"])
        name = f"{place_name(row)}, {row['loader']}, {row['workers']}"
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": chart_text(name),
                "y": row["iteration_ms"],
                "marker": {
                    "color": COLOURS[number % len(COLOURS)],
                    "size": [11 if n in late else 6 for n in range(row["batches"])],
                    "symbol": ["x" if n in late else "circle" for n in range(row["batches"])],
                },
            }
        )
    style = layout("batch", "ms from batch to batch", yaxis=LOG, legend=BESIDE)
    caption = "Time from one batch to the next, the step included. A cross took more than three times the median."
    return Chart({"data": traces, "layout": style}, caption)


def _advice(results: dict[str, Any]) -> Section:
    columns = [
        Column("store"),
        Column("workers", decimals(0)),
        Column("batch", decimals(0)),
        Column("sequences/s", ONE),
        Column("advised"),
    ]
    lines: list[tuple[Any, ...]] = []
    for row in results["advice"]:
        if row["failed"]:
            lines.append((place_name(row), None, None, None, row["failed"]))
            continue
        for tried in row["tried"]:
            mark = "←" if tried == row["advised"] else None
            lines.append((place_name(row), *tried.values(), mark))
    section = Section("Workers and batch size", tables=[Table(columns, lines)])
    section.text = "PrefetchLoader alone, without a pause: the fewest workers, then the smallest batch, with 95 % of the best rate."
    return section
