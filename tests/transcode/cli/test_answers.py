"""What a person gets to read: a command's answer, and the word that was meant."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from tests.helpers import make_clips, transcode
from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest.remarks import CODES, NOTES, Remark
from vidprep.transcode import transcode as made_by


def vidprep(*words) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "vidprep.transcode", *map(str, words)], capture_output=True, text=True, timeout=100
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
    assert "vidprep: warning: damaged: 1 video, such as c01: damaged: " in said
    assert all(f"note: {code}: " in said for code in NOTES & set(codes["c00"]))


def test_a_code_that_is_not_listed_is_none():
    with pytest.raises(KeyError, match="not among CODES"):
        Remark("surprise", "what?")


def test_show_prints_rows_one_row_failures_and_warnings(ready):
    folder, _ = ready
    every = vidprep("show", folder)
    assert [line.split()[-1] for line in every.stdout.splitlines()[:3]] == ["id", "c00", "c01"]
    assert "failed: none: read: is not a readable video" in every.stdout and "3 videos, 1 failed" in every.stderr
    assert vidprep("show", folder, "--failed").stdout.count("\n") == 1
    told = vidprep("show", folder, "--warnings").stdout
    assert "    damaged: damaged: " in told and "none" not in told
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


def test_a_near_command_is_named_and_no_summary_is_cut():
    assert "Did you mean 'transcode'?" in vidprep("trancode").stderr
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
        (("validate", "{ready}", "{src}"), "{src}: was not made by vidprep, and {ready} was; did you swap SRC and DST?"),
        (("validate", "{src}"), "{src}: was not made by vidprep; give the destination of a run"),
        (("validate", "{src}/nope"), "{src}/nope: does not exist; give the destination of a run"),
        (("report", "{src}/nope"), "{src}/nope: does not exist; give the destination of a run"),
        (("compact", "{src}/c00.mp4"), "{src}/c00.mp4: is a file; give the destination of a run"),
        (("transcode", "{src}", "{src}/c00.mp4"), "{src}/c00.mp4: is a file; DST is a folder"),
        (("transcode", "{src}", "{src}/../x", "--include", "*.mpeg9"), "{src}: no video left: --include and --exclude leave out all files: .mp4 (3)"),
        (("transcode", "{src}", "{src}/../x", "--fit", "crop"), "--fit crop needs --size WxH"),
        (("bench", "{src}/nope"), "{src}/nope: is not a folder; give a store, a folder of videos, or a folder with pictures of each video"),
        (("monitor", "{src}/nope", "--once"), "{src}/nope: is not there; give what a run writes with --events"),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_line(words, said, ready):
    places = {"ready": ready[0], "src": ready[0].parent / "src"}
    ran = vidprep(*(word.format(**places) for word in words))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"vidprep: {said.format(**places)}\n"


def test_a_dry_run_speaks_json(ready, tmp_path):
    ran = vidprep("transcode", ready[0].parent / "src", tmp_path / "x", "--dry-run", "--json")
    *lines, last = map(json.loads, ran.stdout.splitlines())
    assert {(line["what"], line["id"]) for line in lines} == {("to do", name) for name in ("none", "c00", "c01")}
    assert last["summary"]["to_do"] == 3 and ran.stderr == "" and not (tmp_path / "x").exists()


def test_what_is_not_enlarged_says_so(ready, tmp_path):
    ran = transcode(ready[0].parent / "src", tmp_path / "x", "--short-side", 4000, "--limit", 1)
    assert "note: not_enlarged: 1 video, such as c00: its shorter side has " in ran.err


def test_the_packages_list_what_they_have():
    import vidprep.formats
    import vidprep.transcode

    assert {"burst", "transcode", "validate", "__version__"} <= set(dir(vidprep.transcode))
    assert vidprep.transcode.__version__ and "open_store" in dir(vidprep.formats)
