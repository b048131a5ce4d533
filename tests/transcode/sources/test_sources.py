"""Sources: what becomes a unit, what is left out, and what stops a run before it starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vidprep.formats.errors import SettingsError, SourceError
from vidprep.transcode.sources import search
from vidprep.transcode.sources.listing import find_sources
from vidprep.transcode.sources.unit import SourceList, Unit

as_user = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")


@pytest.fixture
def src(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    return folder


@pytest.fixture
def dst(tmp_path: Path) -> Path:
    """Not made yet, as before a first run."""
    return tmp_path / "dst"


def touch(path: Path, size: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def ids(found: SourceList) -> list[str]:
    return sorted(unit.id for unit in found.units)


def names(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Base name -> reason."""
    return {Path(path).name: reason for path, reason in pairs}


def exact_names(folder: Path, *files: str) -> None:
    """Make files whose names differ only in a way that some file systems ignore; skip on those."""
    for name in files:
        touch(folder / name)
    if sum(len(found) for _, _, found in os.walk(folder)) < len(files):
        pytest.skip("this file system takes the names for the same")


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The same rows in the format that the suffix asks for."""
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            writer.writerows(rows)
    return path


# ---- folder


def test_a_folder_gives_its_videos_by_relative_name_without_the_last_suffix(src: Path, dst: Path) -> None:
    for name in ("x.mp4", "a/b/y.MKV", "a/z.tar.webm"):
        touch(src / name)
    assert ids(find_sources(src, dst)) == ["a/b/y", "a/z.tar", "x"]


def test_a_unit_carries_absolute_path_size_and_mtime(src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = touch(src / "x.mp4", size=7)
    os.utime(video, ns=(5, 1_234_567_890_123_456_789))
    monkeypatch.chdir(src.parent)
    assert find_sources(Path("src"), Path("dst")).units == (Unit("x", str(video), 7, 1_234_567_890_123_456_789),)


def test_largest_come_first_and_equal_sizes_by_id(src: Path, dst: Path) -> None:
    for name, size in (("b", 5), ("a", 5), ("big", 9), ("z", 0), ("c", 5)):
        touch(src / f"{name}.mp4", size)
    assert [unit.id for unit in find_sources(src, dst).units] == ["big", "a", "b", "c", "z"]


def test_what_is_no_video_is_ignored_by_name(src: Path, dst: Path) -> None:
    for name in ("x.mp4", "notes.txt", "README", ".hidden.mp4", ".cache/y.mp4", ".vidprep/z.mp4"):
        touch(src / name)
    found = find_sources(src, dst)
    assert ids(found) == ["x"]
    assert names(found.ignored) == {
        "notes.txt": "unknown extension",
        "README": "unknown extension",
        ".hidden.mp4": "hidden name",
        ".cache": "hidden name",
        ".vidprep": "hidden name",
    }
    assert found.ignored == tuple(sorted(found.ignored))
    assert found.problems == ()


def test_video_extensions_are_known_in_any_case(src: Path, dst: Path) -> None:
    known = (
        "mp4 m4v mov mkv webm avi wmv asf flv f4v mpg mpeg m2v vob ts m2ts mts mxf 3gp 3g2 ogv ogg y4m gif dv rm rmvb"
        " divx ivf h264 264 hevc h265 av1 obu mjpeg mjpg"
    )
    for extension in known.split():
        touch(src / "lower" / f"x.{extension}")
        touch(src / "UPPER" / f"x.{extension.upper()}")
    found = find_sources(src, dst, keep_source_suffix=True)
    assert (len(found.units), found.ignored) == (2 * len(known.split()), ())


def test_a_folder_named_like_a_video_is_a_folder(src: Path, dst: Path) -> None:
    touch(src / "a.mp4" / "x.avi")
    assert ids(find_sources(src, dst)) == ["a.mp4/x"]


def test_an_empty_file_is_an_ordinary_unit(src: Path, dst: Path) -> None:
    touch(src / "x.mp4", size=0)
    assert find_sources(src, dst).units[0].size_bytes == 0


@pytest.mark.parametrize(
    "name",
    ["-x", "--crf", " x ", "a b", "quo'te", 'quo"te', "new\nline", "%03d", "*", "[a-z]", "a:b", "http:x", "concat:x|y",
     "data:x", "naïve", "视频", "back\\slash", "x.", "100%", "$HOME", "\x7f"],
)  # fmt: skip
def test_f24_odd_names_are_plain_names(src: Path, dst: Path, name: str) -> None:
    """Fault F24."""
    touch(src / "a" / f"{name}.mp4")
    (unit,) = find_sources(src, dst).units
    assert unit.id == f"a/{name}"
    assert unit.path == f"{src}/a/{name}.mp4"


def test_globs_match_relative_path_or_base_name_with_case(src: Path, dst: Path) -> None:
    for name in ("a/x.mp4", "a/X.mp4", "b/x.mkv", "b/y.mp4"):
        touch(src / name)
    if len(list((src / "a").iterdir())) < 2:
        pytest.skip("this file system takes the names for the same")
    options: dict[str, Any] = {"keep_source_suffix": True}
    assert ids(find_sources(src, dst, include=["x.*"], **options)) == ["a/x.mp4", "b/x.mkv"]
    assert ids(find_sources(src, dst, include=["a/x.mp4", "y*"], **options)) == ["a/x.mp4", "b/y.mp4"]
    found = find_sources(src, dst, include=["*.mp4"], exclude=["X*", "b/*"])
    assert ids(found) == ["a/x"]
    assert names(found.ignored) == {"X.mp4": "excluded", "x.mkv": "not included", "y.mp4": "excluded"}


def test_an_excluded_folder_is_not_entered(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    touch(src / "a" / "lost+found" / "y.mp4")
    found = find_sources(src, dst, exclude=["lost+found"])
    assert ids(found) == ["x"]
    assert found.ignored == ((str(src / "a" / "lost+found"), "excluded"),)


def test_limit_takes_the_first_by_id_whatever_their_sizes(src: Path, dst: Path) -> None:
    for size, name in enumerate("edcba"):
        touch(src / f"{name}.mp4", size)
    assert [unit.id for unit in find_sources(src, dst, limit=2).units] == ["a", "b"]
    assert len(find_sources(src, dst, limit=99).units) == 5
    with pytest.raises(SettingsError, match="--limit 0"):
        find_sources(src, dst, limit=0)


def test_label_is_the_parent_folder(src: Path, dst: Path) -> None:
    for name in ("x.mp4", "run/y.mp4", "sport/run/z.mp4"):
        touch(src / name)
    found = find_sources(src, dst, label_from_folder=True)
    assert {unit.id: unit.labels for unit in found.units} == {
        "x": (("label", "src"),),
        "run/y": (("label", "run"),),
        "sport/run/z": (("label", "run"),),
    }


def test_progress_is_told_every_ten_thousand_files(src: Path, dst: Path) -> None:
    """20,000 files: also a check that planning does not cost milliseconds per file."""
    for number in range(20_000):
        os.close(os.open(f"{src}/{number:05d}.mp4", os.O_CREAT | os.O_WRONLY))
    told: list[int] = []
    found = find_sources(src, dst, progress=told.append)
    assert told == [10_000, 20_000]
    assert len(found.units) == 20_000
    assert [unit.id for unit in found.units] == sorted(unit.id for unit in found.units)


def test_a_failing_progress_callback_is_not_taken_for_a_folder_that_cannot_be_read(
    src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "PROGRESS_EVERY", 1)
    touch(src / "x.mp4")

    def broken(count: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        find_sources(src, dst, progress=broken)


# ---- links, FIFOs and what cannot be read (fault F36)


def test_links_to_files_and_folders_are_followed_and_keep_their_own_names(src: Path, dst: Path, tmp_path: Path) -> None:
    real = touch(tmp_path / "elsewhere" / "y.mp4", size=3)
    (src / "folder").symlink_to(real.parent)
    (src / "file.mp4").symlink_to(real)
    found = find_sources(src, dst)
    assert [(unit.id, unit.path, unit.size_bytes) for unit in found.units] == [
        ("file", f"{src}/file.mp4", 3),
        ("folder/y", f"{src}/folder/y.mp4", 3),
    ]


def test_links_in_a_circle_end(src: Path, dst: Path) -> None:
    touch(src / "a" / "x.mp4")
    touch(src / "b" / "y.mp4")
    (src / "a" / "up").symlink_to(src)
    (src / "a" / "self").symlink_to(".")
    (src / "a" / "other").symlink_to(src / "b")
    (src / "b" / "back").symlink_to(src / "a")
    found = find_sources(src, dst)
    assert ids(found) == ["a/other/y", "a/x", "b/back/x", "b/y"]
    assert set(names(found.ignored).values()) == {"a link back to a folder that it lies in"}


def test_f36_a_broken_link_with_a_video_name_is_a_problem_and_else_ignored(src: Path, dst: Path) -> None:
    (src / "x.mp4").symlink_to("nowhere.mp4")
    (src / "loop.mp4").symlink_to("loop.mp4")
    (src / "folder").symlink_to("nowhere")
    found = find_sources(src, dst)
    assert found.units == ()
    assert set(names(found.problems)) == {"x.mp4", "loop.mp4"}
    assert names(found.problems)["x.mp4"] == "broken link: no such file or folder"
    assert names(found.ignored) == {"folder": "broken link: no such file or folder"}


def test_an_excluded_broken_link_is_no_problem(src: Path, dst: Path) -> None:
    touch(src / "y.mp4")
    (src / "x.mp4").symlink_to("nowhere.mp4")
    found = find_sources(src, dst, exclude=["x.mp4"])
    assert (found.problems, names(found.ignored)) == ((), {"x.mp4": "excluded"})


@pytest.mark.parametrize("kind", ["FIFO", "socket"])
def test_f36_a_fifo_or_socket_is_never_opened(src: Path, dst: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(src)  # a socket takes only a short path
    if kind == "FIFO":
        os.mkfifo("x.mp4")
        os.mkfifo("log")
    else:
        for name in ("x.mp4", "log"):
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(name)
    found = find_sources(src, dst)
    assert found.problems == ((str(src / "x.mp4"), f"not a regular file: a {kind}"),)
    assert names(found.ignored) == {"log": "unknown extension"}
    with pytest.raises(SourceError, match=f"not a regular file: a {kind}"):
        find_sources(src / "x.mp4", dst)


def test_f36_a_link_to_a_device_is_a_problem(src: Path, dst: Path) -> None:
    (src / "x.mp4").symlink_to("/dev/null")
    assert find_sources(src, dst).problems == ((str(src / "x.mp4"), "not a regular file: a device"),)


def test_f36_a_file_that_may_not_be_read_is_a_problem(src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(src / "x.mp4")
    touch(src / "y.mp4")
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("x.mp4"))
    found = find_sources(src, dst)
    assert ids(found) == ["y"]
    assert found.problems == ((str(src / "x.mp4"), "cannot be read: no permission"),)
    with pytest.raises(SourceError, match="no permission"):
        find_sources(src / "x.mp4", dst)


@as_user
def test_f36_missing_permissions_are_problems(src: Path, dst: Path) -> None:
    touch(src / "a" / "x.mp4").chmod(0)
    touch(src / "closed" / "y.mp4")
    (src / "closed").chmod(0)
    found = find_sources(src, dst)
    (src / "closed").chmod(0o700)
    assert set(names(found.problems)) == {"x.mp4", "closed"}


@pytest.fixture
def deep(src: Path) -> Iterator[Path]:
    """A folder so deep that nobody can reach its end by path: a real one that cannot be listed, for root too."""
    here = os.open(src, os.O_RDONLY)
    for _ in range(18):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    yield src
    subprocess.run(["rm", "-rf", src], check=True)


def test_a_subfolder_that_cannot_be_listed_is_a_problem(deep: Path, dst: Path) -> None:
    touch(deep / "x.mp4")
    found = find_sources(deep, dst)
    assert ids(found) == ["x"]
    ((path, reason),) = found.problems
    assert path.endswith("/" + "d" * 250)
    assert reason == "cannot be read: File name too long"
    assert find_sources(deep, dst, exclude=["d*"]).problems == ()


def test_a_subfolder_that_may_not_be_listed_is_a_problem(src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(src / "x.mp4")
    (src / "closed").mkdir()
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = find_sources(src, dst)
    assert ids(found) == ["x"]
    reason = "folder cannot be listed: Permission denied; allow it, or --exclude it"
    assert found.problems == ((str(src / "closed"), reason),)
    with pytest.raises(SourceError, match="folder cannot be listed: Permission denied"):
        find_sources(src / "closed", dst)


def test_a_tree_deeper_than_python_recurses_is_walked(src: Path, dst: Path) -> None:
    depth = sys.getrecursionlimit() + 100
    for level in range(1, depth + 1):
        Path(f"{src}/{'a/' * level}").mkdir()
    touch(src / ("a/" * depth) / "x.mp4")
    found = find_sources(src, dst)
    subprocess.run(["rm", "-rf", src], check=True)  # shutil.rmtree recurses, and so would pytest's own tidying
    assert ids(found) == ["a/" * depth + "x"]


def test_a_name_that_is_not_utf8_is_a_problem_with_an_escaped_name(src: Path, dst: Path) -> None:
    try:
        touch(src / os.fsdecode(b"caf\xe9.mp4"))
        touch(src / os.fsdecode(b"caf\xe9.txt"))
        touch(src / os.fsdecode(b"d\xff") / "x.mp4")
    except OSError:
        pytest.skip("this file system holds only UTF-8 names")
    touch(src / "café.mp4")
    found = find_sources(src, dst)
    assert ids(found) == ["café"]
    assert len(found.problems) == 2
    for path, reason in found.problems + found.ignored:
        path.encode()
        assert "\\udc" in path
        assert "rename it" in reason or reason == "unknown extension"


# ---- the source as a whole


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


def test_f36_an_empty_folder_is_refused(src: Path, dst: Path) -> None:
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


# ---- the destination


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


# ---- collisions (fault F17)


def test_f17_two_sources_with_one_output_are_refused_with_the_way_out(src: Path, dst: Path) -> None:
    touch(src / "a" / "x.mp4")
    touch(src / "a" / "x.avi")
    with pytest.raises(SourceError, match=r"outputs that two sources want.*\n") as error:
        find_sources(src, dst)
    assert f"{src}/a/x.avi and {src}/a/x.mp4 -> a/x.mp4" in error.value.message
    assert "tell them apart with --keep-source-suffix" in error.value.message
    assert ids(find_sources(src, dst, keep_source_suffix=True)) == ["a/x.avi", "a/x.mp4"]


def test_f17_names_that_differ_in_case_collide(src: Path, dst: Path) -> None:
    exact_names(src, "X.mp4", "x.mkv", "straße.mp4", "STRASSE.avi", "A/y.mp4", "a/Y.mp4")
    with pytest.raises(SourceError, match=r"outputs that two sources want .*: 3;"):
        find_sources(src, dst)


def test_f17_names_that_differ_in_unicode_form_collide(src: Path, dst: Path) -> None:
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


def test_f17_an_output_name_that_no_file_system_holds_is_a_problem_of_its_source(src: Path, dst: Path) -> None:
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


# ---- tables

FORMATS = [".csv", ".parquet", ".jsonl"]
ROWS: list[dict[str, Any]] = [
    {"path": "a/x.mp4", "label": "run", "split": 1, "score": 0.5, "good": True},
    {"path": "y.mkv", "label": None, "split": 2, "score": None, "good": False},
]


@pytest.mark.parametrize("suffix", [*FORMATS, ".CSV"])
def test_a_table_gives_a_unit_per_row_with_its_labels(src: Path, dst: Path, suffix: str) -> None:
    touch(src / "a" / "x.mp4", 2)
    touch(src / "y.mkv")
    table = write_table(src / f"list{suffix}", ROWS)
    found = find_sources(table, dst)
    assert [(unit.id, unit.path) for unit in found.units] == [("a/x", f"{src}/a/x.mp4"), ("y", f"{src}/y.mkv")]
    assert [unit.labels for unit in found.units] == [
        (("label", "run"), ("split", 1), ("score", 0.5), ("good", True)),
        (("label", None), ("split", 2), ("score", None), ("good", False)),
    ]
    kinds = [type(value) for _, value in found.units[0].labels]
    assert kinds == [str, int, float, bool]


@pytest.mark.parametrize("suffix", FORMATS)
def test_cuts_of_one_film_are_named_by_their_milliseconds(src: Path, dst: Path, suffix: str) -> None:
    touch(src / "a" / "film.mp4")
    times = [(1.5, 2.0), (None, 3.25), (4.0, None), (None, None), (0.0, 1.0005), (1.0015, 36000.0)]
    rows = [{"path": "a/film.mp4", "start": start, "end": end} for start, end in times]
    found = find_sources(write_table(src / f"cuts{suffix}", rows), dst)
    assert {unit.id: (unit.start_seconds, unit.end_seconds) for unit in found.units} == {
        "a/film_00001500_00002000": (1.5, 2.0),
        "a/film_00000000_00003250": (None, 3.25),
        "a/film_00004000_end": (4.0, None),
        "a/film": (None, None),
        "a/film_00000000_00001001": (0.0, 1.0005),
        "a/film_00001002_36000000": (1.0015, 36000.0),
    }
    assert all(unit.labels == () for unit in found.units)


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_id_names_the_output_and_a_row_without_one_falls_back(src: Path, dst: Path, suffix: str) -> None:
    touch(src / "x.mp4")
    rows: list[dict[str, Any]] = [
        {"path": "x.mp4", "id": "own/näme one", "start": 1.0, "end": 2.0},
        {"path": "x.mp4", "id": "007", "start": None, "end": None},
        {"path": "x.mp4", "id": None, "start": 1.0, "end": 2.0},
    ]
    assert ids(find_sources(write_table(src / f"t{suffix}", rows), dst)) == [
        "007",
        "own/näme one",
        "x_00001000_00002000",
    ]


def test_whole_numbers_are_good_ids(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    for suffix in FORMATS:
        assert ids(find_sources(write_table(src / f"t{suffix}", [{"path": "x.mp4", "id": 12}]), dst)) == ["12"]


def test_relative_paths_start_at_the_table_and_others_give_their_base_name(
    src: Path, dst: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    touch(src / "a" / "x.mp4")
    other = touch(tmp_path / "other" / "y.mp4")
    rows: list[dict[str, Any]] = [
        {"path": "./a/../a/x.mp4"},
        {"path": "../other/y.mp4", "start": 1},
        {"path": str(other)},
        {"path": f"{src}/a/x.mp4", "end": 2},
    ]
    found = find_sources(write_table(src / "t.csv", rows), dst)
    assert {unit.id: unit.path for unit in found.units} == {
        "a/x": f"{src}/a/x.mp4",
        "y_00001000_end": str(other),
        "y": str(other),
        "a/x_00000000_00002000": f"{src}/a/x.mp4",
    }


def test_any_extension_may_stand_in_a_table_and_suffixes_can_be_kept(src: Path, dst: Path) -> None:
    touch(src / "x.dat")
    touch(src / "x.bin")
    table = write_table(src / "t.csv", [{"path": "x.dat"}, {"path": "x.bin", "start": 1}])
    assert ids(find_sources(table, dst)) == ["x", "x_00001000_end"]
    assert ids(find_sources(table, dst, keep_source_suffix=True)) == ["x.bin_00001000_end", "x.dat"]


def test_globs_choose_rows_of_a_table(src: Path, dst: Path) -> None:
    for name in ("a/x.mp4", "b/y.mp4", "b/z.mkv"):
        touch(src / name)
    table = write_table(src / "t.csv", [{"path": name} for name in ("a/x.mp4", "b/y.mp4", "b/z.mkv")])
    found = find_sources(table, dst, include=["*.mp4"], exclude=["a/*"])
    assert ids(found) == ["b/y"]
    assert names(found.ignored) == {"x.mp4": "t.csv row 1: excluded", "z.mkv": "t.csv row 3: not included"}


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_that_name_no_readable_file_are_problems_not_the_end(src: Path, dst: Path, suffix: str) -> None:
    touch(src / "x.mp4")
    os.mkfifo(src / "fifo.mp4")
    (src / "link.mp4").symlink_to("nowhere")
    rows: list[dict[str, Any]] = [
        {"path": name} for name in ("x.mp4", "gone.mp4", "fifo.mp4", ".", "link.mp4", "x.mp4/y.mp4")
    ]
    found = find_sources(write_table(src / f"t{suffix}", rows), dst)
    assert ids(found) == ["x"]
    assert dict(found.problems) == {
        f"{src}/gone.mp4": f"t{suffix} row 2: no such file or folder",
        f"{src}/fifo.mp4": f"t{suffix} row 3: not a regular file: a FIFO",
        f"{src}": f"t{suffix} row 4: not a regular file: a folder",
        f"{src}/link.mp4": f"t{suffix} row 5: broken link: no such file or folder",
        f"{src}/x.mp4/y.mp4": f"t{suffix} row 6: no such file or folder",
    }


def test_a_table_of_missing_files_only_is_a_list_of_problems(src: Path, dst: Path) -> None:
    found = find_sources(write_table(src / "t.csv", [{"path": "gone.mp4"}]), dst)
    assert (found.units, len(found.problems)) == ((), 1)


BAD_CELLS: list[tuple[dict[str, Any], str]] = [
    ({"start": 2.0, "end": 2.0}, r"start 2\.0 is not before end 2\.0"),
    ({"start": 3.0, "end": 2.0}, r"start 3\.0 is not before end 2\.0"),
    ({"end": 0.0}, r"start 0\.0 is not before end 0\.0"),
    ({"start": -1.0}, "start is .*-1"),
    ({"end": -1.0}, "end is .*-1"),
    ({"start": float("nan")}, "start is .*nan"),
    ({"end": float("inf")}, "end is .*inf"),
    ({"start": "00:01:30"}, "start is '00:01:30'; give seconds"),
    ({"start": "1_000"}, "start is '1_000'"),
    ({"id": "/abs"}, "id '/abs' is no plain relative name"),
    ({"id": "../up"}, r"id '\.\./up' is no plain"),
    ({"id": "a/../../up"}, "is no plain"),
    ({"id": "a/./b"}, "is no plain"),
    ({"id": "a//b"}, "is no plain"),
    ({"id": "a/"}, "is no plain"),
    ({"id": " "}, "is no plain"),
    ({"id": "a\\b"}, "has a backslash"),
    ({"id": "a\nb"}, "has a backslash, a control"),
    ({"id": "a\x7fb"}, "has a backslash, a control"),
    ({"id": ".vidprep/x"}, "keeps for itself"),
    ({"path": ""}, "path is "),
]  # fmt: skip


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(("cells", "message"), BAD_CELLS)
def test_a_malformed_row_stops_with_table_row_and_value(
    src: Path, dst: Path, suffix: str, cells: dict[str, Any], message: str
) -> None:
    touch(src / "x.mp4")
    good = {**dict.fromkeys(cells), "path": "x.mp4"}
    table = write_table(src / f"t{suffix}", [good, {"path": "x.mp4", **cells}])
    with pytest.raises(SourceError, match=f"row 2: .*{message}") as error:
        find_sources(table, dst)
    assert error.value.path == str(table)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"id": ""}, "id '' is no plain"),
        ({"id": True}, "id True"),
        ({"id": "a\0b"}, "has a backslash, a control"),
        ({"id": "\ud800"}, "what is not Unicode"),
        ({"start": True}, "start is True"),
        ({"start": [1]}, r"start is \[1\]"),
        ({"start": 10**400}, "start is 10"),
        ({"path": 7}, "path is 7"),
        ({"path": None}, "path is None"),
        ({"path": "a\0b"}, "path is 'a.x00b'"),
        ({"path": "\ud800.mp4"}, "can't encode"),
        ({"label": "\udcff"}, "label is '.udcff'"),
        ({"label": [1]}, r"label is \[1\]"),
        ({"label": {"a": 1}}, "label is "),
        ({"label": 2**63}, "label is 9223372036854775808"),
    ],
)
def test_json_values_that_mean_nothing_are_refused(src: Path, dst: Path, cells: dict[str, Any], message: str) -> None:
    touch(src / "x.mp4")
    with pytest.raises(SourceError, match=f"row 1: .*{message}"):
        find_sources(write_table(src / "t.jsonl", [{"path": "x.mp4", **cells}]), dst)


@pytest.mark.parametrize(("first", "second"), [("1", 2), (1, "2"), (True, 1), (1.5, False), ("a", True)])
def test_a_label_column_of_two_kinds_is_refused(src: Path, dst: Path, first: object, second: object) -> None:
    """The manifest holds one type per column: found now, not after the last video."""
    touch(src / "x.mp4")
    rows = [{"path": "x.mp4", "label": first}, {"path": "x.mp4", "label": second}]
    with pytest.raises(SourceError, match=f"row 2: label is {second!r} in a column of {type(first).__name__}"):
        find_sources(write_table(src / "t.jsonl", rows), dst)


def test_whole_numbers_and_fractions_may_share_a_label_column(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    rows: list[dict[str, Any]] = [{"path": "x.mp4", "id": name} for name in "abc"]
    rows[0]["n"], rows[1]["n"] = 1, 1.5
    found = find_sources(write_table(src / "t.jsonl", rows), dst)
    assert [unit.labels for unit in found.units] == [(("n", 1),), (("n", 1.5),), (("n", None),)]


def test_a_parquet_column_of_other_things_than_labels_is_refused(src: Path, dst: Path) -> None:
    import datetime

    touch(src / "x.mp4")
    for value in ([1.0, 2.0], datetime.date(2024, 1, 2), b"bytes"):
        table = write_table(src / "t.parquet", [{"path": "x.mp4", "extra": value}])
        with pytest.raises(SourceError, match="row 1: extra is "):
            find_sources(table, dst)


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "-2", ""], [1, -2, None]),
        (["1", "2.5", "1e-05"], [1.0, 2.5, 1e-05]),
        (["true", "False", ""], [True, False, None]),
        (["007", "8", "9"], ["007", "8", "9"]),
        (["12345678901234567890", "1", "2"], ["12345678901234567890", "1", "2"]),
        (["2024-01-02", "", "x"], ["2024-01-02", None, "x"]),
        (["nan", "1", "2"], ["nan", "1", "2"]),
        (["", "", ""], [None, None, None]),
        (["a,b", 'say "x"', "two\nlines"], ["a,b", 'say "x"', "two\nlines"]),
    ],
)
def test_csv_labels_are_read_as_what_all_cells_are_without_loss(
    src: Path, dst: Path, cells: list[str], values: list[object]
) -> None:
    touch(src / "x.mp4")
    rows = [{"path": "x.mp4", "id": str(number), "label": cell} for number, cell in enumerate(cells)]
    found = find_sources(write_table(src / "t.csv", rows), dst)
    read = [unit.labels[0][1] for unit in found.units]
    assert [(type(value), value) for value in read] == [(type(value), value) for value in values]


def test_csv_as_spreadsheets_and_pandas_write_it(src: Path, dst: Path) -> None:
    """Byte order mark, CRLF, blank lines, spaces in the header, a first column without a name."""
    touch(src / "x.mp4")
    (src / "t.csv").write_bytes("\ufeff, path ,start, end\r\n0,x.mp4,1, 2\r\n\r\n1,x.mp4,,\r\n".encode())
    found = find_sources(src / "t.csv", dst)
    assert ids(found) == ["x", "x_00001000_00002000"]
    assert all(unit.labels == () for unit in found.units)
    assert found.ignored == ((str(src / "t.csv"), "a column without a name"),)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "has no rows"),
        ("t.csv", b"path,label\n", "has no rows"),
        ("t.csv", b"file,label\nx.mp4,1\n", "has no column `path`; columns: file, label"),
        ("t.csv", b"path;label\nx.mp4;1\n", "has no column `path`; columns: path;label"),
        ("t.csv", b"path,path\nx.mp4,x.mp4\n", "two columns of one name"),
        ("t.csv", b"path,start,end\nx.mp4,1\n", "row 1 has not the 3 cells"),
        ("t.csv", b"path,label\nx.mp4,a\nx.mp4,a,b\n", "row 2 has not the 2 cells"),
        ("t.csv", b'path,label\nx.mp4,"a\n', "cannot be read"),
        ("t.csv", b"path,label\nx.mp4,caf\xe9\n", "cannot be read"),
        ("t.jsonl", b"", "has no rows"),
        ("t.jsonl", b'{"path": "x.mp4"}\n{"path": \n', "row 2 is no JSON object"),
        ("t.jsonl", b'{"path": "x.mp4"}\n["x.mp4"]\n', "row 2 is no JSON object"),
        ("t.jsonl", b'{"path": ' + b"[" * 100_000 + b"\n", "cannot be read"),
        ("t.jsonl", b'{"file": "x.mp4"}\n', "has no column `path`; columns: file"),
        ("t.parquet", b"", "cannot be read"),
        ("t.parquet", b"PAR1 not at all PAR1", "cannot be read"),
    ],
)
def test_a_malformed_table_is_refused(src: Path, dst: Path, name: str, content: bytes, message: str) -> None:
    touch(src / "x.mp4")
    (src / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as error:
        find_sources(src / name, dst)
    assert error.value.path == str(src / name)


def test_a_parquet_table_with_two_columns_of_one_name_is_refused(src: Path, dst: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    touch(src / "x.mp4")
    column = pyarrow.array(["x.mp4"])
    parquet.write_table(pyarrow.table([column, column], names=["path", "path"]), src / "t.parquet")
    with pytest.raises(SourceError, match="two columns of one name"):
        find_sources(src / "t.parquet", dst)


def test_a_parquet_table_gets_no_column_from_the_name_of_its_folder(src: Path, dst: Path) -> None:
    touch(src / "label=3" / "x.mp4")
    table = write_table(src / "label=3" / "t.parquet", [{"path": "x.mp4"}])
    assert find_sources(table, dst).units[0].labels == ()


def test_a_table_that_is_a_fifo_is_not_opened(src: Path, dst: Path) -> None:
    os.mkfifo(src / "t.csv")
    with pytest.raises(SourceError, match="not a regular file: a FIFO"):
        find_sources(src / "t.csv", dst)


def test_label_from_folder_and_a_label_column_exclude_each_other(src: Path, dst: Path) -> None:
    touch(src / "run" / "x.mp4")
    table = write_table(src / "t.csv", [{"path": "run/x.mp4", "label": "walk"}])
    with pytest.raises(SourceError, match="has a column `label`"):
        find_sources(table, dst, label_from_folder=True)
    table = write_table(src / "t.csv", [{"path": "run/x.mp4", "split": "val"}])
    assert find_sources(table, dst, label_from_folder=True).units[0].labels == (("split", "val"), ("label", "run"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({"start": 1.0}, {"start": 1.0}),
        ({"start": 1.0001}, {"start": 1.0002}),
        ({"id": "A"}, {"id": "a"}),
        ({"id": "caf\u00e9"}, {"id": "cafe\u0301"}),
        ({"id": "a"}, {"id": "a.mp4/b"}),
    ],
)
def test_rows_with_one_output_are_refused_with_the_way_out(
    src: Path, dst: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    touch(src / "x.mp4")
    table = write_table(src / "t.jsonl", [{"path": "x.mp4", **first}, {"path": "x.mp4", **second}])
    with pytest.raises(SourceError, match=r"outputs that two sources want .*: 1;.*column `id`"):
        find_sources(table, dst)


def test_a_row_inside_the_destination_is_refused(src: Path, tmp_path: Path) -> None:
    touch(src / "out" / "x.mp4")
    (src / "link.mp4").symlink_to("out/x.mp4")
    (src / "way").symlink_to("out")
    for path in ("out/x.mp4", "link.mp4", "way/x.mp4"):
        table = write_table(src / "t.csv", [{"path": path}])
        with pytest.raises(SourceError, match=r"row 1: .* lies in the destination"):
            find_sources(table, src / "out")


def test_a_table_may_lie_in_the_destination(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    dst.mkdir()
    table = write_table(dst / "t.csv", [{"path": str(src / "x.mp4")}])
    assert ids(find_sources(table, dst)) == ["x"]


def test_progress_counts_rows(src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "PROGRESS_EVERY", 2)
    touch(src / "x.mp4")
    table = write_table(src / "t.csv", [{"path": "x.mp4", "id": str(number)} for number in range(5)])
    told: list[int] = []
    find_sources(table, dst, progress=told.append)
    assert told == [2, 4]


def test_limit_takes_the_first_rows_by_id(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    table = write_table(src / "t.csv", [{"path": "x.mp4", "id": name} for name in "dbca"])
    assert ids(find_sources(table, dst, limit=2)) == ["a", "b"]


def test_importing_the_module_does_not_import_pyarrow_or_av() -> None:
    """Each worker is a small child process that imports it."""
    code = (
        "import sys, vidprep.transcode.sources.listing; sys.exit(bool({'pyarrow', 'av', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
