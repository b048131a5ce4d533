"""The page about destinations: tiles, charts, worst frames, groups of failures and warnings, classes and splits, tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import count_of, format_bytes
from vidprep.transcode.pages._figures import Doubles, FinishedDestination, kind_of, numbers
from vidprep.transcode.pages._stills import (
    DIFFERENCE_GAIN,
    JPEG_QUALITY,
    ComparedFrame,
    CompareTask,
    StillResult,
    StillTask,
)
from vidprep.transcode.pages.page import (
    COLOURS,
    LOG,
    Chart,
    Column,
    Section,
    Strip,
    Table,
    Tile,
    chart_text,
    decimals,
    format_percent,
    layout,
)

ROWS_MAX = 500
ALL = "all"
NO_NAME = "none"


def class_sections(figure: dict[str, Any]) -> list[Section]:
    """Return the sections about classes and splits; empty if the videos have neither."""
    tally = figure["classes"]
    if tally is None:
        return []
    splits: list[str] = tally["splits"]
    unsplit = any(cell["split"] is None for cell in tally["cells"])
    names = [*splits, *([NO_NAME] if unsplit and splits else [])]
    counts = _counts(tally["cells"], has_classes=tally["has_classes"])
    columns = [Column("class"), Column("videos", decimals(0)), Column("minutes", decimals(1))]
    for name in names:
        columns += [Column(name, decimals(0)), Column(f"{name}, minutes", decimals(1))]
    classes = sorted(counts.keys() - {ALL})
    rows = [_row(name, counts[name], names) for name in [ALL, *classes[:ROWS_MAX]]]
    parts = [f"{len(classes):,} class{'es' * (len(classes) != 1)}"] if tally["has_classes"] else []
    parts += [f"{len(splits)} split{'s' * (len(splits) != 1)}"] if splits else []
    text = f"{' in '.join(parts)}." + (f" Shown: {ROWS_MAX}." if len(classes) > ROWS_MAX else "")
    if lacking := [name for name in classes if any(not counts[name][split][0] for split in splits)]:
        text += f" {len(lacking):,} class{'es lack' if len(lacking) > 1 else ' lacks'} a split, such as {lacking[0]}."
    if leaks := tally["groups_in_two_splits"]:
        text += f" {count_of(len(leaks), 'group')} of clips that show the same stand in two splits, such as that of {leaks[0]}."
    return [Section("Classes and splits", text, tables=[Table(columns, rows)])]


def _counts(cells: Sequence[dict[str, Any]], *, has_classes: bool) -> dict[str, dict[str, list[float]]]:
    """Return videos and seconds of each class and of all, in each split and in all."""
    counts: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0.0]))
    for cell in cells:
        for row in {ALL, NO_NAME if cell["class"] is None else cell["class"]} if has_classes else {ALL}:
            for column in (ALL, cell["split"] or NO_NAME):
                counts[row][column][0] += cell["videos"]
                counts[row][column][1] += cell["seconds"]
    return counts


def _row(name: str, counts: dict[str, list[float]], splits: list[str]) -> tuple[Any, ...]:
    return name, *(value / unit for split in (ALL, *splits) for value, unit in zip(counts[split], (1, 60), strict=True))


POINTS, WORST_POINTS = 3000, 500
TABLE_ROWS = 1000
GROUPS_SHOWN = 50
FAULTS_SHOWN = 200
MANY_VIDEOS = 20  # fewer make no histogram: the chart of sizes shows each
FEW_VIDEOS = 6  # in the highest bar; then each count gets a tick
BINS = 40
SHOWN_SCORES = ("psnr_y_db", "psnr_y_p1_db", "psnr_y_min_db", "ssim")
DB = decimals(2, " dB")


SEEN = f"as it went in, as it came out, and {DIFFERENCE_GAIN} times the difference."
WORST = f"The frame of the lowest PSNR-Y of each of the worst videos: {SEEN}"
RANDOM = f"As any other: {SEEN}"


def run_sections(
    destinations: list[FinishedDestination],
    all_figures: list[dict[str, Any]],
    worst: list[list[CompareTask]],
    drawn: list[list[CompareTask]],
    shown: dict[StillTask, StillResult],
) -> list[Section]:
    names = _names([Path(destination.shown) for destination in destinations])
    lines = [
        [Section("At a glance", tiles=_tiles(figure)), *_groups(figure), _validation(figure), *class_sections(figure)]
        for figure in all_figures
    ]
    frames = [
        [
            _frames("Worst frames", WORST, tasks, shown),
            *([_frames("Random frames", RANDOM, others, shown)] if others else []),
        ]
        for tasks, others in zip(worst, drawn, strict=True)
    ]
    charts = Section("Size and quality", charts=_charts(names, destinations, all_figures))
    tables = [_videos(names, destinations), _settings(names, all_figures)]
    return [*_side_by_side(names, lines), charts, *_side_by_side(names, frames), *tables]


def _side_by_side(names: list[str], sections: list[list[Section]]) -> list[Section]:
    """Return the sections of several datasets as one of each title: tiles are a table with a column for each dataset."""
    if len(names) == 1:
        return sections[0]
    by_title: dict[str, list[tuple[str, Section]]] = defaultdict(list)
    for name, own in zip(names, sections, strict=True):
        for section in own:
            by_title[section.title].append((name, section))
    return [_join_sections(title, of_each) for title, of_each in by_title.items()]


def _join_sections(title: str, of_each: list[tuple[str, Section]]) -> Section:
    texts = dict(of_each)
    same = len({section.text for section in texts.values()}) == 1
    text = of_each[0][1].text if same else " ".join(f"{name}: {section.text}" for name, section in of_each)
    tiles, rows = defaultdict[str, dict[str, str]](dict), defaultdict[tuple[str, ...], list[tuple[Any, ...]]](list)
    columns: dict[tuple[str, ...], Sequence[Column]] = {}
    strips = []
    for name, section in of_each:
        for tile in section.tiles:
            tiles[tile.label][name] = f"{tile.value} ({tile.note})" if tile.note else tile.value
        for table in section.tables:
            key = tuple(column.name for column in table.columns)
            columns[key] = table.columns
            rows[key] += [(name, *row) for row in table.rows]
        strips += [replace(strip, title=f"{name}: {strip.title}") for strip in section.strips]
    joined = Section(title, text, strips=strips)
    if tiles:
        cells = [(label, *(values.get(name) for name in texts)) for label, values in tiles.items()]
        joined.tables.append(Table([Column(""), *map(Column, texts)], cells))
    joined.tables += [Table([Column("in"), *columns[key]], of_key) for key, of_key in rows.items()]
    return joined


def _names(paths: list[Path]) -> list[str]:
    """Return the shortest names that distinguish the paths."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path.resolve()) for path in paths]


