"""A page of figures: one model, rendered as a single HTML file that needs no network, and as Markdown.

Charts are drawn by plotly and tables sorted by DataTables (as itables ships it), both embedded in the page. Text from
file names or labels is never markup: the template escapes, chart texts are escaped, and the page's
Content-Security-Policy allows only its three scripts, by their SHA-256, and no network access.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from vidprep.formats.errors import MissingError, printable
from vidprep.formats.storage.local import replacing

MARKDOWN_ROWS = 50
COLOURS = (
    "#3b82f6",
    "#f59e0b",
    "#10b981",
    "#ec4899",
    "#8b5cf6",
    "#06b6d4",
    "#ef4444",
    "#84cc16",
    "#64748b",
    "#d97706",
    "#0d9488",
    "#be185d",
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Numbers sort as numbers.

    Attributes:
        show: Formats a value
        key: Key of the value in a row, for `Table.build`
    """

    name: str
    show: Callable[[Any], str] = str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        rows: A value per column for each row
        sortable: Whether it has sorting, search and paging
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    sortable: bool = False

    @classmethod
    def build(cls, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], *, sortable: bool = False) -> Table:
        """Return a table of rows by the keys of its columns; missing keys are empty cells."""
        return cls(columns, [[row.get(column.key) for column in columns] for row in rows], sortable)

    @property
    def is_number(self) -> list[bool]:
        """Return which columns contain numbers."""
        return [any(isinstance(row[n], int | float) for row in self.rows) for n in range(len(self.columns))]

    @property
    def cells(self) -> list[list[tuple[str, float | None]]]:
        """Return the text of each cell, and for numbers the sort value; missing values sort first."""
        of = list(zip(self.columns, self.is_number, strict=True))
        return [
            [_cell(value, column, is_number) for value, (column, is_number) in zip(row, of, strict=True)]
            for row in self.rows
        ]


def _cell(value: Any, column: Column, is_number: bool) -> tuple[str, float | None]:
    if value is None:
        return "–", -1 if is_number else None
    return printable(column.show(value)), min(value, 1e300) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.

    Attributes:
        figure: plotly's traces and layout
        caption: What it shows, and what was left out
    """

    figure: dict[str, Any]
    caption: str

    @property
    def as_json(self) -> str:
        return json.dumps(self.figure, allow_nan=False)


@dataclass(frozen=True, slots=True)
class Tile:
    value: str
    label: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Strip:
    """Pictures side by side.

    Attributes:
        pictures: JPEG files with a caption each
        failed: Why pictures are missing
    """

    title: str
    pictures: Sequence[tuple[str, bytes]] = ()
    failed: str | None = None


@dataclass(slots=True)
class Section:
    title: str
    text: str = ""
    tiles: list[Tile] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    subtitle: str
    sections: Sequence[Section]


def render_html(page: Page) -> str:
    """Return the page as one HTML file. Raises MissingError if extra `report` is not installed."""
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingError(f"a report needs {error.name}: pip install 'vidprep[report]'") from error
    here = files("vidprep.transcode.pages")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["jpeg"] = lambda data: f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
    environment.filters["plain"] = printable
    datatables, datatables_css = _datatables()
    scripts = [get_plotlyjs(), datatables, (here / "page.js").read_text()]
    return environment.from_string((here / "page.html").read_text()).render(
        page=page,
        scripts=scripts,
        hashes=[base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts],
        datatables_css=datatables_css,
        css=(here / "page.css").read_text(),
        version=version("vidprep"),
    )


def _datatables() -> tuple[str, str]:
    """Return DataTables' script, a module that assigns its main export to `window.DataTable`, and its style sheet."""
    try:
        folder = files("itables") / "html"
    except ImportError as error:
        raise MissingError("a report needs itables: pip install 'vidprep[report]'") from error
    script, css = ((folder / f"dt_bundle.{kind}").read_text() for kind in ("js", "css"))
    name = re.search(r"export\s*{[^}]*?([\w$]+) as default", script)
    if name is None:
        raise MissingError(
            f"itables {version('itables')} holds no DataTables that is known here: pip install 'itables<3'"
        )
    return f"{script}\nwindow.DataTable = {name[1]};", css


def render_markdown(page: Page) -> str:
    """Return the page without pictures and charts; long tables are shortened, with a note."""
    lines = [f"# {_literal(page.title)}", "", _literal(page.subtitle), ""]
    for section in page.sections:
        if (section.charts or section.strips) and not section.tiles and not section.tables:
            continue
        lines += [f"## {_literal(section.title)}", ""]
        lines += [_literal(section.text), ""] if section.text else []
        for tile in section.tiles:
            note = f" ({_literal(tile.note)})" if tile.note else ""
            lines.append(f"- **{_literal(tile.value)}** {_literal(tile.label)}{note}")
        lines += [""] if section.tiles else []
        for table in section.tables:
            lines += ["| " + " | ".join(_literal(column.name) for column in table.columns) + " |"]
            lines += ["| " + " | ".join("---" for _ in table.columns) + " |"]
            for row in table.cells[:MARKDOWN_ROWS]:
                lines.append("| " + " | ".join(_literal(text) for text, _ in row) + " |")
            if len(table.rows) > MARKDOWN_ROWS:
                lines.append(f"\n{len(table.rows) - MARKDOWN_ROWS} more rows are in the HTML page.")
            lines.append("")
    return "\n".join(lines)


def _literal(text: str) -> str:
    """Return text escaped for Markdown and HTML in it."""
    return re.sub(r"([\\`*_{}\[\]<>|#~$])", r"\\\1", html.escape(printable(text), quote=False))


def chart_text(text: str) -> str:
    """Return text that plotly does not interpret as tags or entities."""
    return html.escape(printable(text), quote=False)


def format_percent(value: float) -> str:
    return f"{value:.0%}"


def decimals(count: int, unit: str = "") -> Callable[[Any], str]:
    def show(value: Any) -> str:
        return f"{value:,.{count}f}{unit}" if math.isfinite(value) else "lossless"

    return show


_TICKS = [digit * 10.0**power for power in range(-6, 13) for digit in (1, 2, 5)]
LOG = {"type": "log", "tickvals": _TICKS, "ticktext": [f"{tick:,.15g}" for tick in _TICKS]}  # plotly writes 2 for 200


def layout(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Return a plotly layout with titles of axes, in the page's colours."""
    axes = {"xaxis": {"title": {"text": x}, "zeroline": False}, "yaxis": {"title": {"text": y}, "zeroline": False}}
    for name in axes:
        axes[name] |= more.pop(name, {})
    return (
        {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 60, "r": 16, "t": 16, "b": 48},
            "height": 340,
            "hovermode": "closest",
            "colorway": COLOURS,
            "legend": {"orientation": "h", "y": 1.12},
            "font": {"family": "inherit", "size": 13},
        }
        | axes
        | more
    )


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Paths of the files that `report` wrote.

    Attributes:
        html: report.html
        markdown: report.md
        json: report.json
    """

    html: Path
    markdown: Path
    json: Path


def write_page(page: Page, out: Path, known: dict[str, Any]) -> ReportFiles:
    """Write a page as HTML, Markdown and JSON.

    Args:
        page: The page.
        out: The output folder.
        known: Content of report.json.
    """
    written = ReportFiles(out / "report.html", out / "report.md", out / "report.json")
    texts = {
        written.html: render_html(page),
        written.markdown: render_markdown(page),
        written.json: json.dumps(known, indent=1),
    }
    out.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        with replacing(path) as file:
            file.write(text.encode())
    return written
