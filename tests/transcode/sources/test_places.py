"""The source and the destination as a whole, and outputs that two sources want."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from tests.transcode.sources.trees import find_sources, ids, labels_of, touch
from vidprep.formats.errors import SourceError
from vidprep.transcode.sources.unit import SourceList


def exact_names(folder: Path, *files: str) -> None:
    """Make files whose names differ only in a way that some file systems ignore; skip on those."""
    for name in files:
        touch(folder / name)
    if sum(len(found) for _, _, found in os.walk(folder)) < len(files):
        pytest.skip("this file system takes the names for the same")


def test_a_missing_source_is_refused(src: Path, dst: Path) -> None:
    for missing in (src / "nope", touch(src / "x.mp4") / "y.mp4"):
        with pytest.raises(SourceError, match="no such file or folder") as error:
            find_sources(missing, dst)
        assert error.value.path == str(missing)
        assert error.value.stage == "plan"


def test_a_broken_link_as_source_is_refused(src: Path, dst: Path) -> None:
    (src / "x.mp4").symlink_to("nowhere")
    with pytest.raises(SourceError, match="broken link: no such file or folder"):
        find_sources(src / "x.mp4", dst)


def test_an_empty_folder_is_refused(src: Path, dst: Path) -> None:
    with pytest.raises(SourceError, match="no video found; 0 ignored"):
        find_sources(src, dst)


def test_a_folder_without_videos_is_refused_with_the_extensions_seen(src: Path, dst: Path) -> None:
    for name in ("a.TXT", "b.txt", "c.json", "LICENSE", ".git/x"):
        touch(src / name)
    with pytest.raises(SourceError, match=r"no video found; 5 ignored, .*\.txt \(2\)") as error:
        find_sources(src, dst)
    assert ".json (1)" in error.value.message
    assert "none (1)" in error.value.message


def test_one_file_is_tried_whatever_its_name(src: Path, dst: Path) -> None:
    for name, unit_id in (("x.bin", "x"), ("x", "x"), (".hidden.mp4", ".hidden"), ("a.b.dat", "a.b"), ("-y.mp4", "-y")):
        path = touch(src / name)
        found = find_sources(path, dst, exclude=["*"], label_from_folder=True)
        assert [(unit.id, unit.path) for unit in found.units] == [(unit_id, str(path))]
        assert labels_of(found) == [{"label": "src"}]
    assert ids(find_sources(src / "a.b.dat", dst, keep_source_suffix=True)) == ["a.b.dat"]


def test_source_and_destination_must_differ(src: Path, tmp_path: Path) -> None:
    touch(src / "x.mp4")
    (tmp_path / "link").symlink_to(src)
    for destination in (src, tmp_path / "link", src / ".." / "src"):
        with pytest.raises(SourceError, match="is the destination, too"):
            find_sources(src, destination)


def test_a_source_inside_the_destination_is_refused(src: Path, tmp_path: Path) -> None:
    video = touch(src / "a" / "x.mp4")
    (tmp_path / "link").symlink_to(src / "a")
    for source in (src / "a", video, tmp_path / "link", tmp_path / "link" / "x.mp4"):
        with pytest.raises(SourceError, match="is inside the destination"):
            find_sources(source, src)


def test_a_destination_named_like_the_beginning_of_the_source_holds_nothing_of_it(src: Path, tmp_path: Path) -> None:
    touch(src / "x.mp4")
    (tmp_path / "sr").mkdir()
    assert ids(find_sources(src, tmp_path / "sr")) == ["x"]


def test_a_destination_inside_the_source_is_refused(src: Path, tmp_path: Path) -> None:
    touch(src / "x.mp4")
    (tmp_path / "link").symlink_to(src)
    for destination in (src / "out", src / "deep" / "er", tmp_path / "link" / "out"):
        with pytest.raises(SourceError, match=r"holds the destination .*; give a destination outside of it"):
            find_sources(src, destination)
    assert not (src / "out").exists()


def test_a_folder_that_was_made_is_no_source(src: Path, dst: Path) -> None:
    """The second run with another destination took the outputs of the first for sources."""
    touch(src / "x.mp4")
    touch(src / "made" / "x.mp4")
    touch(src / "made" / ".vidprep" / "run.json")
    for source, advice in ((src, "or --exclude it"), (src / "made", "is this DST, and SRC the other")):
        with pytest.raises(SourceError, match=f"is a destination of vidprep.*{advice}"):
            find_sources(source, dst)
    assert ids(find_sources(src, dst, exclude=["made"])) == ["x"]


def test_a_destination_reached_by_another_way_is_skipped_too(src: Path, tmp_path: Path) -> None:
    touch(src / "x.mp4")
    touch(tmp_path / "all" / "out" / "y.mp4")
    (src / "up").symlink_to(tmp_path / "all")
    (tmp_path / "way").symlink_to(tmp_path / "all" / "out")
    assert ids(find_sources(src, tmp_path / "way")) == ["x"]


def problems(found: SourceList) -> dict[str, str]:
    return {Path(path).name: why for path, why in found.problems}


def test_two_sources_with_one_output_are_problems_with_the_way_out(src: Path, dst: Path) -> None:
    """Of a folder of thousands two cost two, and not the run."""
    touch(src / "a" / "x.mp4")
    touch(src / "a" / "x.avi")
    touch(src / "a" / "y.avi")
    found = find_sources(src, dst)
    assert ids(found) == ["a/y"]
    way_out = "too; make them unique with --keep-source-suffix"
    assert problems(found) == {
        "x.avi": f"its output a/x.mp4 is wanted by {src}/a/x.mp4 {way_out}",
        "x.mp4": f"its output a/x.mp4 is wanted by {src}/a/x.avi {way_out}",
    }
    assert ids(find_sources(src, dst, keep_source_suffix=True)) == ["a/x.avi", "a/x.mp4", "a/y.avi"]


def test_only_used_names_collide(src: Path, dst: Path) -> None:
    for name in ("a.mp4", "b.mp4", "z.mp4", "z.avi"):
        touch(src / name)
    found = find_sources(src, dst, limit=2)
    assert ids(found) == ["a", "b"] and not found.problems


def test_names_that_differ_in_case_collide(src: Path, dst: Path) -> None:
    exact_names(src, "X.mp4", "x.mkv", "straße.mp4", "STRASSE.avi", "A/y.mp4", "a/Y.mp4")
    found = find_sources(src, dst)
    assert not found.units and len(found.problems) == 6


def test_names_that_differ_in_unicode_form_collide(src: Path, dst: Path) -> None:
    forms = [unicodedata.normalize(form, "café.mp4") for form in ("NFC", "NFD")]
    exact_names(src, *forms)
    for keep_source_suffix in (False, True):
        found = find_sources(src, dst, keep_source_suffix=keep_source_suffix)
        assert len(problems(found)) == 2 and not found.units
        assert all("--keep-source-suffix does not make all names unique" in why for why in problems(found).values())


def test_an_output_where_another_needs_a_folder_is_a_problem(src: Path, dst: Path) -> None:
    touch(src / "a.avi")
    touch(src / "A.mp4" / "deep" / "x.avi")
    found = find_sources(src, dst)
    assert f"its output a.mp4 is wanted by {src}/A.mp4/deep/x.avi too" in problems(found)["a.avi"]
    assert not found.units and len(found.problems) == 2
    assert ids(find_sources(src, dst, extension="mkv")) == ["A.mp4/deep/x", "a"]


def test_all_of_three_that_want_one_output_are_problems(src: Path, dst: Path) -> None:
    for extension in ("mp4", "avi", "mov"):
        touch(src / f"x.{extension}")
    assert set(problems(find_sources(src, dst))) == {"x.mp4", "x.avi", "x.mov"}


def test_the_same_file_under_two_names_is_two_sources(src: Path, dst: Path) -> None:
    os.link(touch(src / "x.mp4"), src / "y.mp4")
    (src / "z.mp4").symlink_to("x.mp4")
    assert ids(find_sources(src, dst)) == ["x", "y", "z"]


def test_the_same_tree_gives_the_same_list(src: Path, tmp_path: Path, dst: Path) -> None:
    files = [f"{a}/{b}.mp4" for a in "cab" for b in ("z", "y", "é")]
    for name in files:
        touch(src / name)
    for name in reversed(files):
        touch(tmp_path / "again" / name)
    first, second = (find_sources(folder, dst) for folder in (src, tmp_path / "again"))
    assert [unit.id for unit in first.units] == [unit.id for unit in second.units]


def test_an_output_name_that_no_file_system_holds_is_a_problem_of_its_source(src: Path, dst: Path) -> None:
    long = touch(src / ("é" * 126 + ".ts"))  # 255 bytes; .mp4 is one more
    found = find_sources(src, dst)
    assert not found.units
    ((path, why),) = found.problems
    assert path == str(long) and why.endswith("has a name of 256 bytes, more than 255; rename it")
    assert len(find_sources(src, dst, extension="ts").units) == 1
    (src / ("é" * 126 + ".ts")).rename(src / ("é" * 125 + "x.ts"))
    assert len(find_sources(src, dst).units) == 1


@pytest.mark.parametrize("folder", ["manifest.parquet", "manifest-00003-of-00064.parquet", "Manifest.Parquet"])
def test_nothing_is_written_into_a_folder_named_like_a_manifest(src: Path, dst: Path, folder: str) -> None:
    touch(src / folder / "x.mp4")
    found = find_sources(src, dst)
    assert not found.units
    assert ["reserved for vidprep" in why for _, why in found.problems] == [True]
