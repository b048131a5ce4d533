"""What would mislead a first run: places that were not meant, and settings that nothing was made with."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from tests.helpers import make_clip, manifest, outputs, transcode
from vidprep.formats.errors import SettingsError
from vidprep.transcode import transcode as by_function
from vidprep.transcode.cli.main import COMMANDS, main


@pytest.mark.parametrize("verb", ["transcode", "burst"])
def test_an_empty_path_is_not_the_current_folder(verb: str, tmp_path: Path) -> None:
    """What a variable leaves that is not set."""
    clip = make_clip(tmp_path / "src" / "a.mp4")
    for source, destination in (("", tmp_path / "dst"), (clip, ""), (clip, " ")):
        ran = transcode(source, destination, verb=verb)
        assert ran.code == 2 and "an empty path was given" in ran.err
        with pytest.raises(SettingsError, match="an empty path was given"):
            by_function(source, destination)


def test_a_destination_that_looks_like_a_video_is_a_folder(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4")
    ran = transcode(clip, tmp_path / "out.mp4")
    assert ran.code == 2 and "out.mp4: DST is a folder" in ran.err
    assert not (tmp_path / "out.mp4").exists()
    (tmp_path / "out.mp4").mkdir()
    assert transcode(clip, tmp_path / "out.mp4").code == 0


@pytest.mark.parametrize("verb", ["transcode", "burst"])
def test_a_run_without_success_does_not_fix_the_settings(verb: str, tmp_path: Path) -> None:
    source, option = tmp_path / "src", {"transcode": "--crf", "burst": "--quality"}[verb]
    source.mkdir()
    (source / "a.mp4").write_bytes(b"no video")
    assert transcode(source, tmp_path / "dst", option, 40, verb=verb).code == 1
    make_clip(source / "a.mp4")
    assert transcode(source, tmp_path / "dst", option, 30, verb=verb).code == 0
    ran = transcode(source, tmp_path / "dst", option, 40, verb=verb)
    assert ran.code == 2 and "was made with different settings" in ran.err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_list_that_is_given_twice_adds_up(name: str) -> None:
    """`sweep --codec h264 --codec av1` measured only the last."""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    flags = [each for each in command.params if isinstance(each, click.Option) and "," in (each.metavar or "")]
    flags += [each for each in command.params if isinstance(each, click.Option) and each.metavar in ("LIST", "GLOB")]
    for each in flags:
        both = [text for value in ("10", "20") for text in (each.opts[0], value)]
        arguments = ["/a", "/b"][: sum(isinstance(other, click.Argument) for other in command.params)]
        given = command.make_context(name, [*arguments, *both]).params[str(each.name)]
        assert given == "10,20" or given == ("10", "20"), each.name


def test_two_that_want_one_output_cost_two(tmp_path: Path) -> None:
    for name in ("a.mp4", "a.mkv", "b.mp4"):
        make_clip(tmp_path / "src" / name)
    ran = transcode(tmp_path / "src", tmp_path / "dst")
    assert ran.code == 1 and "is wanted by" in ran.err and set(outputs(tmp_path / "dst")) == {"b.mp4"}
    assert sorted(row["status"] for row in manifest(tmp_path / "dst").values()) == ["failed", "failed", "ok"]
    (tmp_path / "src" / "a.mkv").unlink()
    assert transcode(tmp_path / "src", tmp_path / "dst").code == 0
    assert set(outputs(tmp_path / "dst")) == {"a.mp4", "b.mp4"}


def test_outputs_of_deleted_sources_are_reported(tmp_path: Path) -> None:
    """They stayed, one class twice after a move, and no run said so."""
    source, destination = tmp_path / "src", tmp_path / "dst"
    make_clip(source / "nature" / "bear.mp4")
    make_clip(source / "nature" / "fox.mp4")
    assert "is gone" not in transcode(source, destination).err
    (source / "people").mkdir()
    (source / "nature" / "bear.mp4").rename(source / "people" / "bear.mp4")
    (source / "nature" / "fox.mp4").unlink()
    ran = transcode(source, destination)
    assert ran.code == 0 and "1 video whose source or cut is gone, such as nature/fox (--prune removes it)" in ran.err
    summary = json.loads(transcode(source, destination, "--json").out.splitlines()[-1])["summary"]
    assert summary["gone"] == 1
    for chosen in (("--limit", 1), ("--include", "*bear*"), ("--exclude", "x*")):
        told = transcode(source, destination, *chosen).err
        assert "such as nature/fox (--prune, in a run of all sources, removes it)" in told
    assert "is gone" not in transcode(source, tmp_path / "parts", "--partition", "0/1").err
