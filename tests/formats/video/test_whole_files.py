"""What whole files say and show that is no damage."""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path

import av
import av.logging
import imageio_ffmpeg
import pytest

from tests.formats.video.edited import with_dolby_vision, with_edits
from tests.formats.video.flips import read
from tests.helpers import make_clips, manifest, table, transcode
from vidprep.formats.model import Cut
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.video.damage._log import DamageLog

# Said of files that lose no frame, which were called damaged for it.
WORDS = (
    "Detected creation time before 1970, parsing as unix timestamp.",
    "UDTA parsing failed retrying raw",
    "overread end of atom 'colr' by 1 bytes",
    "Skipping unhandled metadata com.apple.photos",
    "unsupported color_parameter_type prof",
    "ELST atom of 28 bytes, bigger than 1 entries.",
    "VPS VUI not supported",
    "low_delay flag set incorrectly, clearing it",
    "sample size (1) != block align (4)",
)


@pytest.mark.parametrize("text", WORDS)
def test_words_about_metadata_are_no_damage(text: str) -> None:
    witnesses = DamageLog()
    witnesses.add_lines([(av.logging.WARNING, "mov,mp4,m4a,3gp,3g2,mj2", text), (av.logging.ERROR, "wav", text)])
    assert witnesses.findings() == []


@pytest.mark.long
def test_few_frames_a_second_end_where_the_header_says(tmp_path: Path) -> None:
    """The last packet of FLV, WMV and ASF has no duration, and FLV counts from 0: "the header says 5.00 s, the data ends at 4.80"."""
    made = tmp_path / "src"
    made.mkdir()
    for extension, codec in (
        ("flv", "libx264"),
        ("flv", "flv1"),
        ("wmv", "wmv2"),
        ("asf", "msmpeg4v3"),
        ("mkv", "libx264"),
    ):
        for rate in (1, 2, 5, 10):
            asked = (
                "-f",
                "lavfi",
                "-i",
                f"testsrc2=s=96x64:r={rate}:d=5",
                "-c:v",
                codec,
                f"{made}/{codec}{rate}.{extension}",
            )
            subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *asked], check=True)
    ran = transcode(made, tmp_path / "dst", "--on-damage", "fail", "--keep-source-suffix")
    assert ran.code == 0, ran.err
    for path in made.iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 7 // 10])
    ran = transcode(made, tmp_path / "cut", "--on-damage", "fail", "--keep-source-suffix")
    assert ran.code == 1 and {row["status"] for row in manifest(tmp_path / "cut").values()} == {"failed"}


def test_doubled_timestamps_set_no_rate(tmp_path: Path) -> None:
    """ "no frame for up to 0.03 s where one comes every 0.000 s" cannot be true."""
    clip = tmp_path / "src" / "doubled.mp4"
    clip.parent.mkdir()
    asked = (
        "-f",
        "lavfi",
        "-i",
        "testsrc2=s=96x64:r=30:d=1",
        "-vf",
        "settb=1/90000,setpts='if(eq(mod(N,7),3),PREV_OUTPTS+1,N*3000)'",
        "-fps_mode",
        "passthrough",
    )
    subprocess.run(
        [
            imageio_ffmpeg.get_ffmpeg_exe(),
            "-v",
            "error",
            *asked,
            "-c:v",
            "libx264",
            "-bf",
            "0",
            "-video_track_timescale",
            "90000",
            "-enc_time_base",
            "1/90000",
            str(clip),
        ],
        check=True,
    )
    assert transcode(clip, tmp_path / "dst").code == 0
    (row,) = manifest(tmp_path / "dst").values()
    assert not [text for text in row["warnings"] if "every 0.00" in text], row["warnings"]


def test_one_dead_url_of_a_table_costs_its_rows(tmp_path: Path) -> None:
    """It stopped the run with "[Errno 111]", and named no row."""
    pytest.importorskip("fsspec")
    clips = make_clips(tmp_path / "src", 2)
    dead = {"path": "ftp://127.0.0.1:9/dead.mp4", "id": "dead"}
    mixed = table(
        tmp_path / "mixed.csv",
        [{"path": clips / "c00.mp4", "id": "here"}, dead, {"path": "memory://there/none.mp4", "id": "none"}],
    )
    ran = transcode(mixed, tmp_path / "dst")
    assert ran.code == 1 and "mixed.csv row 2: " in ran.err and "cannot be reached" in ran.err, ran.err
    assert {id_: row["status"] for id_, row in manifest(tmp_path / "dst").items()} == {
        "here": "ok",
        "dead": "failed",
        "none": "failed",
    }
    alone = transcode(table(tmp_path / "alone.csv", [dead]), tmp_path / "alone")
    assert alone.code == 3 and "ftp://127.0.0.1:9" in alone.err and not (tmp_path / "alone").exists(), alone.err


