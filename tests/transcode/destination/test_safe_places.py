"""What other users of a machine may put in the way, and what must not be shown: scratch folders, passwords, names of hosts."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import vidprep.transcode
from tests import points
from tests.helpers import environment, fault, make_clip, manifest, table, transcode
from vidprep.formats.errors import SettingsError, VidprepError
from vidprep.formats.storage.remote import ObjectStorage
from vidprep.formats.storage.untrusted import seal_footer
from vidprep.transcode.destination.lease import myself
from vidprep.transcode.sources.scratch import PREFIX, scratch_folder


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
def test_another_users_files_in_a_scratch_folder_do_not_block(kind: str, temporary: Path) -> None:
    other = left_by_another(temporary, kind)
    with scratch_folder() as mine:
        assert list(mine.iterdir()) == []
    assert other.exists()


def test_folders_of_killed_processes_are_swept_and_others_are_not(temporary: Path) -> None:
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
        transcode(tmp_path / "src", url),
        transcode(url, tmp_path / "made"),
        transcode(tmp_path / "t.csv", tmp_path / "made"),
        transcode(url, verb="validate"),
        transcode(url, verb="show"),
        transcode(url, "--out", tmp_path / "r", verb="report"),
    ]
    for ran in tries:
        assert ran.code == 2 and "hunter2" not in ran.err + ran.out, ran.err
    assert "holds a user name or password; give credentials by the environment" in tries[0].err
    assert not any(b"hunter2" in path.read_bytes() for path in (tmp_path / "made").rglob("*") if path.is_file())
    with pytest.raises(SettingsError, match="holds a user name or password"):
        ObjectStorage(url)


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
def test_a_pipe_in_place_of_a_file_blocks_nothing(store: str, tmp_path: Path) -> None:
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
            "validate": (made,),
            "pack": (made, tmp_path / "packed", "--to", "burst"),
            "report": (made, "--out", tmp_path / "report"),
            "compact": (made,),
            verb: (tmp_path / "src", made, *options),
        }.items():
            ran = transcode(*arguments, verb=name)
            told[name] = ran.code
            assert "Traceback" not in ran.err and ran.code in (0, 1, 2), (path, name, ran.err)
        assert told["validate"] != 0 or path.suffix == ".json", (path, told)
        path.unlink(missing_ok=True)
        path.write_bytes(kept)


@pytest.mark.long
def test_a_lease_of_three_gigabytes_is_invalid(tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 4)
    assert transcode(tmp_path / "src", tmp_path / "made").code == 0
    (lease,) = (tmp_path / "made" / ".vidprep").glob("lease-*")
    os.truncate(lease, 3 << 30)
    slow = environment(tmp_path / "hook", fault(*points.DESTINATION_LOCK, code=IMPATIENT, only="parent"))
    ran = transcode(tmp_path / "src", tmp_path / "made", env=slow)
    assert ran.code == 0, ran.err


IMPATIENT = f"importlib.import_module({points.LEASE_TIMES!r}).FOLDER_GONE_SECONDS = 1"
HOSTILE: list[tuple[str, object]] = [
    ("time_base_den", 0),
    ("time_base_den", -(2**63)),
    ("frame_rate_den", 0),
    ("pts", [2**63 - 1] * 4),
    ("frame_crc32", [-1]),
    ("frame_sizes", None),
    ("offset", 2**63 - 1),
    ("stored_bytes", 2**63 - 1),
    ("num_frames", -1),
    ("id", "a\0b"),
    ("duration_seconds", float("nan")),
    ("width", -(2**31)),
    ("keyframes", [-1]),
]


@pytest.mark.long
@pytest.mark.parametrize("store", ["encoded", "burst"])
def test_no_value_in_a_manifest_ends_a_command_with_a_traceback(store: str, tmp_path: Path) -> None:
    verb = "transcode" if store == "encoded" else "burst"
    made = tmp_path / "made"
    make_clip(tmp_path / "src" / "a.mp4", 4)
    assert transcode(tmp_path / "src", made, verb=verb).code == 0
    whole = pq.read_table(made / "manifest.parquet")
    labels = table(tmp_path / "labels.csv", [{"id": "a", "label": "x"}])
    commands = {
        "validate": (made,),
        "report": (made, "--out", tmp_path / "report"),
        "pack": (made, tmp_path / "packed", "--to", "webdataset"),
        "bench": (made, "--seconds", 0.01, "--pattern", "consecutive", "--loader", "vidprep"),
        "label": (made, labels, "--dry-run"),
        "compact": (made,),
        verb: (tmp_path / "src", made),
    }
    for number, (name, value) in enumerate(HOSTILE):
        place = whole.column_names.index(name)
        column = pa.array([value], whole.schema.field(name).type)
        with (made / "manifest.parquet").open("w+b") as file:
            pq.write_table(whole.set_column(place, whole.schema.field(name), column), file, write_page_checksum=True)
            seal_footer(file)
        for command in [*commands][number % 3 :: 3]:
            ran = transcode(*commands[command], verb=command)
            assert "Traceback" not in ran.err and ran.code in (0, 1, 2), (name, value, command, ran.err)


@pytest.mark.parametrize(
    "url", ["data://x/a.mp4", "dir://x/a.mp4", "jupyter://x/a.mp4", "github://a/b.mp4", "s3://", "memory://x"]
)
def test_a_url_that_no_driver_opens_costs_its_row(url: str, tmp_path: Path) -> None:
    """One ended the run with a traceback."""
    pytest.importorskip("fsspec")
    clip = make_clip(tmp_path / "a.mp4", 4)
    ran = transcode(table(tmp_path / "t.csv", [{"path": str(clip)}, {"path": url}]), tmp_path / "made")
    assert ran.code == 1 and "Traceback" not in ran.err, ran.err
    assert sorted(row["status"] for row in manifest(tmp_path / "made").values()) == ["failed", "ok"]


@pytest.mark.parametrize(
    "given", [{"split_by": True}, {"limit": True}, {"events": "\0"}, {"jobs": 10**30}, {"include": b"x"}]
)
def test_an_argument_of_another_type_is_refused(given: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(VidprepError):
        vidprep.transcode.transcode(tmp_path / "src", tmp_path / "made", **given)  # type: ignore[arg-type]
    with pytest.raises(SettingsError):
        vidprep.transcode.sweep(tmp_path / "src", tmp_path / "made", crf={"h264": 3})  # type: ignore[dict-item]


def test_a_child_whose_parent_is_gone_says_nothing() -> None:
    """A run that was killed as it began printed the EOFError of its child."""
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, tempfile.TemporaryFile() as shared:
        shared.truncate(mmap.PAGESIZE)
        numbers = theirs.fileno(), shared.fileno()
        program = f"from vidprep.formats.processes import serve; serve({numbers[0]}, {numbers[1]}, {os.getpid()}, '')"
        ran = subprocess.run(
            [sys.executable, "-c", program], pass_fds=numbers, capture_output=True, text=True, check=False, timeout=300
        )
    assert (ran.returncode, ran.stderr) == (0, "")
