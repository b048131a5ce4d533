"""Opening, names, content: sources with the doors shut."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import av
import pytest

from tests.formats.video.openings import PLENTY, decode_all, ffmpeg_reading
from tests.helpers import leftovers, make_clip, manifest, outputs, transcode
from tests.sampling import in_turn
from vidprep.formats.errors import ReadError, RefusedError
from vidprep.formats.video import source as video
from vidprep.formats.video.source import DEMUXERS, READ_OPTIONS, Source

CANARY = "canary-4711-do-not-tell"


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
    }


@pytest.fixture
def hostile(tmp_path: Path, trap: Trap) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "secret.txt").write_text(f"{CANARY}\n" * 50)
    for name, text in attacks(trap.port).items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", attacks(0))
def test_scripts_and_playlists_are_refused_and_nothing_else_is_read(hostile: Path, trap: Trap, name: str) -> None:
    with pytest.raises(ReadError) as error:
        decode_all(hostile / name)
    assert CANARY not in str(error.value)
    assert error.value.path == str(hostile / name)
    if name.startswith("concat"):
        assert isinstance(error.value, RefusedError) and error.value.message.endswith("(concat)")
    assert trap.calls() == 0


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_a_folder_of_attacks_is_a_failed_row_each(hostile: Path, trap: Trap, tmp_path: Path, engine: str) -> None:
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


def test_without_the_demuxer_list_the_concat_script_shows_the_secret(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "READ_OPTIONS", {k: v for k, v in READ_OPTIONS.items() if k != "format_whitelist"})
    with Source(hostile / "concat.mp4", max_pixels=PLENTY) as source:
        assert source.info.format_name == "concat"
        assert sum(1 for _ in source.decode(source.packets())) > 0


def test_without_the_protocol_list_a_name_with_a_protocol_opens(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.ts", 5)
    name = f"concat:{clip}"
    open_ended = {k: v for k, v in READ_OPTIONS.items() if k != "protocol_whitelist"}
    with av.open(name, options=open_ended) as container:
        assert container.streams.video
    with pytest.raises((OSError, ValueError)):
        av.open(name, options=READ_OPTIONS)


def test_every_demuxer_on_the_list_exists() -> None:
    """A name that libav does not know would shut out what it was meant to let in."""
    known = {part for name in av.formats_available for part in name.split(",")}
    newer = {"webp_anim"} if int(av.__version__.split(".")[0]) < 19 else set()  # FFmpeg 8 has it not
    assert set(DEMUXERS.split(",")) - newer <= known


def test_no_demuxer_on_the_list_follows_names() -> None:
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


@pytest.mark.parametrize("name", attacks(0))
def test_the_ffmpeg_command_alone_refuses_them_too(hostile: Path, trap: Trap, tmp_path: Path, name: str) -> None:
    """The in-process reader comes first in every run; this is what stands if the file is swapped in between."""
    like = make_clip(tmp_path / "like.mp4", 3)
    done = ffmpeg_reading(hostile / name, like)
    assert done.returncode != 0 and done.stdout == b""
    assert CANARY.encode() not in done.stderr
    assert trap.calls() == 0


def test_without_the_demuxer_list_the_ffmpeg_command_shows_the_secret(hostile: Path, tmp_path: Path) -> None:
    like = make_clip(tmp_path / "like.mp4", 3)
    assert len(ffmpeg_reading(like, like).stdout) == 3 * 64 * 48 * 3 // 2
    assert ffmpeg_reading(hostile / "concat.mp4", like, without="format_whitelist").stdout


ODD_NAMES = (
    "-y.mp4",
    "--version.mp4",
    "a b.mp4",
    "it's.mp4",
    'say "a".mp4',
    "new\nline.mp4",
    "%03d.mp4",
    "%d%d.mp4",
    "*.mp4",
    "?.mp4",
    "[a].mp4",
    "ünïcödé-日本.mp4",
    "a:b.mp4",
    "http:x.mp4",
    "http:127.0.0.1:{port}.mp4",
    "tcp:127.0.0.1:{port}.mp4",
    "concat:x.mp4",
    "concat:a|b.mp4",
    "data:x.mp4",
    "subfile,,start,0,end,9,,:x.mp4",
    "pipe:0.mp4",
    "pipe:.mp4",
    "file:x.mp4",
    "crypto:x.mp4",
    "async:x.mp4",
    "cache:x.mp4",
    "fd:.mp4",
    "$HOME.mp4",
    "`id`.mp4",
    ";ls.mp4",
    "a\\b.mp4",
    "=1+1.mp4",
    "<img src=x>.mp4",
    "\x1b[31mred.mp4",
    "a,b=c.mp4",
    "tee:[f=mp4]x.mp4",
    "#.mp4",
    "~.mp4",
)


@pytest.mark.parametrize("engine", ["av", pytest.param("ffmpeg", marks=pytest.mark.long)])
def test_odd_names_are_plain_files(tmp_path: Path, trap: Trap, engine: str) -> None:
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


@pytest.mark.parametrize("name", in_turn(["-y.mp4", "http:x.mp4", "%03d.mp4", "a:b.mp4", "concat:x.mp4"], 3))
def test_one_odd_name_relative_to_its_folder(tmp_path: Path, name: str) -> None:
    make_clip(tmp_path / "clip.mp4", 3).rename(tmp_path / name)
    ran = transcode("--", name, "dst", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert set(outputs(tmp_path / "dst")) == {name}


def test_without_the_file_prefix_such_a_name_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_clip(tmp_path / "clip.mp4", 3).rename(tmp_path / "a:b.mp4")
    monkeypatch.chdir(tmp_path)
    assert decode_all(Path("a:b.mp4"))[0] == 3
    monkeypatch.setattr(video, "file_url", str)
    with pytest.raises(ReadError):
        decode_all(Path("a:b.mp4"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
            "it is a Git LFS pointer; `git lfs pull` fetches",
        ),
        (b"<!DOCTYPE html>\r\n<title>404</title>", "it is a web page"),
        ("/videos/größe.mp4\n".encode(), "it is text; a list of videos"),
        (bytes(range(256)), None),
        (b"\n\n", None),
        (b"RIFF\x10\x00\x00\x00AVI LIST", None),
        ("ä".encode("latin-1") * 90, None),
    ],
)
def test_text_instead_of_a_video_is_described_but_not_shown(content: bytes, said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    with pytest.raises(ReadError) as caught:
        decode_all(path)
    assert f"is not a readable video: {said or ''}" in str(caught.value)
    assert said or "it is " not in str(caught.value)
    assert "größe" not in str(caught.value)


def test_terminal_escapes_and_newlines_in_names_are_shown_not_obeyed(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    (src / "\x1b[31mred\nline.mp4").write_bytes(b"no video")
    ran = transcode(src, tmp_path / "dst", "--json")
    assert "\x1b" not in ran.err and "\\x1b[31mred\\nline" in ran.err
    assert ran.out.count("\n") == 2