def test_an_initialization_segment_is_reported(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    asked = ("-f", "lavfi", "-i", "testsrc2=s=96x64:d=1", "-c:v", "libx264", "-f", "dash", str(tmp_path / "x.mpd"))
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *asked], check=True, cwd=tmp_path)
    segments = sorted(tmp_path.glob("*stream0*.m4s"), key=lambda path: "init" not in path.name)
    (tmp_path / "src" / "init.mp4").write_bytes(segments[0].read_bytes())
    (tmp_path / "src" / "joined.mp4").write_bytes(b"".join(path.read_bytes() for path in segments))
    assert transcode(tmp_path / "src", tmp_path / "dst").code == 1
    rows = manifest(tmp_path / "dst")
    assert rows["joined"]["status"] == "ok"
    assert "holds headers and no frames; join it with its media segments" in rows["init"]["message"]


def test_cuts_of_open_gops_are_whole(tmp_path: Path) -> None:
    """What the decoder says of pictures before the keyframe that it began with was called damage, in 16 of 24 cuts."""
    clip = tmp_path / "open.mp4"
    shape = "open-gop=1:keyint=20:bframes=3:ref=4:b-pyramid=normal"
    asked = ("-f", "lavfi", "-i", "testsrc2=s=160x120:r=25:d=4", "-c:v", "libx264", "-x264-params", shape, str(clip))
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *asked], check=True)
    cuts = [{"path": clip, "id": f"cut{n}", "start": 0.3 + 0.43 * n, "end": 0.9 + 0.43 * n} for n in range(7)]
    ran = transcode(table(tmp_path / "t.csv", cuts), tmp_path / "dst", "--on-damage", "fail")
    assert ran.code == 0, ran.err
    assert {row["num_frames"] for row in manifest(tmp_path / "dst").values()} == {15}


@pytest.mark.parametrize("extension", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("more", ["bframes=0", "bframes=2", "bframes=0:slices=2"])
def test_cuts_of_pictures_that_are_refreshed_bit_by_bit(extension: str, more: str, tmp_path: Path) -> None:
    """At a recovery point decoding may begin, and shows its first frames only later: a cut was 9 frames of 18."""
    clip = tmp_path / f"a.{extension}"
    source = ("-f", "lavfi", "-i", "testsrc2=s=96x64:r=30:d=2", "-pix_fmt", "yuv420p", "-c:v", "libx264")
    refreshed = ("-x264-params", f"intra-refresh=1:keyint=20:{more}", clip)
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *source, *refreshed], check=True)
    whole, cut = read(clip), read(clip, Cut(0.7, 1.3))
    assert whole.told is None and len(whole.frames) == 60
    assert [checksum for _, checksum in cut.frames] == [checksum for _, checksum in whole.frames[21:39]]
    assert cut.indexes == tuple(range(21, 39))


EDITS = {
    "one": [(2.4, 0.0)],
    "a repeat": [(1.0, 0.0), (0.8, 0.3), (0.4, 1.9)],
    "backwards": [(0.6, 1.2), (0.6, 0.0)],
    "two that begin between keyframes": [(0.5, 0.3), (0.4, 1.5)],
}


@pytest.mark.parametrize("reordered", [0, 2])
@pytest.mark.parametrize("name", EDITS)
def test_every_way_to_read_follows_all_edits(name: str, reordered: int, tmp_path: Path) -> None:
    """Cuts and reads by number went wrong where a keyframe is hidden by one edit and shown by another."""
    made = tmp_path / "made.mp4"
    asked = ("-f", "lavfi", "-i", "testsrc2=s=96x64:r=25:d=2.4", "-pix_fmt", "yuv420p", "-c:v", "libx264", "-g", "12")
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *asked, "-bf", f"{reordered}", made], check=True)
    clip = with_edits(made, tmp_path / "clip.mp4", [(long, begin + reordered / 25) for long, begin in EDITS[name]])
    whole = read(clip)
    with av.open(str(clip)) as container:
        by_libav = [zlib.crc32(bytes(frame.planes[0])) for frame in container.decode(video=0)]
    assert [checksum for _, checksum in whole.frames] == by_libav

    video = VideoFiles([clip])["clip"]
    together = video.frames()
    assert len(together) == len(whole.frames)
    assert all((video.frames([number])[0] == together[number]).all() for number in range(0, len(together), 5))

    for first in range(0, len(whole.frames), 7):
        due = whole.frames[first : first + 9]
        cut = read(clip, Cut(due[0][0] / 10**6, due[-1][0] / 10**6 + 0.02))
        assert cut.frames == due and cut.indexes[0] == first


