"""Reading is hostile until shown otherwise: scripts, playlists, names, bombs, cut and flipped files; and each lock bites.

Tests are named after the rows of the fault table. Every attack is first shown to work with its lock taken off: libav
ignores an option it does not know in silence.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import imageio_ffmpeg
import numpy as np
import pytest

from tests.helpers import Ran, leftovers, make_clip, manifest, outputs, transcode
from vidprep.formats.errors import LimitError, NoVideoError, ReadError, RefusedError
from vidprep.formats.model import OutputFormat
from vidprep.formats.video import source as video
from vidprep.formats.video.source import DEMUXERS, READ_OPTIONS, Source, file_url
from vidprep.transcode.media.ffmpeg import build_command
from vidprep.transcode.media.picture_filter import PictureFilter
from vidprep.transcode.media.timeline import SourceFacts, source_frames
from vidprep.transcode.settings.run import RunSettings

CANARY = "canary-4711-do-not-tell"
PLENTY = 36_000_000
FFMPEG = imageio_ffmpeg.get_ffmpeg_exe()

pytestmark = pytest.mark.logs_errors


class Trap:
    """A socket that listens on the loopback and counts who calls."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]

    def calls(self) -> int:
        count = 0
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def trap() -> Iterator[Trap]:
    made = Trap()
    yield made
    made.close()


def attacks(port: int) -> dict[str, str]:
    """File name -> what it says. secret.txt lies beside all of them."""
    hls = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"
    mpd = (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S" '
        'profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period><AdaptationSet mimeType="video/mp4"><Representation '
        f'id="1" bandwidth="1"><BaseURL>http://127.0.0.1:{port}/a.mp4</BaseURL></Representation></AdaptationSet></Period></MPD>'
    )
    return {
        "concat.mp4": "ffconcat version 1.0\nfile secret.txt\n",
        "concat.mkv": "ffconcat version 1.0\nfile 'secret.txt'\nduration 5\n",
        "concat.avi": f"ffconcat version 1.0\nfile http://127.0.0.1:{port}/x.mp4\n",
        "itself.mp4": "ffconcat version 1.0\nfile itself.mp4\n",
        "playlist.mp4": hls.format("secret.txt"),
        "playlist.m3u8": hls.format("secret.txt"),
        "caller.m3u8": hls.format(f"http://127.0.0.1:{port}/x.ts"),
        "caller.mp4": hls.format(f"http://127.0.0.1:{port}/x.ts"),
        "session.mp4": f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 96\n"
        "a=rtpmap:96 H264/90000\n",
        "session.sdp": f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 96\n"
        "a=rtpmap:96 H264/90000\n",
        "dash.mpd": mpd,
        "dash.mp4": mpd,
        "text.mp4": f"{CANARY}\n" * 100,
    }  # fmt: skip


@pytest.fixture
def hostile(tmp_path: Path, trap: Trap) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "secret.txt").write_text(f"{CANARY}\n" * 50)
    for name, text in attacks(trap.port).items():
        (folder / name).write_text(text)
    return folder


def decode_all(path: Path, max_pixels: int = PLENTY) -> tuple[int, list[str]]:
    """How many frames a source gives, and what says that it is damaged."""
    with Source(path, max_pixels=max_pixels) as source:
        count = sum(1 for _ in source_frames(source, SourceFacts(), start=None, end=None, max_frames=1_000_000))
        return count, source.damage(read_to_end=True)


# ---------------------------------------------------------------------------------------------- F22: content


