"""A folder becomes units: names, what is passed over, links, and what cannot be read."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.transcode.sources.trees import find_sources, ids, labels_of, names, touch
from tests.transcode.sources.written_tables import write_table
from vidprep.formats.errors import SettingsError, SourceError
from vidprep.transcode.settings.run import SourceOptions
from vidprep.transcode.sources import _search as search
from vidprep.transcode.sources.unit import Unit

as_user = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")


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


def test_other_files_are_ignored_by_name(src: Path, dst: Path) -> None:
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
    [
        "-x",
        "--crf",
        " x ",
        "a b",
        "quo'te",
        'quo"te',
        "new\nline",
        "%03d",
        "*",
        "[a-z]",
        "a:b",
        "http:x",
        "concat:x|y",
        "data:x",
        "naïve",
        "视频",
        "back\\slash",
        "x.",
        "100%",
        "$HOME",
        "\x7f",
    ],
)
def test_odd_names_are_plain_names(src: Path, dst: Path, name: str) -> None:
    """What ffmpeg, a shell or a URL would take for something else."""
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
    with pytest.raises(SettingsError, match="limit=0"):
        find_sources(src, dst, limit=0)


def test_label_is_the_parent_folder(src: Path, dst: Path) -> None:
    for name in ("x.mp4", "run/y.mp4", "sport/run/z.mp4"):
        touch(src / name)
    found = find_sources(src, dst, label_from_folder=True)
    assert {unit.id: found.labels.values_of(unit.id) for unit in found.units} == {
        "x": {"label": "src"},
        "run/y": {"label": "run"},
        "sport/run/z": {"label": "run"},
    }
    (note,) = found.notes
    assert "1 video in no folder, such as x: label `src`" in note


def test_split_is_the_first_folder(src: Path, dst: Path) -> None:
    for name in ("train/run/y.mp4", "val/run/z.mp4"):
        touch(src / name)
    found = find_sources(src, dst, label_from_folder=True, split_from_folder=True)
    assert found.notes == ()
    assert labels_of(found) == [{"label": "run", "split": "train"}, {"label": "run", "split": "val"}]
    touch(src / "x.mp4")
    found = find_sources(src, dst, split_from_folder=True)
    assert found.labels.values_of("x") == {"split": None} and "no split" in found.notes[0]
    (note,) = find_sources(src / "train", dst, split_from_folder=True).notes
    assert "no split is for training: run" in note
    table = write_table(src / "t.csv", [{"path": "train/run/y.mp4", "split": "val"}])
    with pytest.raises(SourceError, match="has a column `split`"):
        find_sources(table, dst, split_from_folder=True)
    with pytest.raises(SettingsError, match="exclude each other"):
        SourceOptions(split_from_folder=True, split_by={"train": Fraction(1)})


def test_progress_is_reported_every_ten_thousand_files(src: Path, dst: Path) -> None:
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
    assert set(names(found.ignored).values()) == {"a link back to a folder that contains it"}


def test_a_broken_link_with_a_video_name_is_a_problem_and_else_ignored(src: Path, dst: Path) -> None:
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
def test_a_fifo_or_socket_is_never_opened(src: Path, dst: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_link_to_a_device_is_a_problem(src: Path, dst: Path) -> None:
    (src / "x.mp4").symlink_to("/dev/null")
    assert find_sources(src, dst).problems == ((str(src / "x.mp4"), "not a regular file: a device"),)


def test_a_file_that_may_not_be_read_is_a_problem(src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(src / "x.mp4")
    touch(src / "y.mp4")
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("x.mp4"))
    found = find_sources(src, dst)
    assert ids(found) == ["y"]
    assert found.problems == ((str(src / "x.mp4"), "cannot be read: no permission"),)
    with pytest.raises(SourceError, match="no permission"):
        find_sources(src / "x.mp4", dst)


@as_user
def test_missing_permissions_are_problems(src: Path, dst: Path) -> None:
    touch(src / "a" / "x.mp4").chmod(0)
    touch(src / "closed" / "y.mp4")
    (src / "closed").chmod(0)
    found = find_sources(src, dst)
    (src / "closed").chmod(0o700)
    assert set(names(found.problems)) == {"x.mp4", "closed"}


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
