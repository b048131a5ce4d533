"""What whoever runs vidprep on servers has: metrics, estimates, completion in shells, an image, exit codes of signals."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.cluster import needs_modules, wait_until
from tests.helpers import command, environment, make_clip, make_clips, table, transcode
from vidprep.formats import VideoDataset, clips_around
from vidprep.formats.errors import SettingsError

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def src(tmp_path: Path) -> Path:
    src = make_clips(tmp_path / "src", 4)
    (src / "broken.mp4").write_bytes(b"no video")
    return src


@pytest.fixture
def dst(tmp_path: Path) -> Path:
    return tmp_path / "dst"


def test_metrics_are_what_prometheus_reads(src: Path, tmp_path: Path) -> None:
    needs_modules(["prometheus_client"], "pip install prometheus-client")
    from prometheus_client.parser import text_string_to_metric_families

    dst = tmp_path / 'a "place"\\with\nall'
    ran = transcode(src, dst, "--metrics", tmp_path / "run.prom", "--json")
    assert ran.code == 1
    found = {
        (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "destination")): sample.value
        for family in text_string_to_metric_families((tmp_path / "run.prom").read_text())
        for sample in family.samples
    }
    states = {name: found["vidprep_videos", name] for name in ("ok", "failed", "running", "waiting")}
    assert states == {"ok": 4, "failed": 1, "running": 0, "waiting": 0}
    assert found["vidprep_failed_videos", "read"] == 1 and found["vidprep_exit_code",] == 1
    rows = [row for row in ran.rows.values() if row["status"] == "ok"]
    assert found["vidprep_output_bytes",] == sum(row["size_bytes"] for row in rows)
    assert found["vidprep_frames",] == sum(row["num_frames"] for row in rows)
    assert abs(found["vidprep_updated_timestamp_seconds",] - time.time()) < 60
    assert (tmp_path / "run.prom").stat().st_mode & 0o444 == 0o444, "another user reads it"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "written whole"


def test_metrics_that_cannot_be_written_are_refused_before_anything_is_made(
    src: Path, tmp_path: Path, dst: Path
) -> None:
    ran = transcode(src, dst, "--metrics", tmp_path / "nowhere" / "run.prom")
    assert ran.code == 2 and "nowhere/run.prom: cannot be written" in ran.err and not dst.exists()


def test_metrics_go_on_without_the_reader_of_events(src: Path, tmp_path: Path, dst: Path) -> None:
    """Both stopped when one failed."""
    ran = transcode(src, dst, "--metrics", tmp_path / "run.prom", "--events", "/dev/full")
    assert ran.code == 1 and ran.err.count("/dev/full: events cannot be written") == 1
    assert 'state="ok"} 4' in (tmp_path / "run.prom").read_text()


def test_a_run_that_is_refused_leaves_the_metrics_of_the_last_one(src: Path, tmp_path: Path, dst: Path) -> None:
    assert transcode(src, dst, "--metrics", tmp_path / "run.prom").code == 1
    before = (tmp_path / "run.prom").read_text()
    assert transcode(src, dst, "--metrics", tmp_path / "run.prom", "--crf", 40).code == 2
    assert (tmp_path / "run.prom").read_text() == before


def test_a_dry_run_estimates_time_and_bytes_and_says_by_what(src: Path, dst: Path) -> None:
    first = transcode(src, dst, "--dry-run")
    assert "no estimate of the time, as nothing was made here yet" in first.err
    assert transcode(src, dst, "--include", "c0[01]*", "--quiet").code == 0
    told = transcode(src, dst, "--dry-run", "--jobs", 2).err
    assert re.search(
        r"outputs: about [\d.]+ kB in 0 min \d+ s with 2 videos at a time, judging by 2 videos made here", told
    )
    line = json.loads(transcode(src, dst, "--dry-run", "--json").out.splitlines()[-1])["summary"]["estimate"]
    made = sum(path.stat().st_size for path in dst.glob("c0[01].mp4"))
    share = line["output_bytes"] / made
    sources = {path.name: path.stat().st_size for path in src.iterdir()}
    done = sources["c00.mp4"] + sources["c01.mp4"]
    assert line["num_videos"] == 2 and share == pytest.approx((sum(sources.values()) - done) / done)


def test_cuts_of_one_source_count_it_once_in_an_estimate(tmp_path: Path, dst: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4", 20)
    make_clip(tmp_path / "b.mp4", 20)
    cuts = [{"path": clip, "start": at / 10, "end": (at + 1) / 10} for at in range(4)]
    assert transcode(table(tmp_path / "t.csv", cuts), dst, "--quiet").code == 0
    rows = [*cuts, {"path": tmp_path / "b.mp4", "start": 0, "end": 0.4}]
    line = json.loads(transcode(table(tmp_path / "t.csv", rows), dst, "--dry-run", "--json").out.splitlines()[-1])
    made = sum(path.stat().st_size for path in dst.glob("*.mp4"))
    assert line["summary"]["estimate"]["output_bytes"] == pytest.approx(
        made * (tmp_path / "b.mp4").stat().st_size / clip.stat().st_size
    )


def test_a_dry_run_has_one_line_for_the_pictures_of_a_folder(tmp_path: Path, dst: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4")
    (tmp_path / "src" / "shots").mkdir()
    for number in range(30):
        (tmp_path / "src" / "shots" / f"{number:04d}.jpg").touch()
    told = transcode(tmp_path / "src", dst, "--dry-run").err
    assert told.count("ignored: ") == 1 and "shots: 30 times a numbered picture, which --source-fps would take" in told


def test_show_tells_all_labels_of_a_video(tmp_path: Path, dst: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4")
    labels = {f"label{number}": "x" * 200 for number in range(30)}
    assert transcode(table(tmp_path / "t.csv", [{"path": clip} | labels]), dst, "--quiet").code == 0
    lines = transcode(dst, "a", verb="show").out.splitlines()
    assert {line for line in lines if line.startswith("label ")} == {
        f"label {name}: {text}" for name, text in labels.items()
    }


def test_show_counts_classes_and_splits(tmp_path: Path, dst: Path) -> None:
    for name in ("train/cat/a", "train/dog/b", "val/cat/c"):
        make_clip(tmp_path / "raw" / f"{name}.mp4", 4)
    assert transcode(tmp_path / "raw", dst, "--label-from-folder", "--split-from-folder", "--quiet").code == 0
    shown = transcode(dst, verb="show")
    assert "3 videos, 0 failed; 2 classes; train 2, val 1" in shown.err
    assert [line.split()[-2:] for line in shown.out.splitlines()[1:]] == [
        ["label=cat", "split=train"],
        ["label=dog", "split=train"],
        ["label=cat", "split=val"],
    ]
    with pytest.raises(SettingsError, match="times names no video of these 2, but 'train/cat/b'"):
        VideoDataset(dst, split="train", clips=clips_around(times={"train/cat/b": [0.0]}, num_frames_per_clip=2))
    with pytest.raises(SettingsError, match="did you mean 'train/cat/a'"):
        VideoDataset(dst, sequence_length=4, ids=["cat/a"])
    with pytest.raises(SettingsError, match=r"where: .*pc\.field\('labels', 'label'\)"):
        VideoDataset(dst, sequence_length=4, where=pc.field("label") == "cat")
    assert [item["class_id"] for item in VideoDataset(dst, sequence_length=4, split="train")] == [0, 1]


def test_an_array_run_that_was_not_merged_is_named_when_it_is_read(tmp_path: Path, dst: Path) -> None:
    make_clips(tmp_path / "raw", 2, 4)
    assert transcode(tmp_path / "raw", dst, "--partition", "0/2", "--quiet").code == 0
    with pytest.warns(UserWarning, match=r"1 part of 2 of an array run: `vidprep merge "):
        assert len(VideoDataset(dst, sequence_length=4).store.ids) == 1


SHELLS = {
    "bash": """