def test_packets_of_an_avi_are_as_late_as_their_numbers(tmp_path: Path) -> None:
    """libavformat invents PTS for H.264 there: the last frame came 1.7 ms after the one before, and a copy of a copy lost frames."""
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error"]
    source = ("-f", "lavfi", "-i", "testsrc2=s=96x64:r=24:d=2", "-pix_fmt", "yuv420p", "-c:v", "libx264")
    subprocess.run([*ffmpeg, *source, tmp_path / "a.mp4"], check=True)
    subprocess.run([*ffmpeg, "-i", tmp_path / "a.mp4", "-c", "copy", tmp_path / "a.avi"], check=True)
    first, copy = read(tmp_path / "a.mp4"), read(tmp_path / "a.avi")
    assert copy.told is None
    assert [checksum for _, checksum in copy.frames] == [checksum for _, checksum in first.frames]
    assert [pts - copy.frames[0][0] for pts, _ in copy.frames] == [pts - first.frames[0][0] for pts, _ in first.frames]


def test_dolby_vision_without_other_colours_is_refused(tmp_path: Path) -> None:
    """Green and purple, and `ok`. Profile 8.1 has HDR10 below, and is read as that."""
    clip, source = tmp_path / "a.mp4", ("-f", "lavfi", "-i", "testsrc2=s=96x64:r=24:d=0.5", "-pix_fmt", "yuv420p10le")
    asked = ("-c:v", "libx265", "-x265-params", "log-level=error")
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *source, *asked, clip], check=True)
    assert "Dolby Vision" in (read(with_dolby_vision(clip, tmp_path / "p5.mp4", 5, 0)).told or "")
    above_hdr10 = read(with_dolby_vision(clip, tmp_path / "p8.mp4", 8, 1))
    assert above_hdr10 == read(clip) and above_hdr10.told is None


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_fields_of_hevc_are_not_deinterlaced(engine: str, tmp_path: Path) -> None:
    """Each picture is one field; bwdif took its lines for those of two, at 28.5 dB."""
    ffmpeg, clip = imageio_ffmpeg.get_ffmpeg_exe(), tmp_path / "src" / "a.mp4"
    clip.parent.mkdir()
    source = ("-f", "lavfi", "-i", "testsrc2=s=96x64:r=25:d=1", "-pix_fmt", "yuv420p", "-c:v", "libx265", "-crf", "1")
    subprocess.run([ffmpeg, "-v", "error", *source, "-x265-params", "interlace=tff:log-level=error", clip], check=True)
    own = ("--ffmpeg", ffmpeg) if engine == "ffmpeg" else ()
    ran = transcode(clip.parent, tmp_path / "dst", "--engine", engine, *own, "--crf", "1")
    assert ran.code == 0, ran.err
    row = manifest(tmp_path / "dst")["a"]
    assert row["source_is_interlaced"] and "25 single fields (HEVC), each kept as a frame" in row["warnings"]
    made = (tmp_path / "dst" / "a.mp4", clip)
    scored = [
        ffmpeg,
        "-i",
        made[0],
        "-i",
        made[1],
        "-lavfi",
        "[0:v]settb=1/25,setpts=N[a];[1:v]settb=1/25,setpts=N[b];[a][b]psnr",
        "-f",
        "null",
        "-",
    ]
    told = subprocess.run(scored, check=True, capture_output=True, text=True).stderr
    assert float(told.split("PSNR y:")[1].split()[0]) > 45


def test_a_codec_that_refuses_is_named_with_its_reason_alone(tmp_path: Path) -> None:
    """ "[Errno 1] Operation not permitted: 'avcodec_open2("theora", {…})'", and all options of libx264."""
    ffmpeg, folder = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error"], tmp_path / "src"
    folder.mkdir()
    source = ("-f", "lavfi", "-i", "testsrc2=r=5:d=0.6:s=96x64", "-pix_fmt", "yuv420p")
    subprocess.run([*ffmpeg, *source, "-c:v", "libtheora", folder / "a.ogv"], check=True)
    subprocess.run([*ffmpeg, *source, "-vf", "scale=96:29702", "-c:v", "ffv1", folder / "tall.mkv"], check=True)
    data = bytearray((folder / "a.ogv").read_bytes())
    at = data.index(b"\x82theora") + 7
    data[at : at + 33] = bytes(33)
    (folder / "a.ogv").write_bytes(data)
    said = transcode(folder, tmp_path / "dst").err
    assert "packets could not be decoded (Corrupt extradata)\n" in said
    assert "libx264 does not start at 96x29702 yuv420p: invalid width x height (96x29702)\n" in said
