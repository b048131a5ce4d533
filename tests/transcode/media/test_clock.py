"""Times of outputs: any time base, any gap, frames closer than a container's tick; read back by number and by others."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from tests.helpers import make_clip, manifest, transcode
from tests.recipes import moving
from vidprep.formats import open_store
from vidprep.formats.errors import EncodeError, SettingsError
from vidprep.formats.model import Colour, FrameSize, OutputFormat
from vidprep.formats.moments import OutputClock, file_time_base
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.media.audio import AudioTrack
from vidprep.transcode.media.encode import encode_and_measure
from vidprep.transcode.media.frames import OutputFrame, SourceFacts, SourceFrame, retime
from vidprep.transcode.media.stream import FilteredFrame
from vidprep.transcode.media.verify import check_file
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings

INT32 = (1 << 31) - 1
SIZE = (64, 64)


def pictures(count: int, size: tuple[int, int] = SIZE) -> list[np.ndarray]:
    """No two alike, and each survives a lossy encoder."""
    numbers = np.random.default_rng(7)
    width, height = size
    blocks = numbers.integers(16, 235, (count, height // 8, width // 8), dtype=np.uint8)
    return list(blocks.repeat(8, 1).repeat(8, 2))


def frame_of(luma: np.ndarray) -> av.VideoFrame:
    chroma = np.full((luma.shape[0] // 2, luma.shape[1]), 128, np.uint8)
    return av.VideoFrame.from_ndarray(np.vstack([luma, chroma]), format="yuv420p")


def which(luma: np.ndarray, of: Sequence[np.ndarray]) -> int:
    """The number of the picture that this one is."""
    return int(np.argmin([np.abs(luma.astype(np.int16) - one).mean() for one in of]))


def numbered_clip(path: Path, pts: Sequence[int], time_base: Fraction, *, muxing: dict[str, str] | None = None) -> Path:
    """A clip of numbered pictures, coded one by one and without loss of order, at exactly these times."""
    with av.open(str(path), "w", container_options=muxing or {}) as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = SIZE[0], SIZE[1], "yuv420p"
        stream.time_base = stream.codec_context.time_base = time_base
        stream.codec_context.options = {"preset": "ultrafast", "qp": "8", "bf": "0"}
        for tick, luma in zip(pts, pictures(len(pts)), strict=True):
            frame = frame_of(luma)
            frame.pts, frame.time_base = tick, time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def luma_by_number(destination: Path, id_: str, numbers: Sequence[int]) -> list[np.ndarray]:
    return [np.asarray(frame.mean(-1), np.uint8) for frame in open_store(destination)[id_].frames(numbers)]


# ------------------------------------------------------------------------------------------------ any time base

TICKS = st.one_of(
    st.tuples(st.integers(1, INT32), st.integers(1, INT32)),
    st.tuples(st.integers(1, 100_000), st.integers(1, 10**9)),
    st.tuples(st.just(1), st.sampled_from([1000, 90_000, 10**6, 10**7, 10**9])),
)
GAPS = st.one_of(st.none(), st.integers(1, 1 << 32), st.integers(1, 1 << 16))


@given(
    ticks=TICKS,
    gap=GAPS,
    step=st.integers(1, 4000),
    box=st.sampled_from(["mp4", "mkv", "webm"]),
    constant=st.booleans(),
)
@example(ticks=(33333, 1000000), gap=None, step=1, box="mp4", constant=False)
@example(ticks=(16728703, 10**9), gap=30, step=1, box="mp4", constant=False)
@example(ticks=(1000191, 10**9), gap=1000, step=1, box="mp4", constant=False)
@example(ticks=(1, 1000), gap=37 * 3600_000, step=33, box="mp4", constant=False)
@example(ticks=(1, 1000), gap=3700_000, step=33, box="mp4", constant=False)
@example(ticks=(33333, 1000000), gap=None, step=1, box="mp4", constant=True)
@example(ticks=(1 << 30, 1), gap=None, step=1, box="mkv", constant=False)
@example(ticks=(1, 10**9), gap=None, step=1, box="mp4", constant=False)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_time_base_with_any_gap_gives_the_right_times_or_a_clear_failure(ticks, gap, step, box, constant, tmp_path):
    time_base = Fraction(*ticks)
    if constant and (
        not Fraction(1, 1000) <= time_base <= 1000 or max(time_base.numerator, time_base.denominator) > INT32
    ):
        return
    wanted = list(itertools.accumulate([0] + [step] * 11))
    if gap is not None:
        wanted = [tick + gap * (number > 5) for number, tick in enumerate(wanted)]
    if constant:
        wanted = list(range(12))
    made = tmp_path / f"made.{box}"
    codec = "vp9" if box == "webm" else "h264"
    options = EncoderOptions(codec=codec, container=box, preset=None, gop=6)
    chosen = RunSettings(VideoOutput(options))
    output = OutputFormat(
        FrameSize(*SIZE), "yuv420p", Colour(1, 1, 1), time_base, 1 / time_base if constant else None, Fraction(30)
    )
    facts = SourceFacts()
    sources = [
        SourceFrame(frame_of(luma), tick, tick + 1, number)
        for number, (luma, tick) in enumerate(zip(pictures(12), wanted, strict=True))
    ]
    base = file_time_base(box, time_base, is_constant=constant)
    timed = retime(
        sources,
        OutputClock(1 / time_base, Fraction(0)) if constant else None,
        time_base,
        facts,
        Fraction(0),
        file_base=base,
    )
    stream: Any = Stream(output, list(timed))
    try:
        silence = AudioTrack(made, "drop", box, origin=Fraction(0))
        measured = encode_and_measure(chosen, made, stream, silence)
    except EncodeError as error:
        assert not constant
        assert "s apart" in error.message or "limit" in error.message
        return
    check_file(made, measured, options.codec, time_base)
    with av.open(str(made)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        clock = Fraction(cast(Any, stream.time_base).numerator, cast(Any, stream.time_base).denominator)
    found = [frame.pts for frame in frames]
    assert found == sorted(set(found))
    assert [which(frame.to_ndarray()[: SIZE[1]], pictures(12)) for frame in frames] == list(range(12))
    if not facts.stamps_spaced:
        assert all(
            abs(at * clock - tick * time_base) <= max(clock / 2, Fraction(0))
            for at, tick in zip(found, wanted, strict=True)
        )


@dataclass
class Stream:
    """Frames that need no filters."""

    output: OutputFormat
    frames: list[OutputFrame]

    def filter(self) -> Iterator[FilteredFrame]:
        for frame in self.frames:
            yield FilteredFrame(frame.frame, frame.pts, frame.duration)


@pytest.mark.parametrize("rate", ["29.97003", "1000000/33333", "1000", "0.001"])
def test_any_rate_that_may_be_asked_makes_an_mp4(rate, tmp_path):
    make_clip(tmp_path / "src" / "a.mp4", 8)
    ran = transcode(tmp_path / "src", tmp_path / "dst", "--fps", rate, "--preset", "ultrafast")
    assert ran.code == 0, ran.err
    row = manifest(tmp_path / "dst")["a"]
    assert Fraction(row["frame_rate_num"], row["frame_rate_den"]) == Fraction(rate)
    with av.open(str(tmp_path / "dst" / "a.mp4")) as container:
        times = sorted(Fraction(p.pts * p.time_base) for p in container.demux(video=0) if p.size)
    assert times == [number / Fraction(rate) for number in range(len(times))]


def test_a_rate_with_more_digits_than_libavcodec_counts_is_refused_before_work():
    with pytest.raises(SettingsError, match="fewer digits"):
        Retime(Fraction("29.97002997002997002997"))


def test_a_camera_that_counts_in_microseconds_per_frame_keeps_its_times(tmp_path, cli):
    (tmp_path / "src").mkdir()
    cli.run(*moving(rate="1000000/33333", frames=12), "-c:v", "mjpeg", tmp_path / "src" / "camera.avi")
    for engine in ("av", "ffmpeg"):
        ran = transcode(tmp_path / "src", tmp_path / engine, "--engine", engine)
        assert ran.code == 0, ran.err
        shown = cli.frames(tmp_path / engine / "camera.mp4")
        assert len(shown) == 12
        store = open_store(tmp_path / engine)["camera"]
        assert np.allclose(store.timestamps, np.arange(12) * 0.033333)
        assert store.frames().shape[0] == 12


# ------------------------------------------------------------------------------------------------ closer than a tick

CLOSE = [number * 3000 for number in range(30)]
CLOSE[10] = CLOSE[9] + 27
CLOSE[20], CLOSE[21] = CLOSE[19] + 1, CLOSE[19] + 2


def test_a_clock_finer_than_libvpx_starts_with_is_made_all_the_same(tmp_path):
    scale = INT32
    numbered_clip(
        tmp_path / "fine.mp4",
        [number * (scale // 30) for number in range(12)],
        Fraction(1, scale),
        muxing={"video_track_timescale": str(scale)},
    )
    ran = transcode(tmp_path / "fine.mp4", tmp_path / "dst", "--codec", "vp9")
    assert ran.code == 0, ran.err
    got = luma_by_number(tmp_path / "dst", "fine", range(12))
    assert [which(luma, pictures(12)) for luma in got] == list(range(12))


@pytest.mark.parametrize(("codec", "box"), [("h264", "mkv"), ("hevc", "mkv"), ("vp9", "webm"), ("av1", "webm")])
def test_frames_closer_than_a_tick_of_the_container_stay_apart_and_are_reached_by_number(codec, box, tmp_path):
    (tmp_path / "src").mkdir()
    numbered_clip(tmp_path / "src" / "close.mp4", CLOSE, Fraction(1, 90000))
    options = ("--codec", codec, "--container", box, "--gop", 10)
    ran = transcode(tmp_path / "src", tmp_path / "dst", *options)
    assert ran.code == 0, ran.err
    row = manifest(tmp_path / "dst")["close"]
    assert any("closer than a tick of the container" in text for text in row["warnings"])
    with av.open(str(tmp_path / "dst" / row["file_name"])) as container:
        shown = sorted(packet.pts for packet in container.demux(video=0) if packet.size)
    assert len(set(shown)) == 30
    assert all(abs(at - tick / 90) <= 3 for at, tick in zip(shown, CLOSE, strict=True))
    order = random.Random(3).sample(range(30), 30)
    found = luma_by_number(tmp_path / "dst", "close", order)
    assert [which(luma, pictures(30)) for luma in found] == order
    assert transcode(tmp_path / "src", tmp_path / "dst", "--quiet", verb="validate").code == 0
