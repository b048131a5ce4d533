"""Bombs, what cannot be read, and damage."""

from __future__ import annotations

import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.formats.video.openings import FFMPEG, decode_all, ffmpeg_reading
from tests.helpers import Ran, leftovers, make_clip, manifest, outputs, transcode
from vidprep.formats.errors import LimitError, NoVideoError, ReadError
from vidprep.formats.video.source import Source

pytestmark = pytest.mark.logs_errors


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few kB of VP9 that are 24 million pixels a frame."""
    return make_clip(tmp_path_factory.mktemp("bomb") / "bomb.webm", 1, (4224, 4224), codec="libvpx-vp9")


@pytest.fixture(scope="module")
def grows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream that says 64x48 and goes on at 640x480."""
    path = tmp_path_factory.mktemp("grows") / "grows.avi"
    numbers = np.random.default_rng(1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for number in range(12):
            encoder = av.CodecContext.create("mjpeg", "w")
            encoder.width, encoder.height = (64, 48) if number < 8 else (640, 480)
            encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, 25)
            picture = numbers.integers(0, 255, (encoder.height, encoder.width, 3), dtype=np.uint8)
            for packet in encoder.encode(av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format="yuvj420p")):
                packet.stream, packet.pts, packet.dts = stream, number, number
                packet.time_base = Fraction(1, 25)
                container.mux_one(packet)
    return path


