"""The page about a sweep: rate–distortion curves, sizes at equal PSNR, Bjøntegaard deltas, every cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidprep.formats.errors import StoreError, count_of, format_bytes
from vidprep.formats.storage.untrusted import read_json
from vidprep.transcode.choose.sweep_tables import SUMMARY_NAME, SWEEP_FORMAT, common_rows
from vidprep.transcode.pages.page import COLOURS, LOG, Chart, Column, Section, Table, Tile, chart_text, decimals, layout

ABOVE = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
ONE, TWO, FOUR = decimals(1), decimals(2), decimals(4)


OTHER_SCORES = {"vmaf": "VMAF", "xpsnr_db": "XPSNR, dB"}


def summary_in(path: Path) -> dict[str, Any] | None:
    """Return the results of a sweep in a folder; None if there are none. Raises StoreError."""
    if not (path / SUMMARY_NAME).is_file():
        return None
    try:
        summary = read_json(path / SUMMARY_NAME)
        if summary["format"] == SWEEP_FORMAT:
            return summary
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"cannot be read: {error}; sweep again", path=path / SUMMARY_NAME) from error
    raise StoreError(f"is {summary['format']}, not {SWEEP_FORMAT}", path=path / SUMMARY_NAME)


def sections_of(summary: dict[str, Any], path: str, *, several: bool) -> list[Section]:
    """Return the sections of a sweep. Raises StoreError."""
    try:
        return sweep_sections(summary, f": {path}" if several else "")
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise StoreError(
            f"makes no sense: {type(error).__name__} {error}; sweep again", path=Path(path, SUMMARY_NAME)
        ) from error


def sweep_sections(summary: dict[str, Any], behind: str = "") -> list[Section]:
    """Return the sections about sweep.json."""
    summary = _shorten_names(summary)
    cells, at = summary["cells"], summary["at_psnr"]
    if not cells:
        return [Section(f"Sweep{behind}", "No video went through every cell; nothing can be compared.")]
    section = Section(f"At equal quality{behind}", tiles=_tiles(summary))
    section.text = (
        f"{count_of(len(summary['compared_videos']), 'video')}, sampled from {summary['sampled_from']:,}, decoded and "
        "scaled once, then made in each setting. PSNR-Y is the mean over the videos; that of JPEGs, whose luma has 255 steps, is "
        f"given on the 219 of a video's (1.32 dB more); they have no XPSNR. Sizes at {at['psnr_y_db']:g} dB lie on the line between "
        "the two settings next to it."
    )
    section.charts = [
        _curves(cells, "psnr_y_db", "PSNR-Y, dB"),
        _bars(summary),
        _curves(cells, "ssim", "SSIM"),
        *(
            _curves([cell for cell in cells if score in cell], score, label)
            for score, label in OTHER_SCORES.items()
            if any(score in cell for cell in cells)
        ),
        _reading(cells),
    ]
    section.tables = [_common_table(summary)]
    delta = Section(f"Bjøntegaard delta rate{behind}")
    if any(each["mean"] is not None for row in summary["bd_rate"]["curves"].values() for each in row.values()):
        delta.tables = [_delta_table(summary["bd_rate"])]
        anchor = summary["bd_rate"]["anchor"]
        for score, curves in summary["bd_rate"].get("by_score", {}).items():
            delta.tables.append(
                _delta_table({"anchor": anchor, "curves": curves}, f"by {OTHER_SCORES[score].partition(',')[0]}")
            )
        delta.text = (
            "How many bytes a row takes at equal quality by that score, against the column: -20 % is a fifth less. Mean over the videos "
            "on which both have four points and a range of the score in common (ITU-T VCEG-M33)."
        )
    else:
        delta.text = "No two curves have four points and PSNR in common on any video; give each at least four values."
    every = Section(f"Every setting{behind}", tables=[_cells_table(cells)])
    left_out = [(each["id"], each["why"]) for each in summary["left_out"]]
    if left_out:
        every.tables.append(Table([Column("left out"), Column("why")], left_out))
    if not_scored := [(each["id"], each["why"]) for each in summary.get("not_scored", ())]:
        every.tables.append(
            Table([Column("without a score, whose mean is that of the others"), Column("why")], not_scored)
        )
    return [section, delta, every]


def _shorten_names(summary: dict[str, Any]) -> dict[str, Any]:
    """Return curves with short names, which contain the preset only if the codec has several."""
    presets: dict[str, set[Any]] = {}
    for cell in summary["cells"]:
        presets.setdefault(cell["codec"], set()).add(cell["preset"])
    names = {
        cell["curve"]: cell["curve"].partition(" preset ")[0] if len(presets[cell["codec"]]) == 1 else cell["curve"]
        for cell in summary["cells"]
    }

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {names.get(key, key): named(item) for key, item in value.items()}
        if isinstance(value, list):
            return [named(item) for item in value]
        return names.get(value, value) if isinstance(value, str) else value

    return {**summary, **{key: named(summary[key]) for key in ("cells", "at_psnr", "bd_rate")}}


def _tiles(summary: dict[str, Any]) -> list[Tile]:
    at, png = summary["at_psnr"], summary["png"]
    reached = [curve for curve in at["curves"] if curve["size_bytes"]]
    tiles = [Tile(f"{summary['num_frames']:,}", "frames of each setting", f"{len(summary['cells'])} settings")]
    if reached:
        best = min(reached, key=lambda curve: curve["size_bytes"])
        note = f"{png['size_bytes'] / best['size_bytes']:.0f} times less than PNG" if png else ""
        tiles.append(
            Tile(best["curve"], f"smallest at {at['psnr_y_db']:g} dB: {format_bytes(best['size_bytes'])}", note)
        )
        quick = min(reached, key=lambda curve: curve["ms_per_sequence"])
        tiles.append(
            Tile(quick["curve"], "quickest to read", f"{quick['ms_per_sequence']:.1f} ms for a random sequence")
        )
    return tiles


def _group_by_curve(cells: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    curves: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        curves.setdefault(cell["curve"], []).append(cell)
    return {name: sorted(mine, key=lambda cell: float(cell["size_bytes"])) for name, mine in curves.items()}


def _traces(cells: Sequence[dict[str, Any]], y: str, *, lines: bool) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "mode": "lines+markers" if lines else "markers",
            "name": chart_text(name),
            "x": [cell["bytes_per_frame"] / 1e3 for cell in mine],
            "y": [cell[y] for cell in mine],
            "text": [chart_text(cell["cell"]) for cell in mine],
            "hovertemplate": "%{text}<br>%{x:.2f} kB, %{y:.4~f}<extra></extra>",
            "marker": {"color": COLOURS[number % len(COLOURS)], "size": 8},
        }
        for number, (name, mine) in enumerate(_group_by_curve(cells).items())
    ]


def _curves(cells: Sequence[dict[str, Any]], score: str, label: str) -> Chart:
    style = layout("kB per frame", label, xaxis=LOG, height=440, legend=ABOVE)
    caption = f"{label.partition(',')[0]} against size. Higher and further left is better."
    return Chart({"data": _traces(cells, score, lines=True), "layout": style}, caption)


def _reading(cells: Sequence[dict[str, Any]]) -> Chart:
    style = layout(
        "kB per frame", "ms for a random sequence", xaxis=LOG, yaxis={"rangemode": "tozero"}, height=440, legend=ABOVE
    )
    caption = "Reading against size: one thread, files open and in the page cache. Lower and further left is better."
    return Chart({"data": _traces(cells, "ms_per_sequence", lines=False), "layout": style}, caption)


def _bars(summary: dict[str, Any]) -> Chart:
    at, png = summary["at_psnr"], summary["png"]
    sizes = [(curve["curve"], curve["size_bytes"]) for curve in at["curves"] if curve["size_bytes"]]
    sizes += [("png", png["size_bytes"])] if png else []
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": [chart_text(name) for name, _ in sizes],
        "x": [size / 1e6 for _, size in sizes],
        "text": [format_bytes(size) for _, size in sizes],
        "textposition": "auto",
        "hoverinfo": "y+text",
        "marker": {"color": COLOURS[0]},
    }
    style = layout("MB", "", yaxis={"autorange": "reversed", "automargin": True})
    caption = f"Size at {at['psnr_y_db']:g} dB; PNG has no loss." if png else f"Size at {at['psnr_y_db']:g} dB."
    return Chart({"data": [bars], "layout": style}, caption)


def _common_table(summary: dict[str, Any]) -> Table:
    columns = [
        Column(f"at {summary['at_psnr']['psnr_y_db']:g} dB", key="curve"),
        Column("CRF/quality", ONE, "value"),
        Column("size", format_bytes, "size_bytes"),
        *(Column(f"{other} takes", decimals(1, " ×"), other.lower()) for other in ("PNG", "JPEG")),
        Column("ms a random frame", TWO, "ms_per_frame"),
        Column("ms a sequence", ONE, "ms_per_sequence"),
        Column("frames per CPU second", decimals(0), "frames_per_cpu_second"),
    ]
    rows = common_rows(summary)
    return Table.build([each for each in columns if any(row.get(each.key) is not None for row in rows)], rows)


def _delta_table(summary: dict[str, Any], title: str = "by PSNR-Y") -> Table:
    names = list(summary["curves"])
    others = sorted(names, key=lambda name: name != summary["anchor"])
    rows = [
        (name, *(_delta(summary["curves"][name][other]) if name != other else None for other in others))
        for name in names
    ]
    return Table([Column(title), *(Column(f"against {name}") for name in others)], rows)


def _delta(summary: dict[str, Any]) -> str | None:
    return None if summary["mean"] is None else f"{summary['mean']:+.1%} ({count_of(summary['videos'], 'video')})"


def _cells_table(cells: Sequence[dict[str, Any]]) -> Table:
    columns = [
        Column("codec", key="codec"),
        Column("GOP", decimals(0), "gop"),
        Column("preset", key="preset"),
        Column("CRF/quality", decimals(0), "value"),
        Column("bytes per frame", decimals(0), "bytes_per_frame"),
        Column("PSNR-Y", TWO, "psnr_y_db"),
        Column("PSNR-YUV", TWO, "psnr_yuv_db"),
        Column("p1", TWO, "psnr_y_p1_db"),
        Column("SSIM", FOUR, "ssim"),
        *(
            Column(label.partition(",")[0], TWO, score)
            for score, label in OTHER_SCORES.items()
            if any(score in cell for cell in cells)
        ),
        Column("frames per CPU second", decimals(0), "frames_per_cpu_second"),
        Column("ms a random frame", TWO, "ms_per_frame"),
        Column("ms a sequence", ONE, "ms_per_sequence"),
    ]
    return Table.build(columns, cells, sortable=True)
