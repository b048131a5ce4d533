"""The commands as functions: the same names, the same defaults, nothing printed, nothing left behind."""

from __future__ import annotations

import inspect
import os
import pickle
import pydoc
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pytest

import vidprep.formats
import vidprep.transcode
from tests.generated import every_command
from tests.helpers import make_clips, manifest
from vidprep.formats import open_store
from vidprep.formats.errors import SettingsError, VidprepError
from vidprep.transcode.settings.keyword_types import BurstKeywords, TranscodeKeywords, TrialKeywords, ValidateKeywords

# Flags about what a command prints, which a function does not do; and arguments.
OF_THE_COMMAND_LINE = {
    "as_json",
    "quiet",
    "dry_run",
    "source",
    "destination",
    "destinations",
    "paths",
    "store",
    "stores",
    "out",
    "help",
    "table",
}
CALLBACK = re.compile("on_(row|fault|finding|message|note|step)")
OF_PYTHON = {"settings", "progress", "on_row"}
TYPED = {"transcode": (TranscodeKeywords,), "burst": (BurstKeywords,), "validate": (ValidateKeywords,)} | dict.fromkeys(
    ("sweep", "tune"), (TrialKeywords,)
)
COMMANDS = (
    "transcode",
    "burst",
    "validate",
    "report",
    "sweep",
    "tune",
    "pack",
    "select",
    "merge",
    "compact",
    "label",
    "bench",
    "doctor",
)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clips(tmp_path_factory.mktemp("api") / "src", 3, 12, size=(96, 64))


