"""The source and the destination as a whole, and outputs that two sources want."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from tests.transcode.sources.trees import ids, names, touch
from vidprep.formats.errors import SourceError
from vidprep.transcode.sources.listing import find_sources


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
        assert [(unit.id, unit.path, unit.labels) for unit in found.units] == [
            (unit_id, str(path), (("label", "src"),))
        ]
    assert ids(find_sources(src / "a.b.dat", dst, keep_source_suffix=True)) == ["a.b.dat"]


def test_source_and_destination_must_differ(src: Path, tmp_path: Path) -> None:
    touch(src / "x.mp4")
    (tmp_path / "link").symlink_to(src)
    for destination in (src, tmp_path / "link", src / ".." / "src"):
        with pytest.raises(SourceError, match="lies in the destination"):
            find_sources(src, destination)


def test_a_source_inside_the_destination_is_refused(src: Path, tmp_path: Path) -> None:
    video = touch(src / "a" / "x.mp4")
    (tmp_path / "link").symlink_to(src / "a")
    for source in (src / "a", video, tmp_path / "link", tmp_path / "link" / "x.mp4"):
        with pytest.raises(SourceError, match="lies in the destination"):
            find_sources(source, src)


def test_a_destination_named_like_the_beginning_of_the_source_holds_nothing_of_it(src: Path, tmp_path: Path) -> None:
    touch(src / "x.mp4")
    (tmp_path / "sr").mkdir()
    assert ids(find_sources(src, tmp_path / "sr")) == ["x"]


def test_a_destination_inside_the_source_is_skipped_so_that_outputs_are_not_sources(src: Path) -> None:
    touch(src / "x.mp4")
    touch(src / "out" / "x.mp4")
    touch(src / "out" / "deep" / "y.mp4")
    (src / "link").symlink_to(src / "out" / "deep")
    (src / "file.mp4").symlink_to(src / "out" / "x.mp4")
    found = find_sources(src, src / "out")
    assert ids(found) == ["x"]
    assert names(found.ignored) == {"out": "the destination", "link": "the destination", "file.mp4": "the destination"}
    assert ids(find_sources(src, src / "new", exclude=["link", "file.mp4"])) == ["out/deep/y", "out/x", "x"]


def test_a_destination_reached_by_another_way_is_skipped_too(src: Path, tmp_path: Path) -> None:
    touch(src / "x.mp4")
    touch(tmp_path / "all" / "out" / "y.mp4")
    (src / "up").symlink_to(tmp_path / "all")
    (tmp_path / "way").symlink_to(tmp_path / "all" / "out")
    assert ids(find_sources(src, tmp_path / "way")) == ["x"]


def test_two_sources_with_one_output_are_refused_with_the_way_out(src: Path, dst: Path) -> None:
    touch(src / "a" / "x.mp4")
    touch(src / "a" / "x.avi")
    with pytest.raises(SourceError, match=r"outputs that two sources want.*\n") as error:
        find_sources(src, dst)
    assert f"{src}/a/x.avi and {src}/a/x.mp4 -> a/x.mp4" in error.value.message
    assert "tell them apart with --keep-source-suffix" in error.value.message
    assert ids(find_sources(src, dst, keep_source_suffix=True)) == ["a/x.avi", "a/x.mp4"]


def test_names_that_differ_in_case_collide(src: Path, dst: Path) -> None:
    exact_names(src, "X.mp4", "x.mkv", "straße.mp4", "STRASSE.avi", "A/y.mp4", "a/Y.mp4")
    with pytest.raises(SourceError, match=r"outputs that two sources want .*: 3;"):
        find_sources(src, dst)


def test_names_that_differ_in_unicode_form_collide(src: Path, dst: Path) -> None:
    forms = [unicodedata.normalize(form, "café.mp4") for form in ("NFC", "NFD")]
    exact_names(src, *forms)
    with pytest.raises(SourceError, match=r"outputs that two sources want .*: 1;") as error:
        find_sources(src, dst)
    assert "--keep-source-suffix does not tell them apart" in error.value.message
    with pytest.raises(SourceError, match="--keep-source-suffix does not tell them apart"):
        find_sources(src, dst, keep_source_suffix=True)


def test_an_output_where_another_needs_a_folder_is_refused(src: Path, dst: Path) -> None:
    touch(src / "a.avi")
    touch(src / "A.mp4" / "deep" / "x.avi")
    with pytest.raises(SourceError, match=r"outputs that two sources want .*: 1;") as error:
        find_sources(src, dst)
    assert f"{src}/a.avi and {src}/A.mp4/deep/x.avi -> a.mp4" in error.value.message
    assert ids(find_sources(src, dst, extension="mkv")) == ["A.mp4/deep/x", "a"]


def test_five_pairs_are_shown_and_all_counted(src: Path, dst: Path) -> None:
    for number in range(8):
        touch(src / f"{number}.mp4")
        touch(src / f"{number}.avi")
    with pytest.raises(SourceError, match=r"outputs that two sources want .*: 8;") as error:
        find_sources(src, dst)
    assert error.value.message.count(" -> ") == 5


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
    assert ["keeps for itself" in why for _, why in found.problems] == [True]