def _length(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "no end"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def _tiles(figure: dict[str, Any]) -> list[Tile]:
    videos, sizes, low = figure["videos"], figure["bytes"], figure["scores"]["psnr_y_p1_db"]
    outputs, sources, frames = sizes["outputs"], sizes["sources"], figure["frames"]
    tiles = [Tile(f"{videos['ok']:,} ok", "videos", f"{videos['failed']:,} failed, {videos['warned']:,} with warnings")]
    if sources and outputs:
        change = f"{abs(1 - outputs / sources):.0%} {'saved' if outputs <= sources else 'more'}"
        larger = f"; {figure['larger_than_source']:,} larger than their source" if figure["larger_than_source"] else ""
        tiles.append(Tile(format_bytes(outputs), "of outputs", f"from {format_bytes(sources)}: {change}{larger}"))
    tiles += _still_tiles(figure, outputs)
    if figure["duration_seconds"]:
        tiles.append(Tile(_length(figure["duration_seconds"]), "of video", f"{frames:,} frames"))
    tiles += _score_tiles(figure)
    if keys := figure["keyframes"]:
        held = keys["videos_that_hold_it"] == videos["ok"]
        note = (
            "read back in every video"
            if held
            else f"broken by {count_of(videos['ok'] - keys['videos_that_hold_it'], 'video')}"
        )
        tiles.append(
            Tile(f"{keys['asked_interval']}", "frames per keyframe", f"{keys['count']:,} keyframes in all, {note}")
        )
    rate = figure["throughput"]["frames_per_cpu_second"]
    if rate:
        tiles.append(
            Tile(
                f"{rate:,.0f}",
                "frames made per CPU second",
                f"{frames:,} frames in {figure['throughput']['cpu_seconds']:,.1f} CPU seconds",
            )
        )
    if target := figure["target_psnr_y_p1_db"]:
        tiles.append(
            Tile(DB(target), "asked for by --target-psnr", f"reached: {DB(low['lowest'])} or more in every video")
        )
    if target := figure["target_vmaf_p1"]:
        tiles.append(
            Tile(
                f"{target:g}",
                "VMAF asked for by --target-vmaf",
                f"reached: {figure['scores']['vmaf_p1']['lowest']:.1f} or more in every video",
            )
        )
    return tiles


def _still_tiles(figure: dict[str, Any], outputs: int) -> list[Tile]:
    stills, tiles = figure["stills"], list[Tile]()
    of_sample = (
        f"measured on {count_of(stills['sampled_frames'], 'frame')} of {count_of(stills['sampled_videos'], 'video')}"
    )
    if outputs and stills["png_bytes"]:
        tiles.append(
            Tile(
                format_bytes(stills["png_bytes"]),
                "as PNG files",
                f"{stills['png_bytes'] / outputs:.1f} × as much; {of_sample}",
            )
        )
    if outputs and stills["jpeg_bytes"] and figure["holds"] == "videos":
        tiles.append(
            Tile(
                format_bytes(stills["jpeg_bytes"]),
                f"as JPEG files of quality {JPEG_QUALITY}",
                f"{stills['jpeg_bytes'] / outputs:.1f} × as much; {of_sample}",
            )
        )
    return tiles


def _score_tiles(figure: dict[str, Any]) -> list[Tile]:
    scores, tiles = figure["scores"], list[Tile]()
    luma, ssim, low = scores["psnr_y_db"], scores["ssim"], scores["psnr_y_p1_db"]
    if luma:
        note = f"99 % of the videos have {DB(luma['p1'])} or more; 1st percentiles of frames from {DB(low['lowest'])}"
        tiles.append(Tile(DB(luma["median"]), "PSNR-Y, median", note))
    if ssim:
        tiles.append(Tile(f"{ssim['median']:.4f}", "SSIM, median", f"from {ssim['lowest']:.4f}"))
    vmaf, vmaf_low = scores["vmaf"], scores["vmaf_p1"]
    if vmaf:
        note = f"{figure['vmaf_model']}; 1st percentiles of frames from {vmaf_low['lowest']:.1f}"
        tiles.append(Tile(f"{vmaf['median']:.1f}", "VMAF, median", note))
    if xpsnr := scores["xpsnr_db"]:
        tiles.append(Tile(DB(xpsnr["median"]), "XPSNR, median", f"from {DB(xpsnr['lowest'])}"))
    return tiles


def _charts(
    names: list[str], destinations: list[FinishedDestination], all_figures: list[dict[str, Any]]
) -> list[Chart]:
    charts = [_bytes_chart(names, all_figures)]
    many = max(destination.good.num_rows for destination in destinations) >= MANY_VIDEOS
    for column, label, caption in (
        (
            "psnr_y_db",
            "PSNR-Y of a video, dB",
            "How close outputs are to the frames that went in. Higher is closer; 40 dB is hard to see.",
        ),
        ("ssim", "SSIM of a video", "Structural similarity; 1 is equal."),
        (
            "vmaf",
            "VMAF of a video",
            "Visual quality as viewers judged it; from about 95 on hard to tell from the original.",
        ),
    ):
        values = [numbers(destination.good, column) for destination in destinations]
        if many and any(np.isfinite(each).any() for each in values):
            charts.append(_histogram(names, values, label, caption))
    charts.append(_size_chart(names, destinations))
    return charts


def _bytes_chart(names: list[str], all_figures: list[dict[str, Any]]) -> Chart:
    traces = []
    for number, (name, figure) in enumerate(zip(names, all_figures, strict=True)):
        bars = {"sources": figure["bytes"]["sources"], "outputs": figure["bytes"]["outputs"]}
        bars |= {f"as JPEG q{JPEG_QUALITY}": figure["stills"]["jpeg_bytes"], "as PNG": figure["stills"]["png_bytes"]}
        shown = {label: size for label, size in bars.items() if size}
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": chart_text(name),
                "y": list(shown),
                "x": [size / 1e6 for size in shown.values()],
                "text": [format_bytes(size) for size in shown.values()],
                "hoverinfo": "text+name",
                "textposition": "auto",
                "marker": {"color": COLOURS[number % len(COLOURS)]},
            }
        )
    style = layout(
        "MB", "", yaxis={"autorange": "reversed", "automargin": True}, barmode="group", showlegend=len(names) > 1
    )
    stills = all_figures[0]["stills"]
    caption = (
        "Sizes of the sources, of the outputs, and of the same frames as single pictures: "
        f"estimated from {count_of(stills['sampled_frames'], 'frame')} of {count_of(stills['sampled_videos'], 'video')}, by their "
        "bytes per pixel."
    )
    return Chart({"data": traces, "layout": style}, caption)


