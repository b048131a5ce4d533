"""`-h` shows what is needed on the first day, on one screen; `--help` shows all, in the same order."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from tests.helpers import make_clips
from vidprep.transcode import transcode
from vidprep.transcode.cli.main import COMMANDS, main

LINES, COLUMNS = 24, 80
DAY_ONE = "--fps --short-side --size --fit --gop --crf --audio --label-from-folder --split-by --include --exclude --limit --dry-run --overwrite"
RARE = "--cut-origin --max-area --min-area --scaler --encoder-threads --verify-every --max-pixels --max-frames --target-mode --vmaf-model"


def shown(command: str, flag: str) -> str:
    ran = CliRunner().invoke(main, [command, flag], prog_name="vidprep")
    assert ran.exit_code == 0, ran.output
    return ran.output


def flags(text: str) -> list[str]:
    return re.findall(r"(?m)^  (--[a-z-]+)", text)


@pytest.mark.parametrize("command", ["transcode", "burst", "validate", "bench", "sweep", "tune", "pack"])
def test_brief_help_is_one_screen_with_examples(command):
    brief, full = shown(command, "-h"), shown(command, "--help")
    lines = brief.splitlines()
    assert len(lines) <= LINES
    assert all(len(line) <= COLUMNS for line in lines)
    assert not any(line.endswith("…") for line in lines if "STORE…" not in line), "half sentences"
    assert lines[-1].endswith(f"options: vidprep {command} --help")
    assert len([line for line in lines if line.startswith(f"  vidprep {command} ")]) >= 2
    first = flags(brief)
    assert 9 <= len(first) <= 14 and flags(full)[: len(first)] == first, "and --help begins with them"
    assert str(len(re.findall(r"(?m)^  (?:-h(?:elp)?\b|--[a-z-]+)", full))) in lines[-1]


def test_what_the_first_day_needs_and_what_is_rare():
    assert flags(shown("transcode", "-h")) == DAY_ONE.split()
    rare = shown("transcode", "--help").partition("Rarely needed:")[2]
    assert set(re.findall(r"(?m)^  (--[a-z-]+)", rare)) == set(RARE.split())


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_both(command):
    for flag in ("-h", "--help"):
        assert shown(command, flag).startswith(f"Usage: vidprep {command} ")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["info", "ready"], "Did you mean 'show'"),
        (["list"], "Did you mean 'show'"),
        (["stats", "ready"], "Did you mean 'show'"),
        (["convert", "a", "b"], "Did you mean 'pack'"),
        (
            ["transcode", "a", "b", "--split", "60"],
            "'--split-by' (train, val), '--split-from-folder' or '--segment' (seconds)?",
        ),
    ],
)
def test_names_of_other_tools_and_earlier_ones_are_answered(typed, meant):
    ran = CliRunner().invoke(main, typed, prog_name="vidprep")
    assert ran.exit_code == 2 and meant in ran.output


def test_the_keyword_of_an_earlier_version_is_answered(tmp_path):
    with pytest.raises(TypeError, match="did you mean 'segment'"):
        transcode(tmp_path, tmp_path / "out", split=60)


def test_merge_and_compact_with_nothing_to_do_end_well(tmp_path):
    make_clips(tmp_path / "raw", 1, 4)
    transcode(tmp_path / "raw", tmp_path / "ready", preset="ultrafast")
    for command in ("merge", "compact"):
        assert CliRunner().invoke(main, [command, str(tmp_path / "ready")]).exit_code == 0
