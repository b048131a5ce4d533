"""What a person gets to read: a command's answer, and the word that was meant."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from tests import points
from tests.helpers import environment, fault, make_clips, transcode
from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest.remarks import CODES, NOTES, Remark
from vidprep.transcode import transcode as made_by
from vidprep.transcode.choose.bench.places import PACKAGES


def vidprep(*words) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "vidprep.transcode", *map(str, words)], capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """Two clips, one of them with a hole, and a file that is none."""
    root = tmp_path_factory.mktemp("answers")
    src = make_clips(root / "src", 2, 30)
    data = (src / "c01.mp4").read_bytes()
    at = data.index(b"mdat") + len(data) // 3
    (src / "c01.mp4").write_bytes(data[:at] + bytes(300) + data[at + 300 :])
    (src / "none.mp4").write_bytes(b"no video")
    (root / "bad.csv").write_text("file\nx.mp4\n")
    ran = transcode(src, root / "ready", "--gop", 5)
    assert ran.code == 1
    return root / "ready", ran.err


def test_warnings_have_codes_and_the_summary_one_line_for_each(ready):
    folder, said = ready
    rows = pq.read_table(folder / "manifest.parquet", columns=["id", "warnings", "warning_codes"]).to_pylist()
    for row in rows:
        assert len(row["warnings"]) == len(row["warning_codes"]) and set(row["warning_codes"]) <= CODES.keys()
    codes = {row["id"]: row["warning_codes"] for row in rows}
    assert "damaged" in codes["c01"] and "damaged" not in codes["c00"]
    assert "vidprep: warning: damaged: 1 video, such as c01: " in said and "damaged: damaged" not in said
    assert all(f"note: {code}: " in said for code in NOTES & set(codes["c00"]))


def test_a_code_that_is_not_listed_is_none():
    with pytest.raises(KeyError, match="not among CODES"):
        Remark("surprise", "what?")


@pytest.mark.long
def test_show_prints_rows_one_row_failures_and_warnings(ready):
    folder, _ = ready
    every = vidprep("show", folder)
    assert [line.split()[-1] for line in every.stdout.splitlines()[:3]] == ["id", "c00", "c01"]
    assert "failed: none: read: is not a readable video" in every.stdout and "3 videos, 1 failed" in every.stderr
    assert vidprep("show", folder, "--failed").stdout.count("\n") == 1
    told = vidprep("show", folder, "--warnings").stdout
    assert "    warning: damaged: " in told and "damaged: damaged" not in told and "none" not in told
    one = vidprep("show", folder, "c00").stdout.splitlines()
    assert "status: ok" in one and "keyframes: [0, 5, 10, 15, 20, 25]" in one
    for wrong, said in (
        ((folder, "c7"), "has no video 'c7'"),
        ((folder.parent,), "has no manifest; give the destination"),
    ):
        ran = vidprep("show", *wrong)
        assert ran.returncode == 2 and said in ran.stderr


@pytest.mark.parametrize(
    ("given", "meant"), [("h265", "hevc"), ("AVC", "h264"), ("vp8", "vp9"), ("H264", "h264"), ("cinepak", None)]
)
def test_a_near_word_is_named(given, meant, tmp_path):
    with pytest.raises(SettingsError) as caught:
        made_by(tmp_path, tmp_path / "x", codec=given)
    assert str(caught.value).endswith(f"did you mean {meant}?") if meant else "did you mean" not in str(caught.value)


def test_no_summary_of_a_command_is_cut():
    helped = vidprep("--help").stdout
    assert "..." not in helped.partition("Commands:")[2] and helped.count("\n  ") > 14


def test_options_stand_under_headings():
    helped = vidprep("burst", "--help").stdout
    places = [
        helped.index(f"\n{heading}:\n") for heading in ("Sources", "Picture", "Frames", "Quality", "Run", "Options")
    ]
    assert places == sorted(places) and helped.index("--subsampling") > places[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("validate", "{ready}", "{src}"),
            "{src}: was not made by vidprep, and {ready} was; did you swap SRC and DST?",
        ),
        (("validate", "{src}/nope"), "{src}/nope: does not exist; give the destination of a run"),
        (("report", "{src}/nope"), "{src}/nope: does not exist; give the destination of a run"),
        (("compact", "{src}/c00.mp4"), "{src}/c00.mp4: is a file; give the destination of a run"),
        (("transcode", "{src}", "{src}/c00.mp4"), "{src}/c00.mp4: is a file; DST is a folder"),
        (
            ("transcode", "{src}", "{src}/../x", "--include", "*.mpeg9"),
            "{src}: no video left: --include and --exclude, globs such as '*.mp4', leave out all files: .mp4 (3)",
        ),
        (("transcode", "{src}", "{src}/../x", "--fit", "crop"), "--fit crop needs --size WxH or --buckets 16"),
        (("transcode", "{src}", "{src}/../x", "--split-seed", 3), "--split-seed 3 needs --split-by train=0.8,…"),
        (
            ("transcode", "{src}", "{src}/../x", "--target-mode", "per-video"),
            "--target-mode per-video needs --target-psnr 40 or --target-vmaf 93",
        ),
        (("transcode", "{src}", "{src}"), "{src}: is the destination, too; give a destination outside of it"),
        (
            ("transcode", "{src}", "{src}/../x", "--size", "225x225"),
            "--size 225x225: give an even number of pixels from 2 to 16384",
        ),
        (("validate", "{ready}", "--limit", 3), "--limit 3 is about sources; give them too"),
        (("bench", "{ready}", "--batch-size", 4), "--batch-size 4 needs --step-ms 50"),
        (("label", "{ready}"), "give a table of labels with a column `id` or `path`, or --remove NAME"),
        (
            ("pack", "{src}", "{src}/../x", "--to", "burst"),
            "{src}: is not a store: nothing named burst.json, *.gmeta, *.tar, tensor.json, gops.parquet, manifest*.parquet in it; make one with `vidprep transcode` or `burst`, or give VideoDataset a list of video files",
        ),
        (
            ("bench", "{src}/nope"),
            "{src}/nope: is not a folder; give a store, a folder of videos, or a folder with pictures of each video",
        ),
        (("transcode",), "missing argument 'SRC'. See `vidprep transcode --help`"),
        (
            ("transcode", "{src}", "{src}/../x", "--pixel-formt", 3),
            "no such option '--pixel-formt'. Did you mean '--pixel-format'? See `vidprep transcode --help`",
        ),
        (
            ("burst", "{src}", "{src}/../x", "--limit", "x"),
            "invalid value for '--limit': give a whole number; this is 'x'. See `vidprep burst --help`",
        ),
        (
            ("transcode", "{src}", "{src}/../x", "--crf", "20,23"),
            "invalid value for '--crf': give a number; `vidprep sweep` compares several; this is '20,23'. See `vidprep transcode --help`",
        ),
        (
            ("burst", "{src}", "{src}/../x", "--quality", "80-90"),
            "invalid value for '--quality': give a whole number; `vidprep sweep` compares several; this is '80-90'. See `vidprep burst --help`",
        ),
        (
            ("burst", "{src}", "{src}/../x", "--gop", 5),
            "no such option '--gop': it is an option of `vidprep transcode`. See `vidprep burst --help`",
        ),
        (
            ("transcode", "-i", "{src}", "-o", "{src}/../x"),
            "no such option '-i'. Paths are given without a flag: vidprep transcode SRC DST. See `vidprep transcode --help`",
        ),
        (
            ("transcode", "{src}", "{src}/../x", "-r", 15),
            "no such option '-r'. Did you mean '--fps'? See `vidprep transcode --help`",
        ),
        (
            ("transcode", "{src}", "{src}/../x", "-crf", 20),
            "no such option '-crf'. Did you mean '--crf'? See `vidprep transcode --help`",
        ),
        (
            ("transcode", "{src}", "{src}/../x", "--shard", "auto"),
            "no such option '--shard'. Did you mean '--partition'? See `vidprep transcode --help`",
        ),
        (("transcode", "{src}", "{src}/../x", "--qxz", 1), "no such option '--qxz'. See `vidprep transcode --help`"),
        (
            ("show", "{ready}", "c01.mp"),
            "{ready}: has no video 'c01.mp'; did you mean 'c01.mp4'? `vidprep show {ready}` lists them",
        ),
        (("tune", "{src}", "--target-psnr", 90), "--target-psnr 90: give 10 to 80 dB"),
        (
            ("sweep", "{src}", "{ready}", "--codec", "h264"),
            "{ready}: holds c00.mp4, which is not of these trials; give a new folder",
        ),
        (
            ("tune", "{src}", "--work", "{ready}"),
            "{ready}: holds c00.mp4, which is not of these trials; give a new folder",
        ),
        (
            ("transcode", "{root}/bad.csv", "{ready}", "--fps", 7),
            "{root}/bad.csv: has no column `path`; columns: file; rename `file` to `path`",
        ),
        (
            ("transcode", "{ready}", "{src}"),
            "{ready}: is a destination of vidprep, which contains outputs and not sources; is this DST, and SRC the other? Give the folder of the raw videos",
        ),
        (
            ("bench", "{ready}", "--workers", "1,2"),
            "invalid value for '--workers': give a whole number; repeat the option for several; this is '1,2'. See `vidprep bench --help`",
        ),
        (("transcode", "{src}", "{ready}", "x"), "got unexpected extra argument (x). See `vidprep transcode --help`"),
        (
            ("transcode", "{src}", "{ready}", "--resume"),
            "no such option '--resume'. To go on, run the same command again. See `vidprep transcode --help`",
        ),
        (
            ("transcode", "{src}", "{src}/../x", "--codec", "libx265"),
            "--codec libx265: not one of h264, hevc, vp9, av1; did you mean hevc?",
        ),
        (
            ("transcode", "{src}", "{ready}", "--prune", "--include", "*.gif"),
            "--prune needs all sources; leave out --include *.gif",
        ),
        (("bench", "{ready}", "--loader", "pyav"), "--loader pyav: not one of {loaders}; did you mean PyAV?"),
        (("-v",), "no such option '-v'. See `vidprep --help`"),
        (
            ("transcode", "{src}", "{src}/../x", "--include"),
            "option '--include' requires an argument. See `vidprep transcode --help`",
        ),
        (
            ("pack", "{ready}", "{src}/../x"),
            "missing option '--to'. Choose from: burst, gulp, webdataset, tensor, files, shards, frames, hf, lerobot, clips, list, torchcodec, dali, mmaction. See `vidprep pack --help`",
        ),
        (
            ("sweep", "{src}", "{src}/../x", "--codec", "h265"),
            "--codec h265: not one of h264, hevc, vp9, av1, jpeg, png; did you mean hevc?",
        ),
        (("trancode",), "no such command 'trancode'. Did you mean 'transcode'? See `vidprep --help`"),
        (("validate", "{src}", "{ready}", "{ready}"), "give a destination, or its sources and the destination"),
        (
            ("transcode", "{src}", "{ready}", "--gop", 8, "--fps", 5),
            "{ready}: was made with different settings: --gop 5 -> 8; --fps not given -> 5. Take another folder, or --overwrite with all sources",
        ),
        (
            ("burst", "{src}", "{ready}"),
            "{ready}: was made with different settings: encoded videos -> burst. Take another folder, or --overwrite with all sources",
        ),
        (("monitor", "{src}/nope", "--once"), "{src}/nope: is not there; give what a run writes with --events"),
    ],
)
def test_a_mistake_gets_one_line(words, said, ready):
    places = {
        "ready": ready[0],
        "src": ready[0].parent / "src",
        "root": ready[0].parent,
        "loaders": ", ".join(PACKAGES),
    }
    ran = vidprep(*(str(word).format(**places) for word in words))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"vidprep: {said.format(**places)}\n"


def test_show_takes_a_file_name_and_prints_warnings_in_full(ready):
    """One warning ended in "larger than its sourc… (186 characters)"."""
    row = next(each for each in pq.read_table(ready[0] / "manifest.parquet").to_pylist() if each["id"] == "c01")
    for name in ("c01", "c01.mp4"):
        shown = vidprep("show", ready[0], name).stdout
        assert row["warnings"] and all(text in shown for text in row["warnings"])


def test_arguments_that_are_swapped_or_of_another_dataset(ready, tmp_path):
    (tmp_path / "labels.csv").write_text("id,label\nc00,a\n")
    ran = vidprep("label", tmp_path / "labels.csv", ready[0])
    assert ran.returncode == 2 and "give DST first, then the table" in ran.stderr
    make_clips(tmp_path / "others" / "a", 2, 4)
    ran = vidprep("validate", tmp_path / "others", ready[0])
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1
    assert (
        "none of the 2 sources" in ran.stderr and "a/c00" in ran.stderr and "its videos are such as c00" in ran.stderr
    )


def test_a_refused_pack_leaves_nothing(ready, tmp_path):
    ran = vidprep("pack", ready[0], tmp_path / "dali", "--to", "dali")
    assert ran.returncode == 2 and ran.stderr.endswith(
        "has videos without a `label`; give them one with `vidprep label`\n"
    )
    assert not (tmp_path / "dali").exists()


def test_a_report_without_worst_frames(ready, tmp_path):
    ran = vidprep("report", ready[0], "--worst", 0, "--out", tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "- **2 ok** videos (1 failed" in (tmp_path / "report.md").read_text()


@pytest.mark.long
def test_an_ffmpeg_that_was_asked_for_and_is_not_there_is_no_ok():
    ran = vidprep("doctor", "--ffmpeg", "/nosuch")
    assert ran.returncode == 1 and "no   ffmpeg: no ffmpeg at /nosuch" in ran.stdout


def test_a_dry_run_speaks_json(ready, tmp_path):
    ran = vidprep("transcode", ready[0].parent / "src", tmp_path / "x", "--dry-run", "--json")
    *lines, last = map(json.loads, ran.stdout.splitlines())
    assert {(line["what"], line["id"]) for line in lines} == {("to do", name) for name in ("none", "c00", "c01")}
    assert last["summary"]["to_do"] == 3 and ran.stderr == "" and not (tmp_path / "x").exists()


def test_unenlarged_videos_get_a_note(ready, tmp_path):
    ran = transcode(ready[0].parent / "src", tmp_path / "x", "--short-side", 4000, "--limit", 1)
    assert "note: not_enlarged: 1 video, such as c00: its shorter side has " in ran.err


def test_the_packages_list_their_names():
    import vidprep.formats
    import vidprep.transcode

    assert {"burst", "transcode", "validate", "Summary"} <= set(dir(vidprep.transcode))
    assert vidprep.__version__ and "open_store" in dir(vidprep.formats)


@pytest.mark.long
def test_an_odd_size_costs_bench_that_video_and_the_table_fits(ready, tmp_path, cli):
    src = tmp_path / "src"
    src.mkdir()
    shutil.copy(ready[0].parent / "src" / "c00.mp4", src)
    cli.run(
        "-f",
        "lavfi",
        "-i",
        "testsrc2=s=161x121:r=25:d=1",
        "-pix_fmt",
        "yuv444p",
        "-c:v",
        "libx264",
        "-vf",
        "scale=161:121,format=yuv444p",
        src / "odd.mp4",
    )
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "vidprep.transcode",
            "bench",
            src,
            "--seconds",
            "0.01",
            "--loader",
            "vidprep",
            "--pattern",
            "single",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"COLUMNS": "80"},
    )
    assert ran.returncode == 0 and "left out: odd: 161x121 is an odd size" in ran.stderr
    head, *rows = ran.stdout.splitlines()
    assert head.split()[0] == "store" and len(rows) == 1 and max(map(len, (head, *rows))) <= 80


@pytest.mark.long
def test_a_program_that_is_piped_into_python_runs(ready):
    program = f"from vidprep.transcode import bench\nprint(len(bench([{str(ready[0])!r}], loader=['vidprep'], seconds=0.01)['cell']))"
    ran = subprocess.run([sys.executable], input=program, capture_output=True, text=True, timeout=300)
    assert (ran.stdout, ran.stderr) == ("2\n", "")


@pytest.mark.long
def test_a_word_at_once_after_the_first_signal_and_lines_where_no_bar_is(tmp_path):
    src = make_clips(tmp_path / "src", 4, 10)
    hook = environment(
        tmp_path / "hook",
        fault(*points.RUN_JOB, at=-1, code="time.sleep(0.7)", only="child"),
        fault(*points.EXECUTE, code="import vidprep.transcode.run.progress as p; p.LINE_SECONDS = 0.5", only="parent"),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "vidprep.transcode", "transcode", src, tmp_path / "dst", "--jobs", "1"],
        env=hook,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    while " of 4 videos, 0 failed" not in line:
        assert line, "no line of progress"
        line = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    said = process.stderr.readline()
    while "stopping: " not in said:
        assert said, "no word"
        said = process.stderr.readline()
    rest = process.communicate(timeout=300)[1]
    assert process.returncode == 130 and "interrupted; run the same command again to go on" in rest


@pytest.mark.long
def test_without_plotly_sweep_says_so_first_and_measures_all_the_same(ready, tmp_path):
    program = (
        "import sys; sys.modules['plotly'] = None; from vidprep.transcode.cli.main import main; main(sys.argv[1:])"
    )
    words = (
        "sweep",
        ready[0].parent / "src",
        tmp_path / "choose",
        "--codec",
        "h264",
        "--crf",
        "h264=20,30,40,50",
        "--seconds",
        "0.3",
    )
    ran = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0 and ran.stderr.startswith("vidprep: no report.html: it needs plotly: pip install")
    assert (tmp_path / "choose" / "sweep.parquet").exists() and "bytes/frame" in ran.stderr and "÷" not in ran.stderr


def test_help_in_python_shows_each_flag():
    signature = inspect.signature(made_by)
    assert {"gop", "short_side", "jobs", "ffmpeg"} <= signature.parameters.keys() and signature.parameters[
        "gop"
    ].default == 16
    assert "gop: int = 16" in str(signature)