def _histogram(names: list[str], values: list[Doubles], label: str, caption: str) -> Chart:
    finite = [each[np.isfinite(each)] for each in values]
    edges = np.histogram_bin_edges(np.concatenate(finite), bins=BINS)
    traces = [
        {
            "type": "bar",
            "name": chart_text(name),
            "x": ((edges[:-1] + edges[1:]) / 2).tolist(),
            "y": np.histogram(each, edges)[0].tolist(),
            "width": float(edges[1] - edges[0]),
            "opacity": 1 if len(names) == 1 else 0.6,
            "marker": {"color": COLOURS[number % len(COLOURS)]},
        }
        for number, (name, each) in enumerate(zip(names, finite, strict=True))
    ]
    lossless = sum(len(each) for each in values) - sum(len(each) for each in finite)
    note = f" Not drawn: {count_of(lossless, 'video')} that lost nothing." if lossless else ""
    few = max(max(trace["y"]) for trace in traces) <= FEW_VIDEOS
    ticks = {"tickformat": "d"} | ({"dtick": 1} if few else {})
    style = layout(label, "videos", barmode="overlay", bargap=0.05, showlegend=len(names) > 1, yaxis=ticks)
    return Chart({"data": traces, "layout": style}, caption + note)


def _size_chart(names: list[str], destinations: list[FinishedDestination]) -> Chart:
    traces, left_out = [], 0
    for number, (name, destination) in enumerate(zip(names, destinations, strict=True)):
        good = destination.good.filter(pc.is_finite(pc.fill_null(destination.good["psnr_y_db"], float("inf"))))
        rows = _points(good).to_pylist()
        left_out += good.num_rows - len(rows)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": chart_text(name),
                "x": [row["size_bytes"] / row["num_frames"] / 1e3 for row in rows],
                "y": [row["psnr_y_db"] for row in rows],
                "text": [_hover(row) for row in rows],
                "hovertemplate": "%{text}<br>%{x:.2f} kB per frame, %{y:.2f} dB<extra></extra>",
                "marker": {"color": COLOURS[number % len(COLOURS)], "size": 7, "opacity": 0.7},
            }
        )
    caption = "Each point is a video; its name shows when you point at it."
    if left_out:
        caption += f" Drawn: the {WORST_POINTS} of the lowest PSNR-Y and a random sample; {count_of(left_out, 'video')} left out."
    style = layout("kB per frame", "PSNR-Y, dB", xaxis=LOG, showlegend=len(names) > 1)
    return Chart({"data": traces, "layout": style}, caption)


