"""`--events` tells all that happens, and `vidprep monitor` shows it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
import time
from importlib.metadata import entry_points

import psutil
import pytest
from rich.console import Console

from tests import points
from tests.helpers import KILL_ALL, command, environment, fault, make_clip, make_clips, manifest, transcode
from vidprep.formats.storage.local import memory_bytes
from vidprep.transcode.pages.live import MonitorState, _view, bars
from vidprep.transcode.run.events import RunView

HOSTILE = "[red]x[/red]\x1b[2J\n<b>"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = make_clips(tmp_path_factory.mktemp("sources"), 5, 8, size=(64, 48))
    (folder / "torn.mp4").write_bytes(b"no video at all")
    return folder


def lines_of(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def monitor(*args):
    return subprocess.run(
        command(*args, verb="monitor"),
        env=environment(COLUMNS="200"),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_every_video_is_reported_from_start_to_end(sources, tmp_path):
    assert transcode(sources, tmp_path / "made", "--events", tmp_path / "events.jsonl", "--jobs", 2).code == 1
    lines = lines_of(tmp_path / "events.jsonl")
    kinds = [line["event"] for line in lines]
    assert kinds[0] == "begun" and kinds[-1] == "ended" and len({line["run"] for line in lines}) == 1
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    rows = manifest(tmp_path / "made")
    began = {line["id"]: number for number, line in enumerate(lines) if line["event"] == "started"}
    ended = {line["id"]: (number, line) for number, line in enumerate(lines) if line["event"] in ("finished", "failed")}
    assert set(began) == set(ended) == set(rows) and kinds.count("started") == len(rows)
    for id_, (number, line) in ended.items():
        assert began[id_] < number
        assert line["event"] == ("finished" if rows[id_]["status"] == "ok" else "failed")
        if rows[id_]["status"] == "ok":
            assert (line["num_frames"], line["size_bytes"]) == (rows[id_]["num_frames"], rows[id_]["size_bytes"])
    in_flight = 0
    for line in lines:
        in_flight += (line["event"] == "started") - (line["event"] in ("finished", "failed"))
        assert 0 <= in_flight <= 4  # two at work, two done whose rows wait to be written
    told = [line for line in lines if line["event"] == "progress"]
    assert told[-1]["done"] == told[-1]["total"] == 6 and told[-1]["failed"] == 1 and told[-1]["queued"] == 0
    assert told[-1]["memory_bytes"] > 20e6
    assert lines[-1]["exit_code"] == 1 and lines[-1]["ok"] == 5


def test_stdout_takes_events_too_and_not_together_with_rows(sources, tmp_path):
    ran = transcode(sources, tmp_path / "made", "--events", "-", env=environment())
    assert [json.loads(line)["event"] for line in ran.out.splitlines()][-1] == "ended"
    ran = transcode(sources, tmp_path / "other", "--events", "-", "--json")
    assert ran.code == 2 and "both write to stdout" in ran.err
    ran = transcode(sources, tmp_path / "other", "--events", tmp_path / "no" / "folder")
    assert ran.code == 2 and "cannot be written" in ran.err


def test_memory_is_that_of_the_whole_tree():
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; x = bytearray(60_000_000); print(1, flush=True); time.sleep(30)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        tree = [psutil.Process(), *psutil.Process().children(recursive=True)]
        assert memory_bytes() == pytest.approx(sum(process.memory_info().rss for process in tree), rel=0.1)
    finally:
        child.kill()
        child.communicate()


def test_a_killed_run_can_be_followed_into_the_next(sources, tmp_path):
    events = tmp_path / "events.jsonl"
    kill = fault(*points.JOURNAL_APPEND, at=3, code=KILL_ALL, only="parent")
    broken = transcode(
        sources, tmp_path / "made", "--events", events, "--jobs", 1, env=environment(tmp_path / "hook", kill)
    )
    assert broken.code == -9
    with events.open("ab") as file:
        file.write(b'{"time": 1, "event": "fini')  # as a machine that loses power leaves it
    with events.open("ab") as file:
        file.write(b"\n")
    assert transcode(sources, tmp_path / "made", "--events", events).code == 1
    seen = MonitorState()
    seen.take(events.read_bytes().splitlines())
    runs = seen.runs
    first, second = runs.values()
    assert first.exit_code is None and first.done == 2 and second.exit_code == 1
    assert first.done + second.done == 6
    shown = monitor(events, "--once")
    assert shown.returncode == 0 and "ended with 1" in shown.stdout and "of 6 videos" in shown.stdout


def test_file_names_are_shown_as_text(tmp_path):
    make_clip(tmp_path / "src" / f"{HOSTILE.replace('/', '')}.mp4", 6)
    assert transcode(tmp_path / "src", tmp_path / "made", "--events", tmp_path / "events.jsonl").code == 0
    shown = monitor(tmp_path / "events.jsonl", "--once")
    assert "[red]x[red]\\x1b[2J\\n<b>" in shown.stdout
    assert "\x1b[2J" not in shown.stdout
    assert "1 of 1 video, 0 failed" in shown.stdout and "\nslowest so far" in shown.stdout


def test_untaken_videos_are_queued(tmp_path):
    begun = {
        "time": 1.0,
        "run": "x",
        "event": "begun",
        "destination": "d",
        "total": 5,
        "total_bytes": 1,
        "done_before": 0,
    }
    lines = [begun, *({"time": 2.0, "run": "x", "event": "started", "id": name, "bytes": 1} for name in "ab")]
    (tmp_path / "events").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shown = monitor(tmp_path / "events", "--once").stdout
    assert "0 of 5 videos, 0 failed, 3 queued" in shown and "\nrunning (2)" in shown


@pytest.mark.long
def test_a_terminal_follows_a_run_to_its_end(tmp_path):
    clips, events = make_clips(tmp_path / "src", 8, 60, size=(192, 144)), tmp_path / "events.jsonl"
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (40, 250))
    env = environment(TERM="xterm")
    watching = subprocess.Popen(command(events, verb="monitor"), env=env, stdout=child, stderr=child)
    os.close(child)
    run = subprocess.Popen(
        command(clips, tmp_path / "made", "--events", events), env=environment(), stderr=subprocess.DEVNULL
    )
    seen = b""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            seen += os.read(parent, 65536)
        except OSError:  # the terminal's other side is closed
            break
    os.close(parent)
    assert run.wait(300) == 0 and watching.wait(300) == 0
    text = " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode()).split())
    assert "no events yet" in text or "videos/s" in text
    for said in ("running (", "8 of 8 videos, 0 failed", "ended with 0", "slowest so far"):
        assert said in text, text


def test_rates_and_the_time_left_come_from_the_last_minute():
    run = RunView("x")
    run.take({"time": 0.0, "event": "begun", "destination": "d", "total": 100, "total_bytes": 1000})
    for number in range(50):
        run.take({"time": float(number), "event": "started", "id": f"v{number}"})
        run.take(
            {
                "time": number + 1.0,
                "event": "finished",
                "id": f"v{number}",
                "seconds": 1.0,
                "bytes": 10,
                "num_frames": 25,
                "size_bytes": 5,
            }
        )
    assert run.rates() == pytest.approx((1.0, 25.0, 10.0))
    assert run.seconds_left() == pytest.approx(50)
    assert not run.flying and run.bytes_made == 250


def test_without_its_extra_monitor_names_it(tmp_path):
    script = "import sys; sys.modules['rich'] = None; from vidprep.transcode.cli.main import main; main(sys.argv[1:])"
    ran = subprocess.run([sys.executable, "-c", script, "monitor", "x"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and "pip install 'vidprep[monitor]'" in ran.stderr


def test_a_child_loads_nothing_that_it_does_not_need():
    """Each worker has one. A spawn imports what the command starts with, then what its first job needs."""
    (command,) = entry_points(group="console_scripts", name="vidprep")
    script = (
        f"import sys, {command.module}, vidprep.transcode.workers.child, vidprep.transcode.unit.life; "
        "print(*{'click', 'numpy', 'pyarrow', 'joblib', 'distributed', 'rich'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


LOADS = """
import sys
from vidprep.formats import PrefetchLoader, VideoDataset
with PrefetchLoader(VideoDataset(sys.argv[1], 4), 2, shuffle=True, processes=False, events=sys.argv[2]) as loader:
    for _ in range(3):
        for batch in loader:
            pass
