"""What other users of a machine may put in the way, and what must not be shown: scratch folders, passwords, names of hosts."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import make_clip, transcode
from vidprep.formats.errors import SettingsError
from vidprep.formats.files.remote import RemoteFolder
from vidprep.transcode.destination.lease import myself
from vidprep.transcode.destination.scratch import PREFIX, scratch_folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def left_by_another(folder: Path, kind: str) -> Path:
    """A folder as a killed process leaves it, but for what stands at the place of its holder."""
    other = folder / f"{PREFIX}x"
    other.mkdir(mode=0o700)
    holder = other / "holder"
    if kind == "fifo":
        os.mkfifo(holder)
    elif kind == "endless":
        holder.symlink_to("/dev/zero")
    elif kind == "large":
        with holder.open("wb") as file:
            file.truncate(1 << 34)
    else:
        holder.write_bytes(replace(myself(0), started="0").as_bytes())
    return other


@pytest.mark.parametrize("kind", ["fifo", "endless", "large"])
def test_what_another_user_puts_at_a_scratch_folder_is_not_waited_for(kind: str, temporary: Path) -> None:
    other = left_by_another(temporary, kind)
    with scratch_folder() as mine:
        assert list(mine.iterdir()) == []
    assert other.exists()


def test_what_a_killed_process_left_is_swept_and_what_others_may_write_into_is_not(temporary: Path) -> None:
    other = left_by_another(temporary, "dead")
    other.chmod(0o777)
    with scratch_folder():
        assert other.exists()
    other.chmod(0o700)
    link = temporary / f"{PREFIX}link"
    link.symlink_to(other)
    with scratch_folder():
        assert not other.exists() and link.is_symlink()


@pytest.mark.parametrize(
    "url", ["s3://key:hunter2@bucket/made", "https://hunter2@host/clips", "ftp://me:hunter2@host/x"]
)
def test_a_url_with_a_password_is_refused_and_not_shown(url: str, tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 3)
    (tmp_path / "t.csv").write_text(f"path\n{url}/a.mp4\n")
    tries = [
        transcode(tmp_path / "src", url), transcode(url, tmp_path / "made"), transcode(tmp_path / "t.csv", tmp_path / "made"),
        transcode(url, verb="validate"), transcode(url, verb="show"), transcode(url, "--out", tmp_path / "r", verb="report"),
    ]  # fmt: skip
    for ran in tries:
        assert ran.code == 2 and "hunter2" not in ran.err + ran.out, ran.err
    assert "holds a user name or password; give credentials by the environment" in tries[0].err
    assert not any(b"hunter2" in path.read_bytes() for path in (tmp_path / "made").rglob("*") if path.is_file())
    with pytest.raises(SettingsError, match="holds a user name or password"):
        RemoteFolder(url)


def test_the_name_of_a_host_does_not_reach_the_terminal_as_it_is() -> None:
    holder = replace(myself(1), host="\x1b[2J\x1b]0;owned\x07" + "h" * 5000)
    assert str(holder).isprintable() and len(str(holder)) <= 200


def test_a_url_that_does_not_answer_costs_its_row(tmp_path: Path) -> None:
    """Beside a video that is here; alone it ends the run, as nothing can be done."""
    pytest.importorskip("fsspec")
    make_clip(tmp_path / "a.mp4", 3)
    for rows, code, ok in (("a.mp4\nftp://127.0.0.1:1/b.mp4\n", 1, 1), ("ftp://127.0.0.1:1/b.mp4\n", 3, 0)):
        table, destination = tmp_path / f"{ok}.csv", tmp_path / f"made{ok}"
        table.write_text(f"path\n{rows}")
        ran = transcode(table, destination)
        assert ran.code == code, ran.err
        assert f"{ok} ok" in ran.err or not ok


STORES = ("encoded", "burst", "tensor", "webdataset", "gulp")


@pytest.mark.parametrize("store", STORES)
def test_nothing_waits_for_a_pipe_that_stands_where_a_file_was(store: str, tmp_path: Path) -> None:
    """`validate` waited for ever for one in the place of a shard."""
    made, verb = tmp_path / "made", "transcode" if store == "encoded" else "burst"
    options = () if store == "encoded" else ("--format", store)
    make_clip(tmp_path / "src" / "a.mp4", 4)
    assert transcode(tmp_path / "src", made, *options, verb=verb).code == 0
    for path in [path for path in made.rglob("*") if path.is_file() and not path.name.startswith("lease-")]:
        kept = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        told = {}
        for name, arguments in {
            "validate": (made,), "pack": (made, tmp_path / "packed", "--to", "burst"), "report": (made, "--out", tmp_path / "report"),
            "compact": (made,), verb: (tmp_path / "src", made, *options),
        }.items():  # fmt: skip
            ran = transcode(*arguments, verb=name)
            told[name] = ran.code
            assert "Traceback" not in ran.err and ran.code in (0, 1, 2), (path, name, ran.err)
        assert told["validate"] != 0 or path.suffix == ".json", (path, told)
        path.unlink(missing_ok=True)
        path.write_bytes(kept)
