"""The command line: parse, build settings, call, print, exit code. Says nothing to stdout but what machines read.

What not every command needs is imported late.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidprep.formats.errors import SettingsError
from vidprep.formats.files.remote import is_url
from vidprep.formats.profiles import EncoderOptions
from vidprep.transcode.cli import after as cli_after
from vidprep.transcode.cli import bench as cli_bench
from vidprep.transcode.cli import choose as cli_choose
from vidprep.transcode.cli.options import (
    CHECK_OPTIONS,
    ENCODE_OPTIONS,
    FRAME_OPTIONS,
    RUN_OPTIONS,
    SOURCE_OPTIONS,
    STORE_OPTIONS,
    Command,
    FolderOrUrl,
)
from vidprep.transcode.settings.options import FrameOptions, Limits, QualityGate, Retime, Scale, Target
from vidprep.transcode.settings.parse import parse_bytes, parse_rate, parse_size
from vidprep.transcode.settings.run import RunSettings

if TYPE_CHECKING:
    from vidprep.transcode.destination.folder import Destination
    from vidprep.transcode.destination.partition import Part
    from vidprep.transcode.run.plan import Plan
    from vidprep.transcode.sources.unit import Unit

DEFAULT_QUALITY = 90
CLUSTER_PROTOCOLS = ("tcp", "tls", "ucx", "ucxx", "ws", "wss", "inproc", "ray")

if sys.platform == "win32":
    sys.exit("vidprep runs on Linux and macOS; on Windows run it in WSL")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("vidprep"), prog_name="vidprep")
def main() -> None:
    """Make, once, the video dataset that training should read, and prove it.

    \b
    vidprep transcode raw/ ready/ --fps 15 --short-side 240 --gop 16
    vidprep transcode clips.csv ready/ --codec av1 --size 224x224 --fit crop
    vidprep doctor
    """


@main.command(cls=Command)
@click.argument("source", metavar="SRC", type=FolderOrUrl())
@click.argument("destination", metavar="DST", type=FolderOrUrl())
@SOURCE_OPTIONS
@FRAME_OPTIONS
@ENCODE_OPTIONS
@CHECK_OPTIONS
@RUN_OPTIONS
def transcode(source: Path | str, destination: Path | str, **given: Any) -> None:
    """Re-encode SRC (a folder, a file, or a table .csv/.parquet/.jsonl with a column `path`) into DST, and verify it.

    Every output is decoded and compared with the frames it was made from before it takes its name. DST/manifest.parquet
    has one row per video. Run the same command again to go on after a stop: what is done is not done again.

    \b
    Exit codes: 0 all good, 1 some video failed, 2 wrong usage, 3 stopped by the destination, the workers or the cluster
    (run again), 130 or 143 interrupted.
    \b
    vidprep transcode raw/ ready/                                    H.264, keyframe every 16, own rate and size
    vidprep transcode raw/ ready/ --fps 15 --short-side 240 --gop 5  for short random sequences
    vidprep transcode clips.csv ready/ --size 224x224 --fit crop     cuts and labels from a table
    """
    from vidprep.transcode.destination.folder import Destination

    part = _part(given)
    settings = _settings(
        given, given["crf"], "--crf", encoder=_encoder(given), audio=given["audio"], engine=given["engine"],
        split_seconds=given["split_seconds"],
    )  # fmt: skip
    if isinstance(destination, Path):
        place = Destination(destination, part)
    else:
        from vidprep.transcode.destination.remote import RemoteDestination

        if settings.split_seconds is not None and given["backend"] != "local":
            raise SettingsError("--split on a cluster needs a destination that all workers see as a folder, and no URL")
        place = RemoteDestination(destination, part)
    _run(source, place, settings, given, ffmpeg=_ffmpeg_for(settings, given["ffmpeg"]))


@main.command(cls=Command)
@click.argument("source", metavar="SRC", type=FolderOrUrl())
@click.argument("destination", metavar="DST", type=FolderOrUrl())
@SOURCE_OPTIONS
@FRAME_OPTIONS
@STORE_OPTIONS
@CHECK_OPTIONS
@RUN_OPTIONS
def burst(source: Path | str, destination: Path | str, **given: Any) -> None:
    """Store the frames of SRC (a folder, a file, or a table) one by one in large shards in DST, and verify them.

    One JPEG generation, straight from the decoded frames; each is decoded back and scored. Colours are BT.601 full range,
    as every reader of JPEG expects. DST/manifest.parquet has one row per video. Run the same command again to go on.

    \b
    Exit codes: 0 all good, 1 some video failed, 2 wrong usage, 3 stopped by the destination, the workers or the cluster
    (run again), 130 or 143 interrupted.
    \b
    vidprep burst raw/ frames/ --fps 15 --short-side 240      JPEGs back to back, index.parquet beside
    vidprep burst raw/ frames/ --format webdataset            tar shards that webdataset reads
    vidprep burst raw/ frames/ --format tensor --size 112x112 raw uint8 frames, memory-mapped
    """
    from vidprep.transcode.destination.sharded import PackedDestination

    frames = FrameOptions(
        given["store"],
        DEFAULT_QUALITY if given["quality"] is None else given["quality"],
        given["subsampling"],
        parse_bytes(given["shard_size"]),
    )
    settings = _settings(given, given["quality"], "--quality", frames=frames)
    part = _part(given)
    if isinstance(destination, Path):
        place = PackedDestination(destination, frames, part)
    else:
        from vidprep.transcode.destination.remote import RemotePackedDestination

        if given["backend"] != "local":
            raise SettingsError("burst on a cluster needs a destination that all workers see as a folder, and no URL")
        place = RemotePackedDestination(destination, frames, part)
    _run(source, place, settings, given)


def _run(
    source: Path | str, place: Destination, settings: RunSettings, given: dict[str, Any], ffmpeg: str = ""
) -> None:
    from vidprep.transcode.cli.progress import Progress, print_dry_run
    from vidprep.transcode.destination.array_plan import Selection, begin_part, end_part, forget_plan, previewed
    from vidprep.transcode.media.versions import encoder_version, used_versions
    from vidprep.transcode.run.events import Events
    from vidprep.transcode.run.plan import plan
    from vidprep.transcode.run.run import run
    from vidprep.transcode.sources.listing import find_sources
    from vidprep.transcode.workers.backends import workers_of
    from vidprep.transcode.workers.host import expected_of_hosts, sample_of
    from vidprep.transcode.workers.local import default_jobs

    try:
        Path.cwd()
    except OSError:
        raise SettingsError("the current folder was deleted; change to one that exists, and run again") from None
    _address(given)  # what is wrong with it is said before anything is done
    if given["events"] == "-" and given["as_json"]:
        raise SettingsError("--events - and --json both write to stdout; give --events a file")
    events = Events(given["events"]) if given["events"] and not given["dry_run"] else None
    progress = Progress(quiet=given["quiet"], as_json=given["as_json"], events=events)
    where = place.shown if is_url(place.shown) else place.root.absolute()
    place.say = progress.say
    sources = find_sources(
        source, where, include=given["include"], exclude=given["exclude"], limit=given["limit"],
        label_from_folder=given["label_from_folder"], keep_source_suffix=given["keep_source_suffix"],
        extension=settings.extension, progress=progress.found,
    )  # fmt: skip
    selection = Selection(str(source), given["include"], given["exclude"], given["limit"])
    overwrite = given["overwrite"]
    jobs = given["jobs"] or default_jobs()
    has_to_search = settings.target is not None and not settings.target.per_video
    if has_to_search and not overwrite and (value := place.value_found_for(settings.target)) is not None:
        settings, has_to_search = settings.at(value), False
    if not place.part:
        place.check_settings(settings, overwrite=overwrite)
    elif given["dry_run"]:
        sources = previewed(place, sources, settings, overwrite=overwrite)

    def planned() -> Plan:
        return plan(
            sources, settings, place, ffmpeg=ffmpeg, encoder_version=encoder_version(settings, ffmpeg),
            overwrite=overwrite, skip_failed=given["skip_failed"],
        )  # fmt: skip

    if given["dry_run"]:
        print_dry_run(planned(), sources, place)
        return
    with ExitStack() as held:
        held.enter_context(place.hold())
        share = None
        if place.part:
            share = begin_part(place, sources, settings, selection, overwrite=overwrite)
            sources = share.sources
            progress.share(place.part, share)
        else:
            place.check_settings(settings, overwrite=overwrite)  # what another run has written since is seen only now
        local = jobs if settings.split_seconds else max(1, min(jobs, len(sources.units)))
        expected = None
        if given["backend"] != "local":
            state = f"{where}/{place.house.relative_to(place.root)}"
            expected = held.enter_context(expected_of_hosts(sources.units, settings, ffmpeg, state))
        workers = held.enter_context(workers_of(given["backend"], _address(given), local, progress.say, expected))
        if settings.split_seconds is not None:
            workers.start_children()  # the pieces come from one of them; before this process needs a decoder itself
        if overwrite:
            place.clear_other_stores(settings)
            if share is None:
                forget_plan(place, selection)
        recovered = place.recover()
        if has_to_search:
            value = _shared_value(
                settings,
                sources.units,
                place.house,
                workers=workers,
                ffmpeg=ffmpeg,
                say=progress.say,
            )
            settings = settings.at(value)
        todo = planned()
        place.write_settings(settings, used_versions(settings, ffmpeg))
        if recovered:
            progress.say(f"{recovered} finished outputs of a stopped run were given their names")
        if place.journal.unreadable:
            lines = ", ".join(map(str, place.journal.unreadable[:5]))
            progress.say(
                f"{len(place.journal.unreadable)} lines of {place.journal.path} are no rows (line {lines}); "
                "the videos they spoke of are made again"
            )
        if todo.other_versions:
            progress.say(
                f"{todo.other_versions} outputs were made by another version than {encoder_version(settings, ffmpeg)}; "
                "they stay (--overwrite makes them anew)"
            )
        progress.start(todo, str(where), given["backend"])
        summary = run(
            todo, place, workers, on_row=progress.row, on_job=progress.job, on_made=workers.dismiss,
            sources=sample_of(sources.units),
        )  # fmt: skip
        if not todo.jobs:
            place.check_opens()
        if share is not None:
            summary.absent = len(share.absent)
        if summary.is_complete and share is not None:
            end_part(place, share)
        elif summary.is_complete:
            forget_plan(place, selection)
    progress.finish(summary)
    sys.exit(summary.exit_code)


def _shared_value(settings: RunSettings, units: tuple[Unit, ...], house: Path, **how: Any) -> int:
    from vidprep.transcode.run.target import shared_value
    from vidprep.transcode.run.trial import Stopped

    probes = house / "probes"
    try:
        found = shared_value(settings, units, probes, **how)
    except Stopped as stopped:
        how["say"](str(stopped))
        sys.exit(stopped.exit_code)
    shutil.rmtree(probes, ignore_errors=True)
    how["say"](
        f"{settings.quality_scale.option} {found.value} for all, after {found.probes} encodes of {found.sampled} sampled videos "
        f"({found.cpu_seconds:.1f} s of CPU time); what is below the target there is made again, finer"
    )
    return found.value


def _address(given: dict[str, Any]) -> str | None:
    """Of the cluster that was asked for."""
    options = {"dask": "scheduler", "ray": "address"}
    for backend, option in options.items():
        if given[option] and given["backend"] != backend:
            raise SettingsError(f"--{option} goes with --backend {backend}")
    if given["backend"] == "dask" and not given["scheduler"]:
        raise SettingsError("--backend dask needs --scheduler: tcp://host:8786, or the scheduler's file")
    address: str | None = given[options[given["backend"]]] if given["backend"] in options else None
    if address and is_url(address) and address.partition("://")[0] not in CLUSTER_PROTOCOLS:
        raise SettingsError(f"--{options[given['backend']]} {address}: no cluster has such an address")
    return address


def _part(given: dict[str, Any]) -> Part | None:
    from vidprep.transcode.destination.partition import parse_part

    if given["shard"] is None:
        return None
    if given["target_psnr"] is not None and given["target_mode"] == "dataset":
        raise SettingsError(
            "--shard: tasks cannot search one value together; take --target-mode per-video, or what `vidprep tune` finds"
        )
    return parse_part(given["shard"], os.environ)


def _encoder(given: dict[str, Any]) -> EncoderOptions:
    return EncoderOptions(
        codec=given["codec"], encoder=given["encoder"], container=given["container"], gop=given["gop"], crf=given["crf"],
        preset=given["preset"], tune=given["tune"], pixel_format=given["pixel_format"], threads=given["encoder_threads"],
    )  # fmt: skip


def _settings(given: dict[str, Any], value: float | None, option: str, **more: Any) -> RunSettings:
    target = None
    if given["target_psnr"] is not None:
        if value is not None:
            raise SettingsError(f"{option} and --target-psnr exclude each other; give one")
        target = Target(given["target_psnr"], per_video=given["target_mode"] == "per-video")
    return RunSettings(
        retime=Retime(parse_rate(given["fps"]) if given["fps"] else None),
        scale=Scale(
            given["short_side"], parse_size(given["size"]) if given["size"] else None, given["fit"], given["scaler"], given["upscale"]
        ),
        gate=QualityGate(given["min_psnr"], given["verify_every"]),
        limits=Limits(given["timeout"], given["max_pixels"], given["max_frames"]),
        hdr=given["hdr"], on_damage=given["on_damage"], target=target, **more,
    )  # fmt: skip


def _ffmpeg_for(settings: RunSettings, asked: str | None) -> str:
    """The ffmpeg of the second engine, checked for the encoder; nothing for the first."""
    from vidprep.transcode.media.ffmpeg_program import find_ffmpeg, has_encoder

    if settings.engine != "ffmpeg":
        if asked:
            raise SettingsError("--ffmpeg goes with --engine ffmpeg")
        return ""
    binary, encoder = find_ffmpeg(asked), settings.encoder.profile.name
    if not has_encoder(binary, encoder):
        raise SettingsError(f"--encoder {encoder}: {binary} was built without it")
    return binary


main.add_command(cli_choose.sweep)
main.add_command(cli_choose.tune)
main.add_command(cli_bench.bench)
main.add_command(cli_after.validate)
main.add_command(cli_after.report)
main.add_command(cli_after.monitor)
main.add_command(cli_after.merge)
main.add_command(cli_after.pack)
main.add_command(cli_after.doctor)
