"""The ffmpeg engine: the only place that builds or runs an ffmpeg command.

It uses the same filters, options and names as the in-process engine, in one command: for encoders that only the user's
ffmpeg has, and as an independent check. Its output is measured in a second pass over the source.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import signal
import subprocess
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from av.error import FFmpegError as AvError

from vidprep.formats.errors import DiskFullError, FfmpegError, VerifyError
from vidprep.formats.model import NO_CROPPING, VideoInfo, rescale
from vidprep.formats.moments import file_time_base
from vidprep.formats.profiles import CODECS, CONTAINERS
from vidprep.formats.storage.local import DISK_FULL
from vidprep.formats.video.edit_list import demuxer_options
from vidprep.formats.video.pyav import time_base_of
from vidprep.formats.video.source import READ_OPTIONS, file_url, open_video
from vidprep.transcode.media._source_picture import is_rgb
from vidprep.transcode.media.ffmpeg_program import crops_for_containers
from vidprep.transcode.media.frames import CODED_AS_FIELDS, DEINTERLACER, SourceFacts
from vidprep.transcode.media.picture_filter import PictureFilter
from vidprep.transcode.media.stream import FrameStream, make_ahead, waiting_frames
from vidprep.transcode.media.verify import Measurements, Verifier
from vidprep.transcode.settings.run import RunSettings

STDERR_TAIL_BYTES = 4096
NO_ROOM = tuple(f": {os.strerror(number)}" for number in DISK_FULL)
MOST_FINER, INT32_MAX = 1000, 2**31 - 1  # parts of a tick, and what a time base counts with
# setpts of ffmpeg 5.1 forgets how long the last frame lasts, and fps then leaves out that frame, or what repeats it.
LAST_FRAME_LASTS = "tpad=stop=9999:stop_mode=clone:start_mode=clone"
GREY_NOT_DEINTERLACED = ("gray9", "gray10", "gray12", "gray14", "ya")
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, CAP_SYS_NICE = 1, 24, 23


def filter_chain(stream: FrameStream, num_frames: int | None = None) -> str:
    """Return ffmpeg's -vf for all steps: timestamps, deinterlacing, cut, rate, picture, tags.

    Args:
        stream: The frames.
        num_frames: Number of them, where it is known.
    """
    info, picture = stream.info, stream.picture_filter.picture
    name, args = DEINTERLACER
    # It takes YCbCr in planes, and grey of 8 and 16 bits: of other formats ffmpeg would make RGB first, by its own ways.
    deinterlaces = not is_rgb(info.pixel_format) and not info.pixel_format.startswith(GREY_NOT_DEINTERLACED)
    deinterlaces &= info.codec not in CODED_AS_FIELDS
    chain = [LAST_FRAME_LASTS] if num_frames is not None and stream.clock is not None else []
    chain += ["setpts=PTS-STARTPTS", *([f"{name}={args}"] if deinterlaces else [])]
    chain += _time_filters(stream, 2 if deinterlaces else 1)  # bwdif doubles the clock
    chain += [] if num_frames is None else [f"trim=end_frame={num_frames}"]
    colour = picture.colour
    chain += [
        picture.chain,
        "setsar=1",
        f"setparams=range={'pc' if colour.full_range else 'tv'}:color_primaries={colour.primaries}"
        f":color_trc={colour.transfer}:colorspace={colour.matrix}",
        "sidedata=mode=delete:type=DISPLAYMATRIX",
    ]
    return ",".join(chain)


def _time_filters(stream: FrameStream, scale: int) -> Iterator[str]:
    """Yield the filters of a cut and a rate. `scale` is the number of input ticks per tick of the source."""
    window, clock, opening = stream.window, stream.clock, stream.opening * scale
    if window.start_frame is not None or window.end_frame is not None:
        end = "" if window.end_frame is None else f":end_frame={window.end_frame}"
        yield f"trim=start_frame={window.start_frame or 0}{end}"
    elif clock is None and (window.begin is not None or window.stop is not None):
        end = (
            ""
            if window.stop is None
            else f":end_pts={max(math.ceil(window.stop * scale), stream.first_tick * scale + 1)}"
        )
        yield f"trim=start_pts={stream.first_tick * scale}{end}"
    if clock is None:
        if opening or window.stop is not None:
            yield f"setpts='max(PTS-{int(opening)},0)'"
        return
    tick = stream.info.time_base / scale
    lead = clock.lead / tick
    zero = opening + lead
    if window.start is not None:  # a cut within the frame that its start means shows that frame
        zero = max(zero, Fraction(stream.first_tick * scale))
    finer = max(
        1, min(zero.denominator, MOST_FINER, INT32_MAX // tick.denominator)
    )  # setpts keeps no fractions of ticks
    if finer > 1:
        yield f"settb={tick / finer}"
    if window.end is None or window.stop is None:
        yield f"setpts=PTS-({math.floor(zero * finer)})"
        yield f"fps={clock.rate}:round=up:start_time=0"
        return
    # Frames behind the cut are not shown before their time: they only end the last one of the cut.
    behind = max(math.ceil(window.stop * scale * finer), stream.first_tick * scale * finer + 1)
    late = f"gte(PTS,{behind})*{max(0, math.ceil(lead * finer))}"
    yield f"setpts='PTS-({math.floor(zero * finer)})+{late}'"
    yield f"fps={clock.rate}:round=up:start_time=0"
    yield f"trim=end_frame={window.first_output(math.ceil(window.end), stream.opening)}"


def build_command(
    binary: str, source: str, partial: Path, stream: FrameStream, settings: RunSettings, num_frames: int | None = None
) -> list[str]:
    """Return the command as a list. Names start with `file:`, so that none is taken for an option or protocol."""
    import ffmpeg  # every child process imports this module, and few run ffmpeg

    options, info, output = settings.video.encoder, stream.info, stream.output
    box = CONTAINERS[options.container_name]
    reading = _reading(binary, info, settings) | demuxer_options(source)
    writing: dict[str, object] = {
        # With two inputs, ffmpeg 5.1 does not copy the source's display matrix onto the rotated picture.
        "filter_complex": f"[0:{info.stream_index}]nullsink;[0:{info.stream_index}]{filter_chain(stream, num_frames)}[made]",
        "map": "[made]",
        "fps_mode": "passthrough",
        "enc_time_base": f"{output.time_base.numerator}/{output.time_base.denominator}",
        "c:v": options.profile.name,
        "pix_fmt": output.pixel_format,
        "threads": options.num_threads(output.size),
        "map_metadata": -1,
        "map_chapters": -1,
        "f": box.muxer,
    }
    writing |= {
        f"{name}:v" if name == "b" else name: value
        for name, value in options.library_options(output.light, output.size).items()
    }
    if "x265-params" in writing:  # x265 uses the rate for rate control; ffmpeg would guess another for variable rates
        writing["x265-params"] = f"{writing['x265-params']}:fps={output.nominal_rate}"
    if not box.milliseconds:
        writing["video_track_timescale"] = file_time_base(
            box.name, output.time_base, is_constant=output.frame_rate is not None
        ).denominator
    if (tag := CODECS[options.codec].tags.get(box.name)) is not None:
        writing["tag:v"] = tag
    writing |= box.options
    if output.frame_rate:  # packets do not tell about a gap; `retime` limits the rest
        writing["frames:v"] = settings.limits.max_frames + 1
    if not output.frame_rate:  # a duration of one tick is not reliable: use the previous step, as the other engine does
        too_short = f"lt(DURATION*TB\\,{2 * info.time_base})*gt(N\\,0)"
        duration = f"if({too_short}\\,DTS-PREV_INDTS\\,DURATION)"
        if stream.window.end is not None:  # the last frame ends with the cut
            left = f"({(stream.window.end - stream.opening) * info.time_base}/TB-PTS)"
            near = f"{stream.window.tolerance * info.time_base}/TB"
            duration = f"if(gt({duration}\\,{left}+{near})\\,max(1\\,round({left}))\\,{duration})"
        writing["bsf:v"] = f"setts=pts=PTS:dts=DTS:duration={duration}"
    node = ffmpeg.input(file_url(source), **reading).output(file_url(partial), **writing)
    command = ffmpeg.compile(
        node.global_args("-hide_banner", "-nostdin", "-loglevel", "error", "-filter_complex_threads", "1"),
        cmd=binary,
        overwrite_output=True,
    )
    return [str(part) for part in command]


def _reading(binary: str, info: VideoInfo, settings: RunSettings) -> dict[str, object]:
    """Return the options for opening a source."""
    reading: dict[str, object] = {"noautorotate": None, "threads": "1", "max_pixels": settings.limits.max_pixels}
    reading["flags"] = "+unaligned"
    if info.cropping != NO_CROPPING and crops_for_containers(binary):
        reading["apply_cropping"] = "codec"  # the picture's own filters do the rest
    return reading | READ_OPTIONS | ({"c:v": info.decoder} if info.has_alpha_layer else {})


def run_ffmpeg(command: list[str], path: str) -> str:
    """Run it to the end. Its stderr is read as it comes, so it never blocks, and needs no room on a disk; the end of it is
    returned.

    Raises FfmpegError with command and stderr tail, DiskFullError when that says there is no room.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    except OSError as error:
        raise FfmpegError(f"{command[0]} does not run: {error}", command=command, stderr_tail="", path=path) from error
    logged = b""
    with process:
        assert process.stderr is not None
        try:
            while segment := process.stderr.read(STDERR_TAIL_BYTES):
                logged = (logged + segment)[-STDERR_TAIL_BYTES:]
        except BaseException:
            process.kill()
            raise
    tail = logged.decode("utf-8", "replace").strip()
    # ffmpeg 5.1 prints the error, but exits with 0.
    if process.returncode == -signal.SIGXFSZ or any(line.endswith(NO_ROOM) for line in tail.splitlines()):
        raise DiskFullError("ffmpeg ran out of disk space", path=path)
    if process.returncode:
        last = " | ".join(tail.splitlines()[-3:]) or "it printed nothing"
        raise FfmpegError(
            f"ffmpeg ended with {process.returncode}: {last}", command=command, stderr_tail=tail, path=path
        )
    return tail