@pytest.mark.parametrize("name", attacks(0))
def test_f22_scripts_and_playlists_are_refused_and_nothing_else_is_read(hostile: Path, trap: Trap, name: str) -> None:
    with pytest.raises(ReadError) as error:
        decode_all(hostile / name)
    assert CANARY not in str(error.value)
    assert error.value.path == str(hostile / name)
    if name.startswith("concat"):
        assert isinstance(error.value, RefusedError) and error.value.message.endswith("no video file (concat)")
    assert trap.calls() == 0


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_f22_a_folder_of_attacks_is_a_failed_row_each(hostile: Path, trap: Trap, tmp_path: Path, engine: str) -> None:
    make_clip(hostile / "good.mp4", 5)
    listed = tmp_path / "all.csv"
    names = [*attacks(0), "good.mp4"]
    listed.write_text("path,id\n" + "".join(f"src/{name},{name.replace('.', '_')}\n" for name in names))
    dst = tmp_path / "dst"
    ran = transcode(listed, dst, "--json", "--engine", engine)
    assert ran.code == 1
    assert {key: row["status"] for key, row in ran.rows.items()} == {
        name.replace(".", "_"): "ok" if name == "good.mp4" else "failed" for name in names
    }
    assert set(outputs(dst)) == {"good_mp4.mp4"} and leftovers(dst) == []
    assert trap.calls() == 0
    assert CANARY not in ran.out + ran.err
    assert all(CANARY.encode() not in path.read_bytes() for path in dst.rglob("*") if path.is_file())


def test_f23_without_the_demuxer_list_the_concat_script_shows_the_secret(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "READ_OPTIONS", {k: v for k, v in READ_OPTIONS.items() if k != "format_whitelist"})
    with Source(hostile / "concat.mp4", max_pixels=PLENTY) as source:
        assert source.info.format_name == "concat"
        assert sum(1 for _ in source.decode(source.packets())) > 0


