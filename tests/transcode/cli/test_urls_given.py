"""Every path that a command takes is a URL that works, or one that is refused in one sentence, before anything is done."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.generated import every_command
from tests.helpers import transcode
from vidprep.transcode.cli._command import FolderOrUrl, LocalPath, Number
from vidprep.transcode.cli.main import main

# Texts that name no file.
NO_PATHS = {
    "include",
    "exclude",
    "fps",
    "source_fps",
    "video_stream",
    "score",
    "vmaf_model",
    "side_of",
    "size",
    "encoder",
    "preset",
    "pixel_format",
    "partition",
    "id_",
    "shard_size",
    "cluster_address",
    "crf",
    "quality",
    "codec",
    "gop",
    "anchor",
    "loader",
    "title",
    "segment",
    "split_by",
    "split_group",
    "remove",
    "max_memory",
    "keep",
    "frames",
    "bucket_area",
}
PARAMETERS = [
    pytest.param(verb, parameter, id=f"{verb} {parameter.name}")
    for verb, command in sorted(every_command().items())
    for parameter in command.params
    if not isinstance(
        parameter.type,
        click.types.BoolParamType | click.types.IntParamType | click.types.FloatParamType | Number | click.Choice,
    )
]
ELSEWHERE = "s3://no-such-bucket/folder"


def arguments(verb: str, parameter: click.Parameter, value: str, here: Path) -> list[str]:
    """A call in which this one parameter has this value, and the others are fit to be done."""
    given = ["--to", "burst"] if verb == "pack" and parameter.name != "kind" else []
    for each in every_command()[verb].params:
        if isinstance(each, click.Argument):
            given.append(value if each is parameter else str(here / (each.name or "")))
    return given if isinstance(parameter, click.Argument) else [*given, parameter.opts[0], value]


@pytest.mark.parametrize(("verb", "parameter"), PARAMETERS)
def test_a_url_is_taken_or_refused_and_becomes_no_folder(verb, parameter, tmp_path, monkeypatch):
    """`--events s3://…` wrote ./s3:/…, and `pack` a whole store into such a folder."""
    if parameter.name in NO_PATHS or (parameter.name == "labels" and verb != "pack"):
        return
    assert isinstance(parameter.type, LocalPath | FolderOrUrl), (
        f"{parameter.name}: say what it is, or that it is no path"
    )
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    refused = ["s3://", "s3:///folder"] if isinstance(parameter.type, FolderOrUrl) else [ELSEWHERE, "s3://", "gs://b/x"]
    for value in refused:
        ran = CliRunner().invoke(main, [verb, *arguments(verb, parameter, value, tmp_path / "other")])
        said = ran.stderr.strip().splitlines()[-1]
        assert ran.exit_code == 2 and "Traceback" not in ran.stderr, ran.stderr
        assert f"{value} is a URL; give a path on this machine" in said or f"{value} names no bucket" in said
        assert not list((tmp_path / "cwd").iterdir()) and not (tmp_path / "other").exists()


def test_a_url_of_a_file_is_a_path(tmp_path):
    ran = transcode(f"file://{tmp_path}/none", f"file://{tmp_path}/made", "--events", f"file://{tmp_path}/events")
    assert ran.code == 2 and f"{tmp_path}/none" in ran.err and "file://" not in ran.err
    assert not (tmp_path / "made").exists()


def test_merging_where_no_run_was_says_so(tmp_path):
    pytest.importorskip("fsspec")
    ran = transcode("memory://nothing/there", verb="merge")
    assert (ran.code, ran.err) == (
        2,
        "vidprep: memory://nothing/there: was not made by vidprep; give the destination of a run\n",
    )
    ran = transcode("s3:/none", tmp_path / "made", "--backend", "dask", "--cluster-address", "s3://b/scheduler.json")
    assert ran.code == 2 and "--cluster-address s3://b/scheduler.json: no cluster has such an address" in ran.err