def _die_with_parent() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_CAPBSET_DROP, CAP_SYS_NICE)  # otherwise SVT-AV1, run by root, takes the highest real-time priority


def why_not_ffmpeg(facts: SourceFacts, picture_filter: PictureFilter) -> str | None:
    """Return why an ffmpeg command would produce other frames of this source, judged by the part that was read; None if it
    would not.
    """
    if picture_filter.source.has_reserved_matrix:
        return "the colour matrix of the source has a reserved code, and --engine ffmpeg takes none"
    if changed := sorted(picture_filter.changed):
        verb = "changes" if len(changed) == 1 else "change"
        return f"the {' and '.join(changed)} of its pictures {verb} midway, and --engine ffmpeg keeps to the first"
    if facts.stamps_sorted:
        return "the timestamps of the source are out of order, and --engine ffmpeg sorts none"
    if facts.stamps_joined:
        return "the clock of the source jumps back, and --engine ffmpeg may not join it"
    if facts.stamps_guessed:
        return "frames of the source have no timestamp, and --engine ffmpeg sets none"
    if facts.stamps_nudged or facts.stamps_crowded:
        return "frames of the source share a timestamp, and --engine ffmpeg keeps one of them"
    if facts.stamps_spaced:
        return "frames of the source are closer than a tick of the container, and --engine ffmpeg moves none apart"
    return None