"""


@pytest.mark.long
@pytest.mark.parametrize("way", ["file", "pipe"])
def test_a_loader_is_shown_with_its_history(way, sources, tmp_path):
    assert transcode(sources, tmp_path / "made", "--include", "c*.mp4").code == 0
    events = tmp_path / f"[red]{way}"
    if way == "pipe":
        os.mkfifo(events)
    loads = [sys.executable, "-c", LOADS, str(tmp_path / "made"), str(events)]
    if way == "file":
        subprocess.run(loads, check=True, timeout=300)
        ran = monitor(events)
    else:
        shown = subprocess.Popen(
            command(events, verb="monitor"),
            env=environment(COLUMNS="200"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(2)  # a pipe loses what is written before somebody reads
        subprocess.run(loads, check=True, timeout=300)
        ran = subprocess.CompletedProcess(shown.args, 0, *shown.communicate(timeout=300))
    said = ran.stdout
    assert (ran.returncode, ran.stderr) == (0, "")
    for part in (
        "epoch 2, batch",
        "batches/s",
        "of frames from the cache",
        "closed",
        "wait per batch",
        "ready",
        "decoding per batch",
    ):
        assert part in said, said
    assert set(said) & set("▁▂▃▄▅▆▇█")


def test_bars_are_as_high_as_their_values():
    assert bars([0, 1, 2, 4, 8]) == " ▁▂▄█"
    assert bars([]) == ""
    assert bars([0.0, 0.0]) == "  "


def test_a_run_goes_on_when_its_events_cannot_be_written(sources, tmp_path):
    ran = transcode(sources, tmp_path / "made", "--events", "/dev/full")
    assert ran.code == 1, "the torn source fails, and nothing else"
    assert ran.err.count("/dev/full: events cannot be written: No space left on device") == 1
    assert sum(row["status"] == "ok" for row in manifest(tmp_path / "made").values()) == 5


def test_files_that_are_not_there_are_said(tmp_path):
    ran = monitor(tmp_path / "nope.jsonl", "--once")
    assert (ran.returncode, ran.stdout) == (2, "") and "is not there" in ran.stderr


EVENTS = (
    {
        "event": "begun",
        "run": "r",
        "destination": "d",
        "total": 5,
        "total_bytes": 100,
        "done_before": 0,
        "backend": "local",
    },
    {"event": "started", "run": "r", "id": "a", "bytes": 10},
    {"event": "finished", "run": "r", "id": "a", "seconds": 1.0, "num_frames": 3, "bytes": 10, "size_bytes": 5},
    {"event": "failed", "run": "r", "id": "b", "seconds": 1.0, "bytes": 3, "stage": "read", "message": "m"},
    {"event": "progress", "run": "r", "done": 1, "failed": 0, "total": 5, "memory_bytes": 100},
    {"event": "ended", "run": "r", "ok": 1, "failed": 0, "not_started": 0, "seconds": 4.0, "exit_code": 0},
    {
        "event": "batch",
        "loader": "l",
        "epoch": 0,
        "batch": 0,
        "wait_ms": 1.0,
        "ready": 1,
        "places": 3,
        "decode_ms": 4.0,
        "hits": 1,
        "frames": 8,
        "cache_bytes": 5,
        "memory_bytes": 9,
    },
)
WRONG_VALUES = (
    None,
    "x",
    "\x1b]0;title\x07\x1b[2J",
    [],
    {},
    True,
    -1,
    -1e9,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    ["["],
)


@pytest.mark.parametrize("number", range(len(EVENTS)))
def test_no_line_ends_the_monitor_or_reaches_the_terminal(number):
    for field in ("time", *EVENTS[number]):
        for value in WRONG_VALUES:
            lines = [{"time": float(at), **told} for at, told in enumerate(EVENTS)]
            lines.append(lines[number] | {field: value})
            seen, shown = MonitorState(), io.StringIO()
            seen.take([*(json.dumps(line).encode() for line in lines), b"[" * 100_000, b"\xff", b"null", b'"loader"'])
            Console(file=shown, force_terminal=True, width=200).print(
                _view(list(seen.runs.values()), list(seen.loaders.values()))
            )
            assert not re.search(r"\x1b[^\[]|\x1b\[[^m]*[A-Za-ln-z]|\x07", shown.getvalue()), (field, value)
            assert {"r"} <= seen.runs.keys() and {"l"} <= seen.loaders.keys()