eval "$(_VIDPREP_COMPLETE=bash_source vidprep)"
complete -p vidprep >&2
COMP_WORDS=({words}); COMP_CWORD={last}; _vidprep_completion vidprep; printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """
autoload -U compinit; compinit -u -D
eval "$(_VIDPREP_COMPLETE=zsh_source vidprep)"
print -r -- $_comps[vidprep] >&2
function _describe {{ print -l -- ${{(P)argv[-2]}} ; }}; function compadd {{ print -l -- ${{(P)argv[-1]}}; }}
words=({words}); CURRENT=$(({last} + 1)); _vidprep_completion
""",
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("vidprep tr", "transcode"),
        ("vidprep transcode --split-b", "--split-by"),
        ("vidprep transcode --codec h", "hevc"),
    ],
)
def test_a_shell_completes_commands_options_and_choices(shell: str, words: str, wanted: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        (pytest.fail if os.environ.get("VIDPREP_REQUIRE") else pytest.skip)(f"no {shell}")
    script = SHELLS[shell].format(words=words, last=len(words.split()) - 1)
    env = environment() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run([shell, "-c", script], env=env, capture_output=True, text=True, timeout=120, check=True)
    assert "_vidprep_completion" in done.stderr, "it is registered"
    assert wanted in re.split(r"[\n:]", done.stdout), (done.stdout, done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("seconds", [0, 0.3])
def test_sigterm_ends_with_143_from_the_start(seconds: float, src: Path, dst: Path) -> None:
    """In the first two seconds it was -15: as soon as Python runs the program, and not when the run begins."""
    process = subprocess.Popen(
        command(src, dst), env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )

    def catches() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return bool(int(re.findall(r"SigCgt:\s*(\w+)", status)[0], 16) >> (signal.SIGTERM - 1) & 1)

    wait_until(catches, "the program")
    time.sleep(seconds)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (143, 1), "or it had ended"
    assert seconds or process.returncode == 143


@pytest.mark.long
def test_the_commands_of_the_image_work_in_a_fresh_environment(tmp_path: Path) -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    steps = dict(line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    assert steps.keys() == {"FROM", "COPY", "RUN", "WORKDIR", "ENTRYPOINT", "CMD"} and len(text.splitlines()) <= 10
    assert steps["COPY"] == ". /src" and steps["WORKDIR"] == "/data"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, tmp_path / "src" / name)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    (tmp_path / "data").mkdir()
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIDPREP"))}
    env["PATH"] = f"{tmp_path / 'venv' / 'bin'}:{env['PATH']}"
    how = {"env": env, "cwd": tmp_path / "data", "check": True, "timeout": 500, "capture_output": True, "text": True}
    subprocess.run(["bash", "-c", steps["RUN"].replace("/src", str(tmp_path / "src"))], **how)
    program = [*json.loads(steps["ENTRYPOINT"]), *json.loads(steps["CMD"])]
    done = subprocess.run(["bash", "-c", shlex.join(program)], **how)
    assert "libx264" in done.stdout