def measure_file(
    settings: RunSettings, partial: Path, stream: FrameStream, cores: Callable[[], int] = lambda: 1
) -> Measurements:
    """Compare a finished file with the frames that it should contain, one packet per frame, PTS in output ticks. Raises
    VerifyError.
    """
    options, output = settings.video.encoder, stream.output
    try:
        with open_video(partial) as container:
            if len(container.streams.video) != 1:
                raise VerifyError(f"the file has {len(container.streams.video)} video streams")
            video = container.streams.video[0]
            video.thread_count = 1
            verifier = Verifier(output, options.codec, video.codec_context, gop=options.gop, gate=settings.gate)
            packets = (packet for packet in container.demux(video) if packet.size)
            file_base = time_base_of(video)
            order = array("q")
            waiting = waiting_frames(output.size)
            with closing(make_ahead(stream.filter(), waiting, cores)) as filtered:
                for frame, pts, _ in filtered:
                    order.append(pts)
                    verifier.expect(frame, rescale(pts, output.time_base, file_base))
                    packet = next(packets, None)
                    if packet is not None:
                        verifier.check(packet, "container")
            for packet in packets:
                verifier.check(packet, "container")
            measured = verifier.finish()
            shown = sorted(measured.pts)
            return replace(measured, pts=array("q", (order[bisect_left(shown, tick)] for tick in measured.pts)))
    except (AvError, OSError) as error:
        raise VerifyError(f"the file does not read back: {error}") from error


def score_with_ffmpeg(binary: str, source: str, made: Path, stream: FrameStream, settings: RunSettings) -> float:
    """Return the mean PSNR-Y in dB of an output against its source, frame n with frame n, by one ffmpeg command. Raises FfmpegError."""
    info = stream.info
    counted = f"format={settings.output.pixel_format},settb=1/1000,setpts=N"  # by number, not by time
    chain = filter_chain(stream, len(stream.source_indexes))
    graph = f"[0:{info.stream_index}]{chain},{counted}[due];[1:v:0]{counted}[made];[made][due]psnr"
    command = [binary, "-hide_banner", "-nostdin", "-nostats", "-filter_complex_threads", "1"]
    for name, value in _reading(binary, info, settings).items():
        command += [f"-{name}"] if value is None else [f"-{name}", str(value)]
    command += ["-i", file_url(source), "-threads", "1", "-i", file_url(made)]
    command += ["-filter_complex", graph, "-an", "-sn", "-dn", "-f", "null", "-"]
    scores = re.findall(r"PSNR y:(\S+)", run_ffmpeg(command, source))
    if not scores:
        raise FfmpegError("ffmpeg reported no PSNR", command=command, stderr_tail="", path=source)
    return float(scores[-1])