def run(code: str, *args: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_keywords_are_the_names_of_the_flags(name: str) -> None:
    signature = inspect.signature(getattr(vidprep.transcode, name)).parameters.values()
    flags = {each.name for each in every_command()[name].params if each.expose_value} - OF_THE_COMMAND_LINE
    own = {each.name for each in signature if each.kind is each.KEYWORD_ONLY and not CALLBACK.fullmatch(each.name)}
    typed = {keyword for each in TYPED.get(name, ()) for keyword in get_type_hints(each)}
    assert (own | typed) - OF_PYTHON - OF_THE_COMMAND_LINE == flags


def test_every_public_name_is_documented() -> None:
    for package in (vidprep.formats, vidprep.transcode):
        for name in package.__all__:
            public = getattr(package, name)
            assert inspect.getdoc(public), name
            for method, value in inspect.getmembers(public) if inspect.isclass(public) else ():
                if not method.startswith("_") and callable(value) and value.__module__.startswith("vidprep"):
                    assert inspect.getdoc(value), f"{name}.{method}"


@pytest.mark.long
def test_a_call_returns_its_result_and_prints_nothing(clips: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from vidprep.transcode import burst, transcode, validate\n"
        "if __name__ == '__main__':\n"
        "    made = transcode(sys.argv[1], sys.argv[2], gop=5, short_side=48, jobs=2)\n"
        "    assert (made.ok, made.failed, made.exit_code) == (3, 0, 0), made\n"
        "    assert transcode(sys.argv[1], sys.argv[2], gop=5, short_side=48).done_before == 3\n"
        "    assert burst(sys.argv[1], sys.argv[3], format='webdataset', size=(48, 32)).ok == 3\n"
        "    assert validate(sys.argv[2], source=sys.argv[1]).faults == []\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    ran = subprocess.run(
        [sys.executable, path, clips, tmp_path / "ready", tmp_path / "frames"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert {row["height"] for row in manifest(tmp_path / "ready").values()} == {48}
    assert len(open_store(tmp_path / "frames")) == 3


def test_rows_arrive_as_they_are_done_and_a_bar_is_shown_when_asked(
    clips: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows: list[Any] = []
    vidprep.transcode.transcode(clips, tmp_path / "a", short_side=48, limit=2, progress=True, on_row=rows.append)
    assert sorted(row.id for row in rows) == sorted(manifest(tmp_path / "a"))
    told = capfd.readouterr()
    assert told.out == "" and "2 ok, 0 failed" in told.err


def test_it_works_in_a_thread_that_is_not_the_main_one(clips: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    made: list[Any] = []
    thread = threading.Thread(
        target=lambda: made.append(vidprep.transcode.transcode(clips, tmp_path / "a", short_side=48))
    )
    thread.start()
    thread.join(300)
    assert made[0].ok == 3
    assert signal.getsignal(signal.SIGINT) is before


def test_errors_name_the_keyword_in_python_and_the_flag_on_the_command_line(clips: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^gop=0: give 1 to 10000 frames$") as caught:
        vidprep.transcode.transcode(clips, tmp_path / "a", gop=0)
    assert caught.value.on_command_line == "--gop 0: give 1 to 10000 frames"
    with pytest.raises(SettingsError, match=r"^short_side=48 and size='64x64' exclude each other"):
        vidprep.transcode.burst(clips, tmp_path / "a", short_side=48, size="64x64")
    settings = vidprep.transcode.RunSettings()
    with pytest.raises(SettingsError, match="settings was given, and so were gop, which"):
        vidprep.transcode.transcode(clips, tmp_path / "a", settings=settings, gop=5)
    assert not (tmp_path / "a").exists()


def test_errors_of_a_run_name_keywords_in_python(clips: Path, tmp_path: Path) -> None:
    """They named flags, and asked for --overwrite."""
    made, empty = tmp_path / "made", tmp_path / "empty"
    vidprep.transcode.transcode(clips, made)
    empty.mkdir()
    (empty / "x.txt").touch()
    told = {
        r"made with different settings: crf=20 -> 25\. Take another folder, or overwrite=True with all sources$": (
            lambda: vidprep.transcode.transcode(clips, made, crf=25)
        ),
        r"no video left: include and exclude, globs such": lambda: vidprep.transcode.transcode(
            clips, made, include="x"
        ),
        r"labels takes columns of a table": lambda: vidprep.transcode.transcode(clips, made, labels="a"),
        r"is a destination of vidprep.* is this destination, and source the other": (
            lambda: vidprep.transcode.transcode(made, tmp_path / "b")
        ),
    }
    for text, call in told.items():
        with pytest.raises(VidprepError, match=text) as caught:
            call()
        assert "--" not in str(caught.value) and "--" not in caught.value.message
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_misspelt_keyword_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    made: Any = vidprep.transcode
    for call, said in (
        (
            lambda: made.transcode(tmp_path, tmp_path / "a", shortside=48),
            "transcode.. has no keyword 'shortside'; did you mean 'short_side'",
        ),
        (
            lambda: made.transcode(tmp_path, tmp_path / "a", quality=80),
            "transcode.. has no keyword 'quality'",
        ),  # burst has it
        (lambda: made.validate(tmp_path, cross_chek=1), "did you mean 'cross_check'"),
        (lambda: made.bench(tmp_path, patern="single"), "did you mean 'pattern'"),
        (lambda: made.sweep(tmp_path, tmp_path / "a", atpsnr=30), "did you mean 'at_psnr'"),
        (
            lambda: made.validate(tmp_path, tmp_path),
            "takes only destination by position; give the others by name, as source=",
        ),
    ):
        with pytest.raises(TypeError, match=said):
            call()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_plain_types_and_describes_each_argument(name: str) -> None:
    function = getattr(vidprep.transcode, name)
    shown = pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert not re.search("Annotated|Option\\(|<function|<class|Unpack|lambda|ForwardRef", shown)
    described = shown.partition("Args:")[2].partition("Returns:")[0]
    for each in inspect.signature(function).parameters:
        assert re.search(rf"^ +{each}: \S", described, re.MULTILINE), each


@pytest.mark.long
def test_results_can_be_imported_where_the_commands_are(clips: Path, tmp_path: Path) -> None:
    made: Any = vidprep.transcode
    results = {
        "Summary": made.transcode(
            pa.table({"path": [str(clips / "c00.mp4")], "side": ["x"]}), tmp_path / "a", short_side=48
        ),
        "ValidationReport": made.validate(tmp_path / "a"),
        "ReportFiles": made.report(tmp_path / "a"),
        "Packed": made.pack(tmp_path / "a", tmp_path / "b", to="burst"),
        "Finding": made.doctor()[0],
        "Relabelled": made.label(tmp_path / "a", remove=["side"], dry_run=True),
    }
    for name, result in results.items():
        assert name in made.__all__ and type(result) is getattr(made, name)
    for name in ("transcode", "validate", "report", "pack", "sweep", "tune", "merge", "label", "compact", "doctor"):
        returned = str(inspect.signature(getattr(made, name)).return_annotation)
        kinds = re.sub(r"list\[(\w+)\]", r"\1", returned).split(" | ")
        assert returned.startswith("dict[") or set(kinds) <= set(made.__all__), name


def test_settings_are_checked_when_they_are_built_and_described_by_help(tmp_path: Path) -> None:
    """`Scale(size=(64, 64))` failed every video, with a traceback's words."""
    made: Any = vidprep.transcode
    assert made.Scale(size=(64, 48)) == made.Scale(size="64x48") and made.Retime(frame_rate=12) == made.Retime(
        frame_rate="12"
    )
    for build, said in (
        (lambda: made.Scale(short_side="a"), "short_side='a': give a whole number or None"),
        (lambda: made.EncoderOptions(gop="5"), "gop='5': give a whole number"),
        (
            lambda: made.transcode(tmp_path, tmp_path / "a", settings={"gop": 5}),
            "settings=.*: give RunSettings or None",
        ),
        (
            lambda: made.burst(tmp_path, tmp_path / "a", settings=made.RunSettings()),
            "settings.output is a VideoOutput; give a FrameOutput",
        ),
        (
            lambda: made.transcode(tmp_path, tmp_path / "a", settings=made.RunSettings(made.FrameOutput())),
            "settings.output is a FrameOutput; give a VideoOutput",
        ),
        (
            lambda: made.transcode(tmp_path, tmp_path / "a", audio=True),
            "audio=True: give text, one of drop, copy, aac, opus",
        ),
    ):
        with pytest.raises(SettingsError, match=said):
            build()
    for name in (
        "EncoderOptions",
        "FrameOutput",
        "Limits",
        "QualityGate",
        "Retime",
        "RunSettings",
        "Scale",
        "Target",
        "VideoOutput",
    ):
        shown = pydoc.render_doc(getattr(made, name), renderer=pydoc.plaintext)
        assert not re.search("Annotated|Option\\(", shown.partition("Data and other attributes")[0]), name
        for each in inspect.signature(getattr(made, name)).parameters:
            assert re.search(rf"^[ |]+{each}: \S", shown, re.MULTILINE), each
    assert inspect.signature(made.sweep).parameters["crf"].annotation == "Mapping[str, Sequence[int]] | None"


def test_settings_serve_many_calls(clips: Path, tmp_path: Path) -> None:
    settings = vidprep.transcode.RunSettings()
    assert vidprep.transcode.transcode(clips, tmp_path / "a", settings=settings, limit=1, jobs=1).ok == 1
    assert manifest(tmp_path / "a").popitem()[1]["settings_digest"] in settings.digests


@pytest.mark.long
def test_a_script_needs_no_guard_as_workers_import_nothing_of_it(clips: Path, tmp_path: Path) -> None:
    path = tmp_path / "unguarded.py"
    path.write_text(
        "print('once', flush=True)\nfrom vidprep.transcode import bench, doctor, transcode, validate\n"
        f"transcode({str(clips)!r}, {str(tmp_path / 'out')!r}, jobs=2)\n"
        f"assert not validate({str(tmp_path / 'out')!r}, jobs=2).faults\n"
        f"measured = bench([{str(tmp_path / 'out')!r}], loader=('vidprep',), workers=(1, 2), seconds=0.1)\n"
        "assert {cell['workers'] for cell in measured['cell'] if not cell['refused']} == {1, 2}, measured\n"
        f"assert {{each.ok for each in doctor() if each.needed}} == {{True}}\n"
    )
    # From a file and from stdin, which no process could import.
    for ran in (
        subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300, check=False),
        subprocess.run(
            [sys.executable], input=path.read_text(), capture_output=True, text=True, timeout=300, check=False
        ),
    ):
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "once\n", "")
    assert {row["status"] for row in manifest(tmp_path / "out").values()} == {"ok"}


@pytest.mark.long
def test_an_interrupted_call_leaves_the_same_state_as_the_command(tmp_path: Path) -> None:
    src = make_clips(tmp_path / "src", 6, 100, size=(320, 240))
    path = tmp_path / "script.py"
    path.write_text(
        "import sys; from vidprep.transcode import transcode\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        transcode(sys.argv[1], sys.argv[2], jobs=1, on_row=lambda row: print(row.id, flush=True))\n"
        "    except KeyboardInterrupt:\n"
        "        print('stopped')\n"
    )
    process = subprocess.Popen([sys.executable, path, src, tmp_path / "out"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    rest = process.communicate(timeout=300)[0].split()
    assert rest[-1] == "stopped"
    done = len(manifest(tmp_path / "out"))
    assert 1 <= done < 6
    time.sleep(0.1)
    again = vidprep.transcode.transcode(src, tmp_path / "out")
    assert (again.done_before, again.ok) == (done, 6 - done)


@pytest.mark.long
def test_the_exported_names_build_settings_and_read_rows(clips: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from vidprep.formats import read_manifest\n"
        "from vidprep.transcode import EncoderOptions, RunSettings, Scale, VideoOutput, transcode\n"
        "settings = RunSettings(VideoOutput(EncoderOptions(codec='vp9', gop=4)), scale=Scale(short_side=48))\n"
        "transcode(*sys.argv[1:], settings=settings)\n"
        "print([(row.codec, row.height, row.keyframe_interval_max) for row in read_manifest(sys.argv[2])])"
    )
    ran = run(code, clips, tmp_path / "ready")
    assert ran.stdout.strip() == str([("vp9", 48, 4)] * 3), ran.stderr