def _hover(row: dict[str, Any]) -> str:
    size = f"{row['width']}x{row['height']}, {row['num_frames']:,} frames, {format_bytes(row['size_bytes'])}"
    return f"{chart_text(row['id'])}<br>{size}"


def _points(table: pa.Table) -> pa.Table:
    """Return all rows, or the worst ones and a random sample of the others, the same each time."""
    if table.num_rows <= POINTS:
        return table
    order = pc.sort_indices(table, [("psnr_y_db", "ascending"), ("id", "ascending")]).to_numpy()
    others = np.random.default_rng(0).choice(order[WORST_POINTS:], POINTS - WORST_POINTS, replace=False)
    return table.take(np.concatenate([order[:WORST_POINTS], np.sort(others)]))


def _frames(title: str, text: str, tasks: list[CompareTask], shown: dict[StillTask, StillResult]) -> Section:
    section = Section(title, text if tasks else "No frame lost anything that was scored.")
    for task in tasks:
        taken = shown[task]
        assert isinstance(taken, ComparedFrame)
        labels = ("source", "output", f"difference × {DIFFERENCE_GAIN}")
        pictures = list(zip(labels, taken.pictures, strict=True)) if taken.pictures else []
        section.strips.append(Strip(f"{task.unit.id}, frame {task.number}", pictures, taken.failed))
    return section


def _groups(figure: dict[str, Any]) -> list[Section]:
    kinds = [f"{count:,} {kind}" for kind, count in figure["sources"].items() if count]
    of_sources = f" Sources: {', '.join(kinds)}." if kinds else ""
    videos = figure["videos"]
    sections = []
    for name, text in (
        ("failures", f"{count_of(videos['failed'], 'video')} failed." if videos["failed"] else "Every video is ok."),
        (
            "warnings",
            (f"{count_of(videos['warned'], 'video')} with warnings." if videos["warned"] else "There are none.")
            + of_sources,
        ),
        ("notes", "What was assumed, or left as it was; nothing is lost."),
    ):
        groups, section = figure[name], Section(name.capitalize(), text)
        if groups:
            columns = [Column("reason"), Column("videos", decimals(0)), Column("for example")]
            rows = [
                (group["reason"], group["videos"], f"{group['examples'][0]['id']}: {group['examples'][0]['text']}")
                for group in groups[:GROUPS_SHOWN]
            ]
            section.tables.append(Table(columns, rows))
            if len(groups) > GROUPS_SHOWN:
                section.text += f" The {GROUPS_SHOWN} most frequent of {len(groups)} kinds."
        if groups or name != "notes":
            sections.append(section)
    return sections


