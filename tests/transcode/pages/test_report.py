"""`vidprep report`: its figures are those of the manifest, and a real browser opens its page, without a network."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.helpers import environment, make_clip, make_clips, manifest, table, transcode
from vidprep.formats.manifest.remarks import NOTES
from vidprep.formats.manifest.table import MANIFEST_NAME, read_manifest, write_rows

pytestmark = pytest.mark.xdist_group("pages")  # what its fixtures start is started once
HOSTILE = '"><script>document.title="taken"</script><img src=x onerror=document.title="taken">|`*_[x](javascript:1)'


report = partial(transcode, verb="report")


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    return found


def multiplied(made: Path, destination: Path, count: int) -> Path:
    """The same with `count` rows of the same few files, PSNR spread."""
    destination.mkdir()
    shutil.copytree(made / ".vidprep", destination / ".vidprep")
    for name in [path.name for path in made.glob("*.mp4")]:
        os.link(made / name, destination / name)
    first = [row for row in read_manifest(made) if row.status == "ok"]
    rows = [
        dataclasses.replace(
            first[number % len(first)],
            id=f"video{number:06d}",
            psnr_y_db=30 + number % 997 / 50,
            psnr_y_min_db=29 + number % 997 / 50,
        )
        for number in range(count)
    ]
    write_rows(destination / MANIFEST_NAME, None, rows)
    return destination


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = make_clips(tmp_path_factory.mktemp("sources"), 3, 11, size=(96, 64))
    (folder / "torn.mp4").write_bytes(b"no video at all")
    (folder / "torn2.mp4").write_bytes(b"neither is this")
    return folder


@pytest.fixture(scope="module")
def made(sources, tmp_path_factory):
    destination = tmp_path_factory.mktemp("made") / "h264"
    assert transcode(sources, destination, "--gop", 4, "--fps", 20).code == 1
    return destination


@pytest.fixture(scope="module")
def burst(sources, made):
    destination = made.parent / "burst"
    assert transcode(sources, destination, "--fps", 20, verb="burst").code == 1
    return destination


def test_the_figures_are_those_of_the_manifest(made, sources, tmp_path):
    ran = report(made, "--out", tmp_path)
    assert (ran.code, ran.out.strip()) == (0, str(tmp_path / "report.html"))
    (figure,) = told(tmp_path)["destinations"]
    rows = manifest(made).values()
    good = [row for row in rows if row["status"] == "ok"]
    assert figure["videos"] == {
        "ok": 3,
        "failed": 2,
        "warned": sum(not NOTES.issuperset(row["warning_codes"]) for row in good),
    }
    assert figure["bytes"]["outputs"] == sum(path.stat().st_size for path in made.glob("*.mp4"))
    assert figure["bytes"]["sources"] == sum(path.stat().st_size for path in sources.glob("c*.mp4"))
    assert figure["scores"]["psnr_y_db"]["median"] == statistics.median(row["psnr_y_db"] for row in good)
    assert figure["scores"]["psnr_y_p1_db"]["lowest"] == min(row["psnr_y_p1_db"] for row in good)
    assert figure["frames"] == sum(row["num_frames"] for row in good)
    assert [(group["reason"], group["videos"]) for group in figure["failures"]] == [("is not a readable video", 2)]
    assert figure["keyframes"]["videos_that_hold_it"] == 3 and figure["keyframes"]["asked_interval"] == 4
    assert figure["stills"]["sampled_videos"] == 3 and figure["stills"]["png_bytes"] > figure["stills"]["jpeg_bytes"]
    worst = sorted(good, key=lambda row: row["psnr_y_min_db"])
    assert figure["worst_frames"] == [{"id": row["id"], "frame": row["worst_frame"]} for row in worst]
    markdown = (tmp_path / "report.md").read_text()
    assert "3 ok" in markdown and "not a readable video" in markdown


@pytest.mark.long
def test_a_browser_draws_sorts_filters_and_shows_the_worst_frames(made, browser, tmp_path):
    assert report(made, "--out", tmp_path, "--title", "of tests").code == 0
    browser.open(tmp_path / "report.html")
    assert browser.driver.title == "of tests"
    marks = "return document.querySelectorAll('[data-figure] .main-svg .points > *, [data-figure] .scatterlayer path').length"
    assert browser.run(marks) >= 3 + 4
    charts = browser.run("return document.querySelectorAll('[data-figure]').length")
    assert charts == 2 == browser.run("return document.querySelectorAll('[data-figure].js-plotly-plot').length")
    widths = browser.run(
        "return [...document.querySelectorAll('.strip img')].map(i => i.complete ? i.naturalWidth : 0)"
    )
    assert widths == [96] * 18  # source, output and difference of three of the worst, and of three random frames

    header = "document.querySelectorAll('table.sortable thead th')[3]"
    before = browser.column(3)
    browser.run(f"{header}.click()")
    assert browser.column(3) == sorted(before, key=float)
    browser.run(f"{header}.click()")
    assert browser.column(3) == sorted(before, key=float, reverse=True)
    field = "document.querySelector('.dt-search input')"
    browser.run(f"{field}.value = 'c01'; {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    time.sleep(0.5)
    assert browser.column(0) == ["c01"]


@pytest.mark.long
def test_failures_precede_pictures_and_warnings_are_counted_once(made, tmp_path):
    """The tile counted videos with warnings, and the table beside it notes too."""
    assert report(made, "--out", tmp_path).code == 0
    (figure,) = json.loads((tmp_path / "report.json").read_text())["destinations"]
    rows = [row for row in manifest(made).values() if row["status"] == "ok"]
    counted = {name: sum(group["videos"] for group in figure[name]) for name in ("warnings", "notes")}
    codes = [code for row in rows for code in row["warning_codes"]]
    assert counted == {
        "notes": sum(code in NOTES for code in codes),
        "warnings": sum(code not in NOTES for code in codes),
    }
    titles = re.findall(r"<h2>(.*?)</h2>", (tmp_path / "report.html").read_text())
    first = [
        "At a glance",
        "Failures",
        "Warnings",
        *["Notes"] * bool(counted["notes"]),
        "Validation",
        "Size and quality",
        "Worst frames",
    ]
    assert titles[: len(first)] == first


@pytest.mark.long
def test_dark_and_light_follow_the_reader(made, browser, tmp_path):
    assert report(made, "--out", tmp_path).code == 0
    seen = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.open(tmp_path / "report.html")
        paper, ink, axis = browser.run(
            "const of = (what, name) => getComputedStyle(what)[name];"
            "return [of(document.body, 'backgroundColor'), of(document.body, 'color'), of(document.querySelector('.xtick text'), 'fill')]"
        )
        seen[scheme] = [sum(map(int, colour[4:-1].split(","))) for colour in (paper, ink, axis)]
    assert seen["light"][0] > 600 > 200 > seen["light"][1] and seen["dark"][0] < 150 < 600 < seen["dark"][1]
    assert seen["light"][2] < 400 < seen["dark"][2]


@pytest.mark.long
def test_names_are_text_and_never_markup(browser, tmp_path):
    source = make_clip(tmp_path / "clips" / f"{HOSTILE.replace('/', '')}.mp4", 6)
    make_clip(source.parent / "torn</script><script>document.title='taken'.mp4", 6)  # a folder `torn<`
    destination = tmp_path / "made"
    transcode(source.parent, destination)
    assert report(destination, "--title", HOSTILE).code == 0
    browser.open(destination / "report.html")
    assert browser.driver.title == HOSTILE
    assert browser.run("return document.querySelectorAll('img').length") == 12
    assert browser.run("return document.querySelectorAll('script').length") == 3
    assert browser.run("return document.body.textContent").count('onerror=document.title="taken"') >= 3
    last = "[...document.querySelectorAll('.js-plotly-plot')].at(-1)"
    browser.run(f"Plotly.Fx.hover({last}, [{{curveNumber: 0, pointNumber: 0}}], 'xy')")
    time.sleep(0.3)
    shown = browser.run(f"return {last}.querySelector('.hoverlayer').textContent")
    assert 'onerror=document.title="taken"' in shown or "torn</script><script>" in shown
    assert browser.driver.title == HOSTILE
    for line in (destination / "report.md").read_text().splitlines():
        assert "<" not in line and "](" not in line.replace("\\]", ""), line


@pytest.mark.long
def test_several_destinations_stand_side_by_side(made, burst, browser, tmp_path):
    ran = report(made, burst, "--out", tmp_path)
    assert ran.code == 0
    first, second = told(tmp_path)["destinations"]
    assert [first["holds"], second["holds"]] == ["videos", "frames"]
    assert first["stills"]["png_bytes"] == second["stills"]["png_bytes"], "the same frames"
    browser.open(tmp_path / "report.html")
    text = browser.run("return document.body.innerText")
    titles = re.findall(r"<h2>(.*?)</h2>", (tmp_path / "report.html").read_text())
    assert len(titles) == len(set(titles)) and {"At a glance", "Failures", "Worst frames"} <= {*titles}
    head = browser.run(
        "return [...document.querySelectorAll('section')[0].querySelectorAll('th')].map(x => x.innerText)"
    )
    assert head == ["", "h264", "burst"]
    assert "h264: " in text and "burst: " in text
    assert set(browser.column(0)) == {"h264", "burst"}
    assert report(made, "--out", tmp_path / "one").code == 0
    for page in (tmp_path, tmp_path / "one"):
        phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        browser.open(page / "report.html")
        assert browser.run("return document.querySelector('section').getBoundingClientRect().bottom") < 844, page
        assert browser.run("return document.documentElement.scrollWidth") == 390
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    twice = report(made, f"{made}/", "--out", tmp_path)
    assert (twice.code, "given twice" in twice.err) == (2, True)


def test_the_page_contains_the_results_of_validate(sources, made, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    (copy / "c01.mp4").write_bytes((copy / "c01.mp4").read_bytes()[:-9])
    assert transcode(sources, copy, verb="validate").code == 1
    assert report(copy).code == 0
    (figure,) = told(copy)["destinations"]
    assert figure["validation"]["videos"] == 3
    assert any("c01" in fault for fault in figure["validation"]["faults"])
    assert any("c01" in line and "fault" not in line for line in (copy / "report.md").read_text().splitlines())
    again = transcode(sources, made, verb="validate")
    assert again.code == 0, again.err


@pytest.mark.long
def test_a_report_in_a_destination_is_no_fault_of_it(sources, made, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    assert report(copy).code == 0
    checked = transcode(sources, copy, verb="validate")
    assert (checked.code, checked.out) == (0, "")
    assert transcode(sources, copy, "--gop", 4, "--fps", 20).code == 1  # resumes: the page is no stranger's file


def test_a_changed_source_is_not_shown_as_if_it_were_the_one_that_was_read(sources, tmp_path):
    clips = tmp_path / "clips"
    clips.mkdir()
    shutil.copy(sources / "c00.mp4", clips / "c.mp4")
    assert transcode(clips, tmp_path / "made").code == 0
    shutil.copy(sources / "c01.mp4", clips / "c.mp4")
    assert report(tmp_path / "made").code == 0
    assert "is not the file that was read" in (tmp_path / "made" / "report.html").read_text()


@pytest.mark.long
def test_a_page_of_a_thousand_videos_holds_little_more_than_one_of_ten(made, browser, tmp_path):
    """So that it opens about as quickly: rows of tables are made when they are shown."""
    elements = []
    for count in (10, 1000):
        destination = multiplied(made, tmp_path / str(count), count)
        assert report(destination, "--worst", 6).code == 0
        page = destination / "report.html"
        assert page.stat().st_size < 8e6
        browser.open(page)
        elements.append(browser.run("return document.querySelectorAll('*').length"))
    assert elements[1] < elements[0] + 3 * 990, elements  # a point in charts; a row of a table has over ten
    assert browser.run("return document.querySelector('.dt-info').textContent") == "Showing 1 to 25 of 1,000 entries"


@pytest.mark.long
def test_very_many_rows_are_sampled_and_it_is_said(made, browser, tmp_path):
    destination = multiplied(made, tmp_path / "huge", 20_000)
    ran = report(destination)
    assert ran.code == 0
    (figure,) = told(destination)["destinations"]
    assert figure["videos"]["ok"] == 20_000
    page = destination / "report.html"
    assert page.stat().st_size < 8e6
    browser.open(page)
    text = browser.run("return document.body.innerText")
    assert "The 1,000 of the lowest PSNR-Y, of 20,000" in text and "17,000 videos left out" in text


def test_an_invalid_destination_is_reported(tmp_path):
    ran = report(tmp_path)
    assert ran.code == 2 and "was not made by vidprep" in ran.err and str(tmp_path) in ran.err


@pytest.mark.long
def test_without_its_extra_the_command_names_it(made, tmp_path):
    script = (
        "import sys; sys.modules[sys.argv[1]] = None; from vidprep.transcode.cli.main import main; main(sys.argv[2:])"
    )
    for name in ("plotly", "PIL"):
        arguments = [sys.executable, "-c", script, name, "report", str(made), "--out", str(tmp_path / "out")]
        ran = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment())
        assert ran.returncode == 2, ran.stderr
        assert "pip install 'vidprep[report]'" in ran.stderr and "Traceback" not in ran.stderr
    assert not (tmp_path / "out").exists()


def test_the_bytes_of_an_unwritten_page_are_never_under_its_name(made, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.md").mkdir()
    ran = report(made, "--out", out)
    assert ran.code == 2 and "report.md" in ran.err
    assert sorted(path.name for path in out.iterdir()) in (["report.html", "report.md"], ["report.md"])


def test_columns_of_the_manifest_suffice_for_the_figures(made):
    from vidprep.transcode.pages._figures import COLUMNS

    assert set(COLUMNS) - {"labels"} <= set(pq.read_schema(made / MANIFEST_NAME).names)


def test_classes_and_splits_are_counted(sources, tmp_path):
    rows = [
        {"path": path, "label": label, "split": split}
        for path, label, split in zip(sorted(sources.glob("c*.mp4")), "aab", ("train", "val", "train"), strict=True)
    ]
    assert transcode(table(tmp_path / "t.csv", rows), tmp_path / "dst").code == 0
    assert report(tmp_path / "dst").code == 0
    found = told(tmp_path / "dst")["destinations"][0]["classes"]
    cells = [(cell["class"], cell["split"], cell["videos"]) for cell in found["cells"]]
    assert cells == [("a", "train", 1), ("a", "val", 1), ("b", "train", 1)] and found["splits"] == ["train", "val"]
    text = (tmp_path / "dst" / "report.md").read_text()
    assert "2 classes in 2 splits. 1 class lacks a split, such as b." in text
    assert "| all | 3 |" in text.replace("**", "")


def test_a_table_of_clips_is_shown_with_its_pictures(tmp_path, browser):
    sources, clips = make_clips(tmp_path / "raw", 3), tmp_path / "clips.csv"
    assert transcode(sources, clips, "--clip-frames", 2, "--quiet", verb="scan").code == 0
    ran = transcode(clips, "--quiet", verb="report")
    assert ran.code == 0, ran.err
    count = len(clips.read_text().splitlines()) - 1
    assert told(tmp_path)["clips"] == count
    browser.open(tmp_path / "report.html")
    assert browser.run("return [...document.images].every(image => image.complete && image.naturalWidth)")
    shown = browser.run("return [...document.querySelectorAll('.strip figcaption')].map(each => each.textContent)")
    assert sum("_f0000" in each for each in shown) >= count
    assert browser.run("return document.querySelectorAll('.charts > figure').length") >= 10


def test_a_table_that_is_none_of_clips_is_refused(tmp_path):
    ran = transcode(table(tmp_path / "x.csv", [{"path": "a.mp4"}]), verb="report")
    assert ran.code == 2
    assert "is no table of clips" in ran.err


def test_groups_in_two_splits_are_counted(tmp_path):
    make_clips(tmp_path / "raw", 4)
    splits = zip(range(4), "ggab", ("train", "val", "train", "val"), strict=True)
    rows = [{"path": f"raw/c0{n}.mp4", "duplicate_group": group, "split": split} for n, group, split in splits]
    assert transcode(table(tmp_path / "t.csv", rows), tmp_path / "out", "--quiet").code == 0
    assert transcode(tmp_path / "out", "--quiet", verb="report").code == 0
    assert told(tmp_path / "out")["destinations"][0]["classes"]["groups_in_two_splits"] == ["g"]
    assert "1 group of clips that show the same stand in two splits" in (tmp_path / "out/report.md").read_text()