def test_a_bomb_is_refused_before_its_pixels_take_memory(bomb: Path) -> None:
    code = f"""
import resource
from vidprep.formats.errors import LimitError
from vidprep.formats.video.source import Source
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    with Source({str(bomb)!r}, max_pixels=1_000_000) as source:
        for frame in source.decode(source.packets()):
            pass
except LimitError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    kilobytes, _, message = done.stdout.partition(" ")
    assert "--max-pixels" in message
    assert int(kilobytes) < 12_000, f"one frame is 27 MB, and {kilobytes} kB were taken"


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_limits_are_failed_rows_that_name_the_option(bomb: Path, grows: Path, tmp_path: Path, engine: str) -> None:
    src = tmp_path / "src"
    src.mkdir()
    shutil.copy(bomb, src / "bomb.webm")
    shutil.copy(grows, src / "grows.avi")
    make_clip(src / "long.mp4", 40)
    make_clip(src / "good.mp4", 10)
    ran = transcode(src, tmp_path / "dst", "--json", "--engine", engine, "--max-pixels", 10_000, "--max-frames", 20)
    assert ran.code == 1
    assert {key: row["error"] for key, row in ran.rows.items()} == {
        "bomb": "LimitError",
        "grows": "LimitError",
        "long": "LimitError",
        "good": None,
    }, ran.err
    assert "--max-frames" in ran.rows["long"]["message"] and "--max-pixels" in ran.rows["bomb"]["message"]
    assert set(outputs(tmp_path / "dst")) == {"good.mp4"}


def test_the_decoders_pixel_limit_applies_if_the_header_claims_less(
    grows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LimitError, match="--max-pixels"):
        decode_all(grows, max_pixels=10_000)
    monkeypatch.setattr(Source, "_make_decoder", lambda self, *_: self._stream.codec_context)
    with Source(grows, max_pixels=10_000) as source:
        assert {frame.width for frame in source.decode(source.packets())} == {64, 640}, (
            "the option was not what stopped it"
        )


@pytest.mark.long
def test_the_ffmpeg_commands_pixel_limit_applies(grows: Path, tmp_path: Path) -> None:
    like = make_clip(tmp_path / "like.mp4", 3)
    wide = make_clip(tmp_path / "wide.mp4", 1, (6016, 6016))
    assert not ffmpeg_reading(wide, like).stdout
    assert ffmpeg_reading(wide, like, without="max_pixels").stdout


def test_an_encrypted_video_says_so(shared_media: Path, tmp_path: Path) -> None:
    path = shared_media / "bad" / "encrypted_cenc_h264.mp4"
    if not path.exists():
        pytest.skip(f"not at {path}")
    with pytest.raises(ReadError, match="encrypted"):
        decode_all(path)
    ran = transcode(path, tmp_path / "dst", "--json")
    assert ran.code == 1
    assert "encrypted" in ran.rows["encrypted_cenc_h264"]["message"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\0", "not a readable video"),
        (b"\0" * 5000, "not a readable video"),
        (b"\xff" * 5000, "not a readable video"),
        (b"RIFF", "not a readable video"),
    ],
)
def test_a_file_without_video_is_a_read_error(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(ReadError, match=said):
        decode_all(path)


def test_sound_alone_and_files_that_are_not_there(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(NoVideoError, match="audio"):
        decode_all(tmp_path / "a.mp4")
    with pytest.raises(ReadError, match="No such file"):
        decode_all(tmp_path / "b.mp4")
    with pytest.raises(ReadError):
        decode_all(tmp_path)


FRAMES = 24


CONTAINERS: dict[str, tuple[str, dict[str, str]]] = {
    "a.mkv": ("libx264", {}),
    "a.webm": ("libvpx-vp9", {}),
    "a.avi": ("mpeg4", {}),
    "a.ts": ("libx264", {}),
    "a.mp4": ("libx264", {}),
    "index_first.mp4": ("libx264", {"movflags": "faststart"}),
    "fragments.mp4": ("libx264", {"movflags": "frag_keyframe+empty_moov"}),
}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wholes")
    return {
        name: make_clip(folder / name, FRAMES, (96, 64), codec=codec, muxing=muxing, options={"g": "8"})
        for name, (codec, muxing) in CONTAINERS.items()
    }


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_truncated_file_is_always_damaged(wholes: dict[str, Path], tmp_path: Path, name: str) -> None:
    data = wholes[name].read_bytes()
    assert decode_all(wholes[name]) == (FRAMES, [])
    cuts = {len(data) * part // 100 for part in (1, 50, 99)} | set(range(0, 2048, 9))
    path = tmp_path / name
    clean = []
    for cut in sorted(cuts):
        path.write_bytes(data[:cut])
        try:
            count, damage = decode_all(path)
        except ReadError:
            continue
        if not damage and count < FRAMES:
            clean.append(f"{cut} of {len(data)} bytes: {count} frames")
    assert clean == []


@pytest.mark.parametrize("name", ["a.mkv", "a.avi", "index_first.mp4", "a.ts"])
def test_errors_logged_by_ffmpeg_are_damage(wholes: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Held against what the ffmpeg program says of the same file."""
    data = wholes[name].read_bytes()
    numbers = np.random.default_rng(11)
    path = tmp_path / name
    told = 0
    for _ in range(8):
        flipped = bytearray(data)
        for at in numbers.integers(len(data) // 3, len(data) - 600, 6):
            flipped[at] ^= int(numbers.integers(1, 256))
        path.write_bytes(flipped)
        said = subprocess.run(
            [FFMPEG, "-v", "error", "-threads", "1", "-i", str(path), "-f", "null", "-"],
            capture_output=True,
            check=False,
            timeout=300,
        ).stderr
        try:
            count, damage = decode_all(path)
        except ReadError:
            continue
        told += bool(said)
        assert damage or not said.strip(), f"{count} frames, clean; ffmpeg says {said!r}"
    assert told, "no flip did any harm"


# Whole as far as a decoder can tell; all the rest is damaged, empty or no video.
WHOLE = {
    "jpeg_named",
    "mdat_too_long",
    "missing_stsd",
    "failing_audio_track",
    "no_duration",
    "earth_bad_container",
    "made_flv_named",
}


@pytest.mark.media
def test_the_bad_files_of_the_shared_media_are_a_row_each_and_no_damaged_one_is_clean(
    shared_media: Path, tmp_path: Path
) -> None:
    bad = shared_media / "bad"
    if not bad.is_dir():
        pytest.skip(f"no {bad}")
    dst = tmp_path / "dst"
    args = ("--json", "--jobs", 2, "--fps", 4, "--short-side", 64, "--preset", "ultrafast")
    ran = transcode(bad, dst, *args)
    assert ran.code == 1
    names = {path.stem for path in bad.iterdir() if path.suffix != ".csv"}
    assert set(ran.rows) == names == set(manifest(dst))
    state = {}
    for name, row in ran.rows.items():
        damaged = any(text.startswith("damaged: ") for text in row["warnings"])
        state[name] = "failed" if row["status"] == "failed" else "damaged" if damaged else "clean"
    assert {name for name, how in state.items() if how == "clean"} <= WHOLE, state
    assert {path.removesuffix(".mp4") for path in outputs(dst)} == {n for n, how in state.items() if how != "failed"}
    assert leftovers(dst) == []
    assert_messages_are_for_people(ran)


def assert_messages_are_for_people(ran: Ran) -> None:
    for row in ran.rows.values():
        if row["status"] == "failed":
            assert row["message"] and row["stage"] != "run", row
            assert "\n" not in row["message"]