def _validation(figure: dict[str, Any]) -> Section:
    validation = figure["validation"]
    if validation is None:
        return Section("Validation", "Not read again since the run. To do that: vidprep validate SRC DST")
    faults, scored = validation["faults"], ""
    if validation["scored_when"] not in (None, validation["when"]):
        scored = f" ({validation['scored_when']})"
    section = Section(
        "Validation",
        f"{count_of(validation['videos'], 'video')} read again ({validation['when']}), "
        f"{validation['scored_against_source']:,} scored against the source again{scored}, "
        f"{validation['scored_by_ffmpeg']:,} by the ffmpeg command too; {count_of(len(faults), 'fault')}.",
    )
    if vmaf := validation["vmaf"]:
        note = f"{validation['vmaf_model']}; from {vmaf['lowest']:.1f}"
        section.tiles.append(Tile(f"{vmaf['median']:.1f}", "VMAF, median", note))
    if xpsnr := validation["xpsnr_db"]:
        section.tiles.append(Tile(DB(xpsnr["median"]), "XPSNR, median", f"from {DB(xpsnr['lowest'])}"))
    if faults:
        section.text += f" Shown: {FAULTS_SHOWN}." if len(faults) > FAULTS_SHOWN else ""
        section.tables.append(Table([Column("fault")], [(fault,) for fault in faults[:FAULTS_SHOWN]]))
    if validation["seeks"]:
        columns = [Column("loader"), Column("random seeks", decimals(0)), Column("to another picture", decimals(0))]
        columns.append(Column("videos it does not read", decimals(0)))
        rows = [(name, seeks["tried"], seeks["wrong"], seeks["unread"]) for name, seeks in validation["seeks"].items()]
        section.tables.append(Table(columns, rows))
    return section


def _videos(names: list[str], destinations: list[FinishedDestination]) -> Section:
    several, tables = len(names) > 1, [destination.good for destination in destinations]
    columns = [Column("in")] if several else []
    columns += [
        Column("video"),
        Column("size"),
        Column("frames", decimals(0)),
        Column("kB", lambda size: f"{size / 1e3:,.0f}"),
        Column("of source", format_percent),
        *(Column(label, decimals(2)) for label in ("PSNR-Y", "p1", "worst")),
        Column("SSIM", decimals(4)),
        Column("CRF/quality", decimals(0)),
        Column("warnings", lambda texts: "; ".join(map(kind_of, texts))),
    ]
    share = TABLE_ROWS // len(tables)
    rows = []
    for name, table in zip(names, tables, strict=True):
        order = pc.sort_indices(table, [("psnr_y_db", "ascending"), ("id", "ascending")])
        for row in table.take(order[:share]).to_pylist():
            ratio = row["size_bytes"] / row["source_size_bytes"] if row["source_size_bytes"] else None
            value = row["crf"] if row["crf"] is not None else row["jpeg_quality"]
            values = (row["id"], f"{row['width']}x{row['height']}", row["num_frames"], row["size_bytes"], ratio)
            scores = (row[score] for score in SHOWN_SCORES)
            shown = (*values, *scores, value, row["warnings"] or None)
            rows.append((name, *shown) if several else shown)
    total = sum(table.num_rows for table in tables)
    text = (
        f"The {len(rows):,} of the lowest PSNR-Y, of {total:,}; the manifest has them all." if len(rows) < total else ""
    )
    return Section("Videos", text, tables=[Table(columns, rows, sortable=True)])


def _settings(names: list[str], all_figures: list[dict[str, Any]]) -> Section:
    flat = [_flat(figure["settings"]) | _flat({"versions": figure["versions"]}) for figure in all_figures]
    keys = list(dict.fromkeys(key for values in flat for key in values))
    rows = [(key, *(str(values.get(key, "–")) for values in flat)) for key in keys]
    differ = sum(len(set(row[1:])) > 1 for row in rows)
    text = f"{differ} of them differ." if len(names) > 1 else ""
    return Section("Settings and versions", text, tables=[Table([Column(""), *map(Column, names)], rows)])


def _flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return flat
