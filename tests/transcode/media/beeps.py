"""Clips with a beep at every flash, and how they are heard."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np

from vidprep.formats.model import Cut
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

CUTS = [None, (0.6, 2.52)]


OFFSET = 0.44


FLASHES = [1.0, 2.0]


PICTURES = {"mp4": "libx264", "mkv": "libx264", "ts": "libx264", "webm": "libvpx", "avi": "mpeg4"}


CODERS = {"mp4": "aac", "mkv": "pcm_s16le", "ts": "mp2", "webm": "libopus", "avi": "pcm_s16le"}


def beeps(shift: float, seconds: float, rate: int = 44100) -> str:
    """0.1 s of 1 kHz at each flash, where sample 0 is heard at `shift` seconds of the pictures; else digital silence."""
    time = f"(t+{shift}+0.0000001)"
    on = f"gte({time}\\,0.5)*lt({time}\\,2.5)*lt(mod({time}\\,1)\\,0.1)"
    return f"aevalsrc='if({on}\\,0.8*sin(2*PI*1000*{time})\\,0)':s={rate}:d={seconds}"


class Clips:
    """Sources with flashes and beeps, each made once. offset: how much later than the pictures the audio begins."""

    def __init__(self, folder: Path, ffmpeg: Any) -> None:
        self.folder, self.ffmpeg = folder, ffmpeg
        self.get = cache(self.make)

    def make(
        self,
        ext: str,
        offset: float = 0.0,
        coder: str | None = None,
        rate: int = 44100,
        layout: str = "mono",
        seconds: float = 3.0,
    ) -> Path:
        coder = coder or CODERS[ext]
        path = self.folder / f"{ext}{offset}{coder.split()[0]}{rate}{layout}{seconds}.{ext}"
        drawn = "color=black:size=96x64:rate=25:duration=3,drawbox=t=fill:color=white:enable='gt(n\\,0)*eq(mod(n\\,25)\\,0)'"
        pictures = ("-itsoffset", max(0.0, -offset), "-f", "lavfi", "-i", drawn)
        audio = ("-itsoffset", max(0.0, offset), "-f", "lavfi", "-i", beeps(offset, seconds, rate))
        options = {
            "libx264": ("-preset", "ultrafast", "-bf", 2, "-g", 25),
            "libvpx": ("-deadline", "realtime", "-g", 25),
        }
        self.ffmpeg.run(
            *pictures,
            *audio,
            "-map",
            0,
            "-map",
            1,
            "-c:v",
            PICTURES[ext],
            *options.get(PICTURES[ext], ()),
            "-threads",
            1,
            "-pix_fmt",
            "yuv420p",
            "-colorspace",
            "bt709",
            "-color_range",
            "tv",
            "-b:a",
            "128k",
            "-c:a",
            *coder.split(),
            "-af",
            f"aformat=channel_layouts={layout}",
            "-fflags",
            "+bitexact",
            path,
        )
        return path


def settings(mode: str, container: str, **more: Any) -> RunSettings:
    encoder = (
        EncoderOptions(codec="vp9", container="webm", preset="8")
        if container == "webm"
        else EncoderOptions(container=container, preset="ultrafast")
    )
    return RunSettings(VideoOutput(encoder, audio=mode), **more)


def made(source: Path, asked: RunSettings, folder: Path, cut: tuple[float, float] | None = None) -> tuple[Any, Path]:
    start, end = cut or (None, None)
    name = f"out.{asked.output.extension}"
    stat = source.stat()
    row = run_job(
        WholeJob(
            Unit("out", str(source), stat.st_size, stat.st_mtime_ns, Cut(start, end)), asked, name, str(folder / name)
        )
    )
    return row, folder / name


def good(source: Path, asked: RunSettings, folder: Path, cut: tuple[float, float] | None = None) -> tuple[Any, Path]:
    row, path = made(source, asked, folder, cut)
    assert row.ok, f"{row.stage}: {row.message}"
    return row, path


def flashes(path: Path) -> list[float]:
    with av.open(str(path)) as container:
        white = [
            (float(f.pts * f.time_base), f.to_ndarray(format="gray").mean() > 128) for f in container.decode(video=0)
        ]
    return [time for (time, now), (_, before) in zip(white[1:], white, strict=False) if now and not before]


def heard(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Time of every decoded sample, and its loudness over the channels."""
    times, levels = [], []
    with av.open(str(path)) as container:
        for frame in container.decode(audio=0):
            block = frame.to_ndarray().astype(float)
            block = block if frame.format.is_planar else block.reshape(frame.samples, -1).T
            times.append(float(frame.pts * frame.time_base) + np.arange(frame.samples) / frame.sample_rate)
            levels.append(np.abs(block).max(0) / (32768 if frame.format.name.startswith("s16") else 1))
    return np.concatenate(times), np.concatenate(levels)


def onsets(path: Path) -> list[float]:
    """Where audio gets loud after 0.3 s of silence."""
    time, level = heard(path)
    loud = time[level > 0.3]
    return [float(now) for now, before in zip(loud, [-1.0, *loud], strict=False) if now - before > 0.3]


def packets(path: Path, kind: str) -> list[tuple[int, int, bytes]]:
    with av.open(str(path)) as container:
        stream = getattr(container.streams, kind)[0]
        return [(p.pts, p.dts, bytes(p)) for p in container.demux(stream) if p.size]


def holds(path: Path) -> list[str]:
    with av.open(str(path)) as container:
        return sorted(stream.type for stream in container.streams)


def remuxed(source: Path, path: Path, change: Any) -> Path:
    """The same packets, but audio is what `change(seconds, bytes)` makes of it: None leaves a packet out."""
    with av.open(str(source)) as old, av.open(str(path), "w") as new:
        streams = {s.index: new.add_stream_from_template(s) for s in old.streams}
        for packet in old.demux():
            if packet.dts is None:
                continue
            kept = packet
            if packet.stream.type == "audio":
                content = change(float(packet.pts * packet.time_base), bytes(packet))
                if content is None:
                    continue
                kept = av.Packet(content)
                kept.pts, kept.dts, kept.time_base, kept.duration = (
                    packet.pts,
                    packet.dts,
                    packet.time_base,
                    packet.duration,
                )
            kept.stream = streams[packet.stream_index]
            new.mux(kept)
    return path


def in_sync(path: Path, within: float = 0.002) -> list[float]:
    white, loud = flashes(path), onsets(path)
    assert len(white) == len(loud) == len(FLASHES), (white, loud)
    apart = [b - a for a, b in zip(white, loud, strict=True)]
    assert max(map(abs, apart)) < within, apart
    return white