def test_f23_without_the_protocol_list_a_name_with_a_protocol_opens(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.ts", 5)
    name = f"concat:{clip}"
    open_ended = {k: v for k, v in READ_OPTIONS.items() if k != "protocol_whitelist"}
    with av.open(name, options=open_ended) as container:
        assert container.streams.video
    with pytest.raises((OSError, ValueError)):
        av.open(name, options=READ_OPTIONS)


def test_f23_every_demuxer_on_the_list_exists() -> None:
    """A name that libav does not know would shut out what it was meant to let in."""
    known = {part for name in av.formats_available for part in name.split(",")}
    newer = {"webp_anim"} if int(av.__version__.split(".")[0]) < 19 else set()  # FFmpeg 8 has it not
    assert set(DEMUXERS.split(",")) - newer <= known


def test_f23_no_demuxer_on_the_list_follows_names() -> None:
    following = {
        "concat",
        "hls",
        "dash",
        "imf",
        "sdp",
        "rtsp",
        "tty",
        "image2",
        "lavfi",
        "webm_dash_manifest",
        "ffmetadata",
    }
    assert not following & set(DEMUXERS.split(","))


def ffmpeg_reading(path: Path, like: Path, *, without: str | None = None) -> subprocess.CompletedProcess[bytes]:
    """The ffmpeg command for the clip `like`, with another source put in and maybe an option left out; frames to a null output."""
    settings = RunSettings()
    with Source(like, max_pixels=PLENTY) as source:
        first = next(source_frames(source, SourceFacts(), start=None, end=None, max_frames=10))
        picture_filter = PictureFilter(first.frame, source.info, settings, "yuv420p")
        info = source.info
        output = OutputFormat(
            size=picture_filter.picture.size, pixel_format="yuv420p", colour=picture_filter.picture.colour, time_base=info.time_base,
            frame_rate=None, nominal_rate=Fraction(25),
        )  # fmt: skip
    command = build_command(
        FFMPEG, str(like), like.with_suffix(".out"), picture_filter.picture, output, info, settings, None, None
    )
    at = command.index("-i")
    reading = command[: at + 1]
    if without:
        gone = reading.index(f"-{without}")
        del reading[gone : gone + 2]
    return subprocess.run(
        [*reading, file_url(path), "-map", "0:v", "-f", "rawvideo", "-"], capture_output=True, check=False, timeout=60
    )


@pytest.mark.parametrize("name", attacks(0))
def test_f22_the_ffmpeg_command_alone_refuses_them_too(hostile: Path, trap: Trap, tmp_path: Path, name: str) -> None:
    """The in-process reader comes first in every run; this is what stands if the file is swapped in between."""
    like = make_clip(tmp_path / "like.mp4", 3)
    done = ffmpeg_reading(hostile / name, like)
    assert done.returncode != 0 and done.stdout == b""
    assert CANARY.encode() not in done.stderr
    assert trap.calls() == 0


def test_f23_without_the_demuxer_list_the_ffmpeg_command_shows_the_secret(hostile: Path, tmp_path: Path) -> None:
    like = make_clip(tmp_path / "like.mp4", 3)
    assert len(ffmpeg_reading(like, like).stdout) == 3 * 64 * 48 * 3 // 2
    assert ffmpeg_reading(hostile / "concat.mp4", like, without="format_whitelist").stdout


# ---------------------------------------------------------------------------------------------- F24: names

ODD_NAMES = (
    "-y.mp4", "--version.mp4", "a b.mp4", "it's.mp4", 'say "a".mp4', "new\nline.mp4", "%03d.mp4", "%d%d.mp4", "*.mp4", "?.mp4",
    "[a].mp4", "ünïcödé-日本.mp4", "a:b.mp4", "http:x.mp4", "http:127.0.0.1:{port}.mp4", "tcp:127.0.0.1:{port}.mp4",
    "concat:x.mp4", "concat:a|b.mp4", "data:x.mp4", "subfile,,start,0,end,9,,:x.mp4", "pipe:0.mp4", "pipe:.mp4", "file:x.mp4",
    "crypto:x.mp4", "async:x.mp4", "cache:x.mp4", "fd:.mp4", "$HOME.mp4", "`id`.mp4", ";ls.mp4", "a\\b.mp4", "=1+1.mp4",
    "<img src=x>.mp4", "\x1b[31mred.mp4", "a,b=c.mp4", "tee:[f=mp4]x.mp4", "#.mp4", "~.mp4",
)  # fmt: skip


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_f24_odd_names_are_plain_files(tmp_path: Path, trap: Trap, engine: str) -> None:
    clip = make_clip(tmp_path / "clip.mp4", 3)
    src, dst = tmp_path / "src", tmp_path / "dst: %03d 'x'"
    src.mkdir()
    names = [name.format(port=trap.port) if "{port}" in name else name for name in ODD_NAMES]
    for name in names:
        shutil.copy(clip, src / name)
    ran = transcode(src, dst, "--json", "--engine", engine, "--preset", "ultrafast", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert set(outputs(dst)) == set(names)
    assert {row["source"] for row in manifest(dst).values()} == {str(src / name) for name in names}
    assert {row["num_frames"] for row in ran.rows.values()} == {3}
    assert trap.calls() == 0
    assert transcode(src, dst, "--json", "--engine", engine, "--preset", "ultrafast").summary["done_before"] == len(
        names
    )


@pytest.mark.parametrize("name", ["-y.mp4", "a:b.mp4", "http:x.mp4", "concat:x.mp4", "%03d.mp4"])
def test_f24_one_odd_name_from_the_folder_it_lies_in(tmp_path: Path, name: str) -> None:
    make_clip(tmp_path / "clip.mp4", 3).rename(tmp_path / name)
    ran = transcode("--", name, "dst", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert set(outputs(tmp_path / "dst")) == {name}


def test_f23_without_the_file_prefix_such_a_name_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_clip(tmp_path / "clip.mp4", 3).rename(tmp_path / "a:b.mp4")
    monkeypatch.chdir(tmp_path)
    assert decode_all(Path("a:b.mp4"))[0] == 3
    monkeypatch.setattr(video, "file_url", str)
    with pytest.raises(ReadError):
        decode_all(Path("a:b.mp4"))


def test_f29_terminal_escapes_and_newlines_in_names_are_shown_not_obeyed(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    (src / "\x1b[31mred\nline.mp4").write_bytes(b"no video")
    ran = transcode(src, tmp_path / "dst", "--json")
    assert "\x1b" not in ran.err and "\\x1b[31mred\\nline" in ran.err
    assert ran.out.count("\n") == 2


# ---------------------------------------------------------------------------------------------- F25: bombs


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


def test_f25_a_bomb_is_refused_before_its_pixels_take_memory(bomb: Path) -> None:
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    kilobytes, _, message = done.stdout.partition(" ")
    assert "--max-pixels" in message
    assert int(kilobytes) < 12_000, f"one frame is 27 MB, and {kilobytes} kB were taken"


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_f25_limits_are_failed_rows_that_name_the_option(bomb: Path, grows: Path, tmp_path: Path, engine: str) -> None:
    src = tmp_path / "src"
    src.mkdir()
    shutil.copy(bomb, src / "bomb.webm")
    shutil.copy(grows, src / "grows.avi")
    make_clip(src / "long.mp4", 40)
    make_clip(src / "good.mp4", 10)
    ran = transcode(src, tmp_path / "dst", "--json", "--engine", engine, "--max-pixels", 10_000, "--max-frames", 20)
    assert ran.code == 1
    assert {key: row["error"] for key, row in ran.rows.items()} == {
        "bomb": "LimitError", "grows": "LimitError", "long": "LimitError", "good": None,
    }, ran.err  # fmt: skip
    assert "--max-frames" in ran.rows["long"]["message"] and "--max-pixels" in ran.rows["bomb"]["message"]
    assert set(outputs(tmp_path / "dst")) == {"good.mp4"}


def test_f23_the_pixel_limit_of_the_decoder_bites_where_the_header_is_small(
    grows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LimitError, match="--max-pixels"):
        decode_all(grows, max_pixels=10_000)
    monkeypatch.setattr(Source, "_make_decoder", lambda self, *_: self._stream.codec_context)
    with Source(grows, max_pixels=10_000) as source:
        assert {frame.width for frame in source.decode(source.packets())} == {64, 640}, (
            "the option was not what stopped it"
        )


def test_f23_the_pixel_limit_of_the_ffmpeg_command_bites(grows: Path, tmp_path: Path) -> None:
    like = make_clip(tmp_path / "like.mp4", 3)
    wide = make_clip(tmp_path / "wide.mp4", 1, (6016, 6016))
    assert not ffmpeg_reading(wide, like).stdout
    assert ffmpeg_reading(wide, like, without="max_pixels").stdout


# ---------------------------------------------------------------------------------------------- what cannot be read


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
        (b"\0", "no video"),
        (b"\0" * 5000, "no video"),
        (b"\xff" * 5000, "no video"),
        (b"RIFF", "no video"),
    ],
)
def test_what_is_no_video_is_a_read_error(tmp_path: Path, content: bytes, said: str) -> None:
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


# ---------------------------------------------------------------------------------------------- F9, F10: damage

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
def test_f10_a_file_that_was_cut_is_never_clean(wholes: dict[str, Path], tmp_path: Path, name: str) -> None:
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
def test_f9_what_ffmpeg_logs_as_an_error_is_damage(wholes: dict[str, Path], tmp_path: Path, name: str) -> None:
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
            capture_output=True, check=False, timeout=60,
        ).stderr  # fmt: skip
        try:
            count, damage = decode_all(path)
        except ReadError:
            continue
        told += bool(said)
        assert damage or not said.strip(), f"{count} frames, clean; ffmpeg says {said!r}"
    assert told, "no flip did any harm"


# Whole as far as a decoder can tell; all the rest is damaged, empty or no video.
WHOLE = {
    "jpeg_named", "mdat_too_long", "missing_stsd", "failing_audio_track", "no_duration", "earth_bad_container",
    "made_flv_named",
}  # fmt: skip


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
