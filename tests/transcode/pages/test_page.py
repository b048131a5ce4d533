"""A page of figures: what comes from names is text, and numbers sort as numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from vidprep.formats.errors import format_bytes
from vidprep.transcode.pages.page import (
    MARKDOWN_ROWS,
    Chart,
    Column,
    Page,
    Section,
    Table,
    Tile,
    chart_text,
    decimals,
    format_percent,
    render_html,
    render_markdown,
)

HOSTILE = "<script>alert(1)</script> & \x1b[2J [x](javascript:y) |"


def page(rows: int = 3) -> Page:
    table = Table(
        [Column("video"), Column("dB", decimals(2, " dB"))],
        [(HOSTILE, 41.25), ("b", None), *(("c", float(n)) for n in range(rows))],
        sortable=True,
    )
    return Page(HOSTILE, "sub", [Section("Figures", HOSTILE, tiles=[Tile("3", HOSTILE, "note")], tables=[table])])


def test_markup_and_control_characters_of_names_are_shown_and_not_obeyed() -> None:
    written = render_html(page())
    body = written[written.index("<body") :]
    assert "alert(1)" in body and "<script>alert" not in body and "\x1b" not in body
    text = render_markdown(page())
    assert "<script" not in text and "\x1b" not in text and "\\[x\\]" in text


def test_the_page_needs_no_network_and_runs_only_its_own_scripts() -> None:
    written = render_html(page())
    policy = re.search(r'http-equiv="Content-Security-Policy"\s+content="([^"]*)"', written)
    assert policy is not None
    assert "default-src 'none'" in policy[1] and policy[1].count("sha256-") == 3
    assert not re.search(r'<(?:script|img|link)[^>]*(?:src|href)="(?!data:)', written)


def test_numbers_sort_by_value_with_missing_ones_first() -> None:
    cells = page().sections[0].tables[0].cells
    assert cells[0][1] == ("41.25 dB", 41.25)
    assert cells[1][1] == ("–", -1)
    assert page().sections[0].tables[0].is_number == [False, True]
    assert Table([Column("x", decimals(1))], [(float("inf"),)]).cells == [[("lossless", 1e300)]]


def test_long_tables_are_cut_in_markdown_and_it_is_said() -> None:
    text = render_markdown(page(rows=MARKDOWN_ROWS + 5))
    assert text.count("| c |") == MARKDOWN_ROWS - 2
    assert "7 more rows are in the HTML page" in text


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (format_bytes, 1500, "1.5 kB"),
        (format_bytes, 2.5e6, "2.5 MB"),
        (format_bytes, 3.25e9, "3.25 GB"),
        (format_percent, 0.425, "42%"),
        (decimals(1), 1234.56, "1,234.6"),
        (chart_text, "<b>&\n", "&lt;b&gt;&amp;\\n"),
    ],
)
def test_figures_are_written_as_people_read_them(write: Callable[[Any], str], value: Any, expected: str) -> None:
    assert write(value) == expected


def test_a_chart_with_a_number_that_json_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Chart({"data": [float("nan")]}, "").as_json  # noqa: B018
