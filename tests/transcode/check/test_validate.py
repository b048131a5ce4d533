"""`vidprep validate`: what is whole passes, and whatever was changed since is found, with its file and its place."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests import points
from tests.helpers import command, environment, fault, make_clip, make_clips, no_processes_left, transcode
from vidprep.formats.manifest.table import MANIFEST_NAME, read_manifest, write_rows
from vidprep.formats.storage.local import sha256_of
from vidprep.transcode.check._unit import Check, check_unit
from vidprep.transcode.check.other_readers import LOADERS, PyAvLoader
from vidprep.transcode.destination.run_file import settings_of

burst, validate = partial(transcode, verb="burst"), partial(transcode, verb="validate")
KINDS = {
    "h264": ["--gop", 4],
    "vp9": ["--codec", "vp9"],
    "av1 mkv": ["--codec", "av1", "--container", "mkv"],
    "burst": ["--format", "burst"],
    "gulp": ["--format", "gulp"],
    "webdataset": ["--format", "webdataset"],
    "tensor": ["--format", "tensor"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    src = make_clips(root / "src", 3, 11, size=(96, 64))

    def of(kind: str) -> tuple[Path, Path]:
        folder = root / kind
        if not folder.exists():
            run = burst if "--format" in KINDS[kind] else transcode
            assert run(src, folder, *KINDS[kind], "--fps", 25).code == 0
        return src, folder

    return of


@pytest.fixture(params=KINDS)
def finished(request, made, tmp_path) -> tuple[Path, Path]:
    """Sources, and a copy of a destination that may be harmed."""
    src, folder = made(request.param)
    return src, Path(shutil.copytree(folder, tmp_path / "dst"))


def outputs(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix in (".mp4", ".webm", ".mkv", ".bin", ".gulp", ".tar", ".raw"))


def test_complete_destinations_pass_with_and_without_sources(finished):
    src, folder = finished
    for args in ((folder,), (src, folder), (folder, "--sample", 1)):
        ran = validate(*args)
        assert ran.code == 0, ran.out
        assert ran.out == ""
    assert "1 video read again, 0 faults" in ran.err


@pytest.mark.parametrize("flips", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_flipped_byte_anywhere_in_the_outputs_is_found_and_named(finished, flips):
    _, folder = finished
    rng = random.Random(flips)
    for _ in range(flips):
        path = rng.choice(outputs(folder))
        data = path.read_bytes()
        place = rng.randrange(len(data))
        broken = bytearray(data)
        broken[place] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        ran = validate(folder)
        assert ran.code == 1, f"byte {place} of {path.name}"
        assert path.name in ran.out
        if path.suffix in (".bin", ".gulp", ".tar", ".raw"):
            assert "offset" in ran.out
        path.write_bytes(data)


def test_truncated_lost_and_exchanged_files_are_found(finished):
    _, folder = finished
    path = outputs(folder)[-1]
    data = path.read_bytes()
    for part in (0, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:part])
        ran = validate(folder)
        assert ran.code == 1
        assert path.name in ran.out
    path.unlink()
    ran = validate(folder)
    assert ran.code == 1
    assert path.name in ran.out
    if len(outputs(folder)) > 1:
        one, two = outputs(folder)[:2]
        path.write_bytes(data)
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
        ran = validate(folder)
        assert one.name in ran.out
        assert two.name in ran.out


def test_a_file_without_a_row_is_reported(finished):
    _, folder = finished
    known = outputs(folder)[0]
    stray = known.with_name(known.name.replace("00000", "00007").replace("_0.", "_7.").replace("c00", "c77"))
    shutil.copy(known, stray)
    ran = validate(folder)
    assert ran.code == 1
    assert f"{stray}: no row of the manifest" in ran.out


def test_a_changed_source_is_found(finished, tmp_path):
    src, folder = finished
    other = Path(shutil.copytree(src, tmp_path / "src"))
    make_clip(other / "c01.mp4", 12, (96, 64), seed=77)
    (other / "c02.mp4").unlink()
    ran = validate(other, folder)
    assert ran.code == 1
    assert f"c01: {other / 'c01.mp4'} changed after it was read; if" in ran.out
    assert "c02: its source is not among those given" in ran.out
    assert "c00" not in ran.out


def test_only_outputs_of_the_given_sources_are_checked(made, tmp_path):
    src, whole = made("h264")
    folder = Path(shutil.copytree(whole, tmp_path / "dst"))
    for given, more, said in ((src, ("--limit", 2), "2 videos"), (src / "c01.mp4", (), "1 video")):
        ran = validate(given, folder, *more, "--cross-check", 0)
        assert (ran.code, ran.out) == (0, "")
        assert f"{said} read again, 0 faults" in ran.err


def test_an_index_that_says_something_else_is_found(made, tmp_path):
    for kind, name in (("gulp", "meta_10000000000.gmeta"), ("burst", "index.parquet"), ("tensor", "tensor.json")):
        folder = Path(shutil.copytree(made(kind)[1], tmp_path / kind))
        path = folder / name
        text = path.read_bytes()
        path.write_bytes(text.replace(b"[0, ", b"[4, ", 1) if kind == "gulp" else text[:-30] + text[-29:])
        ran = validate(folder)
        assert ran.code == 1, kind
        assert ".gmeta" in ran.out or name in ran.out


def test_an_invalid_destination_is_a_usage_error(tmp_path):
    ran = validate(tmp_path)
    assert ran.code == 2
    assert "is neither a destination of vidprep nor a dataset" in ran.err
    assert validate(tmp_path, tmp_path, tmp_path).code == 2


# ------------------------------------------------------------------------------------------------ planted, checksums and all


def plant(folder: Path, id_: str, changed: Path) -> None:
    """Put another file in the place of an output, with a manifest that says its size and checksum are right, and no index."""
    (folder / "gops.parquet").unlink()
    rows = {row.id: row for row in read_manifest(folder)}
    row = rows[id_]
    shutil.copy(changed, folder / row.file_name)
    row.size_bytes, row.sha256 = changed.stat().st_size, sha256_of(changed)
    write_rows(folder / MANIFEST_NAME, None, rows.values())


def remade(cli: Any, source: Path, tmp_path: Path, filters: list[str], args: list[object]) -> Path:
    """What a run makes of a source that was filtered."""
    other = tmp_path / "other"
    other.mkdir()
    cli.run("-i", source, "-vf", ",".join(filters), "-c:v", "libx264", "-qp", "0", other / "c01.mp4")
    assert transcode(other, tmp_path / "remade", "--fps", 25, *args).code == 0
    return tmp_path / "remade" / "c01.mp4"


@pytest.mark.parametrize(
    ("what", "filters", "args", "said"),
    [
        (
            "one frame shifted",
            ["tpad=start=1:start_mode=clone", "trim=end_frame=12"],
            ["--gop", 4],
            "PSNR-Y against its source",
        ),
        ("colours by one matrix", ["scale=out_color_matrix=bt709:in_color_matrix=bt601"], ["--gop", 4], "PSNR"),
        ("a missing keyframe", ["null"], ["--gop", 8], "frame 4 is not a keyframe"),
        ("another tag", ["setparams=colorspace=bt709"], ["--gop", 4], "colour tags"),
        ("one frame fewer", ["trim=end_frame=10"], ["--gop", 4], "holds 10 frames, 12 were written"),
    ],
)
def test_faults_with_valid_checksums_are_found_by_the_source(cli, made, tmp_path, what, filters, args, said):
    src, whole = made("h264")
    folder = Path(shutil.copytree(whole, tmp_path / "dst"))
    plant(folder, "c01", remade(cli, src / "c01.mp4", tmp_path, filters, args))
    ran = validate(src, folder)
    assert ran.code == 1, what
    assert said in ran.out, ran.out
    assert all(line.startswith(f"{folder / 'c01.mp4'}: c01: ") for line in ran.out.splitlines())


def test_frames_of_another_clip_are_found(cli, made, tmp_path):
    src, whole = made("h264")
    folder = Path(shutil.copytree(whole, tmp_path / "dst"))
    plant(folder, "c01", remade(cli, src / "c02.mp4", tmp_path, ["trim=end_frame=12"], ["--gop", 4]))
    assert validate(folder).code == 0
    ran = validate(src, folder)
    assert ran.code == 1
    assert f"{folder / 'c01.mp4'}: c01: PSNR-Y against its source" in ran.out


def test_a_map_of_source_frames_that_is_not_true_is_found(made, tmp_path):
    src, _ = made("h264")
    folder = tmp_path / "dst"
    assert transcode(src, folder, "--fps", 10).code == 0
    rows = {row.id: row for row in read_manifest(folder)}
    due = list(rows["c00"].source_frames or ())
    due[2] += 1
    rows["c00"].source_frames = due
    write_rows(folder / MANIFEST_NAME, None, rows.values())
    ran = validate(src, folder)
    assert "c00: from frame 2 on, its source frames are not those" in ran.out


# ------------------------------------------------------------------------------------------------ what it leaves, and going on


def results(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in pq.read_table(folder / "validation.parquet").to_pylist()}


def test_scores_agree_with_the_manifest_and_the_ffmpeg_command(made, tmp_path):
    src, whole = made("h264")
    folder = Path(shutil.copytree(whole, tmp_path / "dst"))
    ran = validate(src, folder, "--score", "xpsnr")
    assert ran.code == 0, ran.out
    assert "3 scored by ffmpeg too" in ran.err
    found = results(folder)
    for row in read_manifest(folder):
        assert found[row.id]["psnr_y_db"] == pytest.approx(row.psnr_y_db, abs=0.01)
        assert found[row.id]["ffmpeg_psnr_y_db"] == pytest.approx(row.psnr_y_db, abs=0.01)
        assert found[row.id]["ssim"] == pytest.approx(row.ssim, abs=0.0001)
        assert 20 < found[row.id]["xpsnr_p1_db"] <= found[row.id]["xpsnr_db"] < 60
        assert found[row.id]["vmaf"] is None


def test_a_video_that_ffmpeg_would_make_otherwise_is_named(tmp_path):
    src = make_clips(tmp_path / "src", 1, 30)
    data = (src / "c00.mp4").read_bytes()
    at = data.index(b"mdat") + len(data) // 3
    (src / "c00.mp4").write_bytes(data[:at] + bytes(300) + data[at + 300 :])
    assert transcode(src, tmp_path / "dst", "--gop", 5).code == 0
    ran = validate(src, tmp_path / "dst", "--cross-check", 1)
    assert ran.code == 0, ran.out
    why = "c00: it makes other frames of a source that is damaged"
    assert f"the ffmpeg command did not score every video; the first: {why}" in ran.err
    assert results(tmp_path / "dst")["c00"]["ffmpeg_failed"] == why


def test_the_results_are_those_of_the_last_check(made, tmp_path):
    src, whole = made("h264")
    folder = Path(shutil.copytree(whole, tmp_path / "dst"))
    assert validate(src, folder, "--cross-check", 0).code == 0
    before = results(folder)
    assert len(before) == 3 and all(row["scored_at"] == row["checked_at"] > 1.7e9 for row in before.values())
    assert validate(folder, "--sample", 1).code == 0
    (sampled,) = results(folder).values()
    assert sampled["psnr_y_db"] is None and sampled["sha256"] == before[sampled["id"]]["sha256"]


@pytest.mark.long
def test_seeks_are_reported_for_each_loader(made, tmp_path):
    folder = Path(shutil.copytree(made("h264")[1], tmp_path / "dst"))
    ran = validate(folder, "--seek-check", 5)
    assert ran.code == 0, ran.out
    for loader in ("PyAV", "OpenCV"):
        assert f"{loader}: 15 seeks, 0 to a wrong picture" in ran.err
    told = {seeks["loader"]: seeks for seeks in results(folder)["c02"]["seeks"]}
    assert told["PyAV"] == {"loader": "PyAV", "tried": 5, "wrong": 0, "unread": 0, "reason": None}


def test_a_seek_that_lands_elsewhere_is_a_fault_of_that_loader(made, tmp_path, monkeypatch):
    class Astray(PyAvLoader):
        def seek(self, number: int) -> Any:
            return super().seek(max(0, number - 1))

    monkeypatch.setitem(LOADERS, "PyAV", Astray)
    folder = made("h264")[1]
    row = next(read_manifest(folder))
    done = check_unit(Check(folder, row, settings_of(folder), seeks=11, loaders=("PyAV",)))
    assert done.seeks["PyAV"].wrong == 10
    assert all("PyAV: a seek to frame" in fault for fault in done.faults)


@pytest.mark.long
def test_a_check_that_was_stopped_leaves_nothing_and_starts_again(made, tmp_path):
    _, whole = made("h264")
    folder = Path(shutil.copytree(whole, tmp_path / "dst"))
    before = {path for path in folder.rglob("*") if path.is_file()}
    stop = tmp_path / "stop.py"
    stop.write_text(
        "import os, sys, pathlib\n"
        "from vidprep.transcode.check.validate import ValidateOptions, check_destination\n"
        "if __name__ == '__main__':\n"
        "    count = iter(range(9))\n"
        "    check_destination(pathlib.Path(sys.argv[1]), None, ValidateOptions(), jobs=1, on_fault=print,\n"
        "             on_unit=lambda: os._exit(9) if next(count) else None)\n"
    )
    assert subprocess.run([sys.executable, stop, folder], env=environment(), check=False, timeout=300).returncode == 9
    assert {path for path in folder.rglob("*") if path.is_file()} == before
    ran = validate(folder)
    assert ran.code == 0 and "3 videos read again, 0 faults" in ran.err
    assert len(results(folder)) == 3


@pytest.mark.long
def test_a_video_that_kills_or_holds_its_reader_is_one_fault(made, tmp_path):
    folder = Path(shutil.copytree(made("h264")[1], tmp_path / "dst"))
    hurry = "v = sys.modules['vidprep.transcode.check.validate']; v.MIN_SECONDS = 12; v.SECONDS_PER_SECOND = 0"
    env = environment(
        tmp_path / "hook",
        fault(*points.SETTINGS_OF, code=hurry, only="parent"),
        fault(
            *points.CHECK_UNIT,
            at=-1,
            only="child",
            code="(args[0].row.id == 'c00' and os._exit(7)); (args[0].row.id == 'c01' and time.sleep(60))",
        ),
    )
    ran = validate(folder, "--jobs", 2, env=env)
    assert ran.code == 1
    assert "c00.mp4: c00: cannot be read: the process that held it ended with code 7" in ran.out
    assert "c01.mp4: c01: cannot be read: it took over 12 s and was stopped" in ran.out
    assert len(ran.out.splitlines()) == 2


def test_ctrl_c_ends_it_soon_and_leaves_no_process(made, tmp_path):
    folder = Path(shutil.copytree(made("h264")[1], tmp_path / "dst"))
    env = environment(
        tmp_path / "hook",
        fault(*points.CHECK_UNIT, at=2, only="child", code="print('at work', flush=True); time.sleep(60)"),
    )
    group = subprocess.Popen(
        command(folder, "--jobs", 1, "--quiet", verb="validate"),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert group.stdout is not None
    assert group.stdout.readline() == "at work\n"
    os.killpg(group.pid, signal.SIGINT)
    _, err = group.communicate(timeout=300)
    assert group.returncode == 130
    assert "interrupted; nothing was written" in err
    no_processes_left(group.pid, seconds=2)
    assert "3 videos read again, 0 faults" in validate(folder).err


def test_a_run_that_was_stopped_is_to_be_finished_first(made, tmp_path):
    folder = Path(shutil.copytree(made("h264")[1], tmp_path / "dst"))
    (folder / ".vidprep" / "journal.jsonl").write_text("")
    ran = validate(folder)
    assert ran.code == 2
    assert "let it finish" in ran.err


def test_options_for_videos_are_a_usage_error_for_frames(made):
    src, folder = made("burst")
    ran = validate(src, folder, "--seek-check", 2)
    assert ran.code == 2
    assert "--seek-check" in ran.err
    ran = validate(made("h264")[1], "--score", "xpsnr")
    assert ran.code == 2
    assert "give them too" in ran.err
