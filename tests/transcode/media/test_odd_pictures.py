"""Pictures that came out black, upside down or not at all: alpha that means nothing, orientation that changes midway, other streams,
joined files, lost sectors, bad packets; and whole files that were called damaged.

The pictures show their numbers, and are read by the ffmpeg program, by `open_store` and from the file as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fuzz import oddities
from tests.fuzz.numbered_clips import COLOURS, HEIGHT, KINDS, SIDE, WIDTH, Kind, clip, jpeg, number_on, picture, seen
from tests.fuzz.oddities import BOTH, HALF, Workshop
from tests.helpers import manifest, transcode
from tests.witness import Ffmpeg
from vidprep.formats import open_store
from vidprep.formats.errors import StoreError
from vidprep.formats.stores.raw_files import VideoFiles

WAYS: dict[str, tuple[object, ...]] = {
    "transcode": ("--preset", "ultrafast", "--crf", 8),
    "burst": ("--quality", 95),
    "ffmpeg": ("--preset", "ultrafast", "--crf", 8, "--engine", "ffmpeg"),
}
OURS = ["transcode", "burst"]
FIRST_HALF = list(BOTH[:HALF])


@pytest.fixture(scope="module")
def shop(cli: Ffmpeg, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("clips"), cli)


class Trial:
    """One file through vidprep."""

    def __init__(self, folder: Path, cli: Ffmpeg) -> None:
        self.folder, self.cli = folder, cli

    def made(self, name: str, data: bytes, way: str, *options: object) -> tuple[dict[str, Any], list[np.ndarray]]:
        """The row, and the pictures of the output; none where it failed."""
        source, destination = self.folder / "src", self.folder / f"dst_{way}"
        source.mkdir(exist_ok=True)
        (source / name).write_bytes(data)
        given = (*WAYS[way], "--ffmpeg", self.cli.exe) if way == "ffmpeg" else WAYS[way]
        transcode(
            source,
            destination,
            *given,
            *options,
            "--keep-source-suffix",
            verb="burst" if way == "burst" else "transcode",
        )
        row = manifest(destination)[name]
        if row["status"] != "ok":
            return row, []
        if way == "burst":
            return row, list(open_store(destination)[name].frames())
        return row, seen(self.cli, destination / row["file_name"], row["width"], row["height"])

    def raw(self, name: str, data: bytes) -> list[int | None]:
        """Numbers on the pictures of the file as it is."""
        path = self.folder / name
        path.write_bytes(data)
        store = VideoFiles([path], keep_source_suffix=True)
        return [number_on(frame) for frame in store[name].frames()]


@pytest.fixture
def trial(tmp_path: Path, cli: Ffmpeg) -> Trial:
    return Trial(tmp_path, cli)


def numbers(pictures: Sequence[np.ndarray]) -> list[int | None]:
    return [number_on(each) for each in pictures]


# ------------------------------------------------------------------------------------------------ alpha

ALPHA = {
    "raw.avi": (("-c:v", "rawvideo"), "bgra"),
    "huffyuv.avi": (("-c:v", "huffyuv"), "rgb32"),
    "ffvhuff.avi": (("-c:v", "ffvhuff"), "rgb32"),
    "utvideo.avi": (("-c:v", "utvideo"), "gbrap"),
    "qtrle.mov": (("-c:v", "qtrle"), "argb"),
    "raw.mov": (("-c:v", "rawvideo"), "argb"),
    "raw.nut": (("-c:v", "rawvideo"), "bgra"),
    "cfhd.mov": (("-c:v", "cfhd"), "gbrap12le"),
    "pictures.apng": (("-f", "apng"), "rgba"),
    "vp9.webm": (("-c:v", "libvpx-vp9", "-crf", 10, "-b:v", 0), "yuva420p"),
}


def with_alpha(shop: Workshop, name: str, alpha: str) -> bytes:
    """alpha: of ffmpeg's geq, by frame number N."""
    arguments, pixel_format = ALPHA[name]
    path = shop.folder / f"alpha{abs(hash(alpha))}_{name}"
    if not path.exists():
        kind = Kind(
            (*arguments, "-pix_fmt", pixel_format), f"rgba,geq=r='r(X,Y)':g='g(X,Y)':b='b(X,Y)':a='{alpha}'", intra=True
        )
        clip(shop.cli, path, FIRST_HALF, kind)
    return path.read_bytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ALPHA)
def test_alpha_that_would_hide_every_frame_is_not_followed(name: str, way: str, shop: Workshop, trial: Trial) -> None:
    data = with_alpha(shop, name, "0")
    row, pictures = trial.made(name, data, way)
    assert numbers(pictures) == FIRST_HALF
    assert "alpha_composited" not in row["warning_codes"]
    assert ("alpha_ignored" in row["warning_codes"]) == (name != "raw.avi"), "of BI_RGB the fourth byte is no alpha"
    assert trial.raw(name, data) == FIRST_HALF


@pytest.mark.parametrize("way", WAYS)
def test_alpha_that_fades_in_hides_its_pixels(way: str, shop: Workshop, trial: Trial) -> None:
    """A title that fades in; a cut of its beginning is as black as the whole."""
    data = with_alpha(shop, "qtrle.mov", "if(lt(N,4),0,255)")
    row, pictures = trial.made("fade.mov", data, way)
    assert numbers(pictures)[4:] == FIRST_HALF[4:] and max(each.max() for each in pictures[:4]) <= 3
    assert "alpha_composited" in row["warning_codes"] and "alpha_ignored" not in row["warning_codes"]
    table = trial.folder / "cut.csv"
    table.write_text("path,id,start_frame,end_frame\nsrc/fade.mov,cut,0,3\n")
    transcode(table, trial.folder / "cut", *WAYS["transcode"])
    (row,) = manifest(trial.folder / "cut").values()
    assert max(each.max() for each in seen(trial.cli, trial.folder / "cut" / row["file_name"], WIDTH, HEIGHT)) <= 3


# ------------------------------------------------------------------------------------------------ changes midway


def turned(shop: Workshop, suffix: str, parts: str) -> tuple[bytes, list[int]]:
    """H.264 whose parts are upright (`a`) or upside down and say so (`b`)."""
    how = {"a": (0, {}), "b": (100, oddities.CHANGES["orientation"])}
    data, shown = b"", []
    for part in parts:
        first, change = how[part]
        writing = ("-bf", 0, *change.get("writing", ()))  # type: ignore[misc]
        data += shop.half("h264.h264", first, ("turned", part), **{**change, "writing": writing})
        shown += range(first, first + HALF)
    return shop.wrapped(data, "h264.h264", suffix), shown


def exif(shop: Workshop, suffix: str) -> tuple[bytes, list[int]]:
    upright, upside_down = FIRST_HALF, list(BOTH[HALF:])
    data = [jpeg(picture(number), 1) for number in upright]
    data += [jpeg(np.ascontiguousarray(np.rot90(picture(number), 2)), 3) for number in upside_down]
    return shop.wrapped(b"".join(data), "mjpeg.mjpeg", suffix), list(BOTH)


TURNED = [
    (".ts", "ab"),
    (".mkv", "ab"),
    (".mp4", "ab"),
    (".ts", "ba"),
    (".mkv", "aba"),
    (".mkv", "exif"),
    (".mjpeg", "exif"),
]


@pytest.mark.parametrize("way", OURS)
@pytest.mark.parametrize(("suffix", "parts"), TURNED)
def test_an_orientation_that_changes_midway_is_followed(
    suffix: str, parts: str, way: str, shop: Workshop, trial: Trial
) -> None:
    data, shown = exif(shop, suffix) if parts == "exif" else turned(shop, suffix, parts)
    row, pictures = trial.made(f"turned{suffix}", data, way)
    assert numbers(pictures) == shown
    assert "picture_changed" in row["warning_codes"]
    assert trial.raw(f"turned{suffix}", data) == shown


def says_upright(*, cancels: bool) -> bytes:
    """Supplemental information of H.264: turned by nothing, or no longer turned (D.1.27)."""
    bits = "1" if cancels else "0" + "00" + f"{0:016b}" + "010" + "0"
    bits += "1"
    size = -(-len(bits) // 8)
    unit = bytes([6, 47, size]) + int(bits.ljust(size * 8, "0"), 2).to_bytes(size, "big") + b"\x80"
    return b"\0\0\0\1" + unit.replace(b"\0\0\0", b"\0\0\3\0")


@pytest.mark.parametrize("cancels", [True, False])
@pytest.mark.parametrize("suffix", [".mkv", ".ts"])
def test_a_turn_ends_where_the_stream_says_so(suffix: str, cancels: bool, shop: Workshop, trial: Trial) -> None:
    """One group of pictures is upside down; libavcodec gives no matrix for what says that it is upright."""
    change: dict[str, Any] = oddities.CHANGES["orientation"]
    upright = shop.half("h264.h264", 0, "one group", gop=HALF, writing=("-bf", 0))
    down = shop.half("h264.h264", 100, "one group", gop=HALF, **{**change, "writing": ("-bf", 0, *change["writing"])})
    at = upright.index(b"\0\0\1\x65")
    stream = upright + down + upright[:at] + says_upright(cancels=cancels)[1:] + upright[at:] + upright
    data = shop.wrapped(stream, "h264.h264", suffix)
    shown = [*FIRST_HALF, *BOTH[HALF:], *FIRST_HALF, *FIRST_HALF]
    _, pictures = trial.made(f"turned{suffix}", data, "transcode")
    assert numbers(pictures) == shown
    assert trial.raw(f"turned{suffix}", data) == shown


@pytest.mark.parametrize("name", ["h264.mpg", "hevc.mpg"])
def test_frames_without_a_timestamp_are_cut_by_the_rate_and_are_no_damage(
    name: str, shop: Workshop, trial: Trial
) -> None:
    """A program stream with several frames in a packet tells the time of the first alone."""
    codec = KINDS[f"{name.partition('.')[0]}.mkv"]
    path = trial.folder / name
    clip(shop.cli, path, range(60), Kind((*codec.arguments, "-f", "vob")))
    row, pictures = trial.made(name, path.read_bytes(), "transcode")
    assert numbers(pictures) == list(range(60)) and "damaged" not in row["warning_codes"], row["warnings"]
    table = trial.folder / "cut.csv"
    table.write_text(f"path,id,start,end\n{name},cut,0.4,0.8\n")
    transcode(table, trial.folder / "cut", *WAYS["transcode"])
    (row,) = manifest(trial.folder / "cut").values()
    assert numbers(seen(trial.cli, trial.folder / "cut" / row["file_name"], WIDTH, HEIGHT)) == list(range(10, 20))


@pytest.mark.parametrize("suffix", [".mkv", ".mp4"])
def test_a_cut_behind_a_turn_is_upright(suffix: str, shop: Workshop, trial: Trial) -> None:
    data, shown = turned(shop, suffix, "ab")
    (trial.folder / f"turned{suffix}").write_bytes(data)
    rows = [f"turned{suffix},c{begin},{begin},{begin + 6}" for begin in (2, HALF - 3, HALF + 5, HALF + 17)]
    table = trial.folder / "cuts.csv"
    table.write_text("path,id,start_frame,end_frame\n" + "\n".join(rows))
    transcode(table, trial.folder / "dst", *WAYS["transcode"])
    for id_, row in manifest(trial.folder / "dst").items():
        begin = int(id_[1:])
        assert (
            numbers(seen(trial.cli, trial.folder / "dst" / row["file_name"], WIDTH, HEIGHT)) == shown[begin : begin + 6]
        )


def test_a_cut_behind_another_sample_description_is_decoded_by_that(shop: Workshop, trial: Trial) -> None:
    rng = __import__("random").Random(7)
    odd = oddities.other_description(shop, 7, rng)
    (trial.folder / "two.mp4").write_bytes(odd.data)
    rows = [f"two.mp4,c{begin},{begin},{begin + 6}" for begin in (2, HALF - 3, HALF + 5, HALF + 17)]
    table = trial.folder / "cuts.csv"
    table.write_text("path,id,start_frame,end_frame\n" + "\n".join(rows))
    transcode(table, trial.folder / "dst", *WAYS["transcode"])
    for id_, row in manifest(trial.folder / "dst").items():
        begin = int(id_[1:])
        assert "damaged" not in row["warning_codes"]
        shown = seen(trial.cli, trial.folder / "dst" / row["file_name"], row["width"], row["height"])
        assert [number_on(each[:: row["height"] // HEIGHT, :: row["width"] // WIDTH]) for each in shown] == list(
            odd.shows[begin : begin + 6]
        )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("orientation", "orientation"),
        ("size", "size"),
        ("pixel shape", "pixel shape"),
        ("range", "colour"),
        ("matrix", "colour"),
    ],
)
def test_the_ffmpeg_engine_says_which_change_it_does_not_make(
    change: str, named: str, shop: Workshop, trial: Trial
) -> None:
    how = dict(oddities.CHANGES[change])
    how["writing"] = ("-bf", 0, *how.get("writing", ()))  # type: ignore[misc]
    stream = shop.half("h264.h264", key="plain", writing=("-bf", 0)) + shop.half("h264.h264", 100, change, **how)
    row, _ = trial.made("changed.mkv", shop.wrapped(stream, "h264.h264", ".mkv"), "ffmpeg")
    assert row["status"] == "failed" and f"the {named} of its pictures change" in row["message"], row["message"]
    assert "--engine av" in row["message"]


def test_another_size_midway_costs_no_frame_of_mpeg_2(shop: Workshop, trial: Trial) -> None:
    stream = shop.half("mpeg2.m2v", key="small") + shop.half("mpeg2.m2v", 100, "large", **oddities.CHANGES["size"])
    data = shop.wrapped(stream, "mpeg2.m2v", ".ts")
    _, pictures = trial.made("sizes.ts", data, "transcode")
    assert numbers(pictures) == list(BOTH)
    with pytest.raises(StoreError, match="a frame is 192x128, 96x64 was expected"):
        trial.raw("sizes.ts", data)


def test_another_matrix_midway_keeps_colours_to_a_level(shop: Workshop, trial: Trial) -> None:
    stream = shop.half("h264.h264", key="plain", writing=("-bf", 0))
    stream += shop.half("h264.h264", 100, "matrix", writing=("-bf", 0), matrix="bt709")
    _, pictures = trial.made("matrix.ts", shop.wrapped(stream, "h264.h264", ".ts"), "transcode", "--crf", 2)
    assert numbers(pictures) == list(BOTH)
    means = [
        [each[4 + 16 * row : 12 + 16 * row, SIDE + 8 : -8].reshape(-1, 3).mean(0) for row in range(4)]
        for each in pictures
    ]
    assert abs(np.asarray(means[:HALF]).mean((0, 1)) - np.asarray(means[HALF:]).mean((0, 1))).max() < 0.8
    assert np.abs(np.asarray(means) - COLOURS).max() < 3.5


# ------------------------------------------------------------------------------------------------ other streams and files


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tables", [(), ("-mpegts_pmt_start_pid", "0x1001")], ids=["same program", "other program"])
@pytest.mark.parametrize("begins", [0, 1, 100])
def test_video_that_goes_on_under_another_pid_is_said(
    begins: int, tables: tuple[str, ...], way: str, shop: Workshop, trial: Trial
) -> None:
    late = ("-mpegts_start_pid", "0x110", *tables, "-output_ts_offset", begins)
    data = shop.half("h264.ts") + shop.half("h264.ts", 100, ("pid", begins, len(tables)), writing=late)
    row, _ = trial.made("pid.ts", data, way)
    (said,) = [text for text in row["warnings"] if text.startswith("damaged")]
    assert f"and {HALF} frames there were not read" in said
    assert trial.raw("pid.ts", data) in (list(BOTH[:HALF]), list(BOTH[HALF:]))


JOINED = [
    "h264.mp4",
    "faststart.mp4",
    "h264.mov",
    "prores.mov",
    "h264.3gp",
    "h264.flv",
    "flv1.flv",
    "wmv2.wmv",
    "mpeg2.wtv",
    "pictures.apng",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", JOINED)
def test_the_second_of_joined_files_is_said(name: str, way: str, shop: Workshop, trial: Trial) -> None:
    first = shop.half(name)
    row, pictures = trial.made(name, first + shop.half(name, 100), way)
    (said,) = [text for text in row["warnings"] if text.startswith("damaged")]
    assert f"another file begins at byte {len(first)} " in said
    if KINDS[name].arguments and name.endswith((".mp4", ".mov", ".3gp")):
        assert f"its {HALF} frames were not read" in said
    assert numbers(pictures) == FIRST_HALF
    refused, _ = trial.made(name, first + shop.half(name, 100), way, "--on-damage", "fail", "--overwrite")
    assert refused["status"] == "failed"


@pytest.mark.parametrize(
    "name", ["h264.mkv", "vp8.webm", "live.webm", "mpeg4.avi", "pictures.gif", "theora.ogv", "mpeg2.mpg", "h264.ts"]
)
def test_joined_files_that_are_read_whole_are_not_damaged(name: str, shop: Workshop, trial: Trial) -> None:
    row, pictures = trial.made(name, shop.half(name) + shop.half(name, 100), "transcode")
    assert numbers(pictures) == list(BOTH)
    assert "damaged" not in row["warning_codes"], row["warnings"]


@pytest.mark.parametrize(
    ("one", "other"), [("mpeg2.mkv", "h264.mkv"), ("live.webm", "vp8.webm"), ("huffyuv.avi", "utvideo.avi")]
)
def test_a_second_file_of_another_codec_is_said(one: str, other: str, shop: Workshop, trial: Trial) -> None:
    row, _ = trial.made(one, shop.half(one) + shop.half(other, 100), "transcode")
    assert any("another file begins at byte" in text for text in row["warnings"])


@pytest.mark.parametrize("suffix", [".avi", ".mkv"])
def test_a_second_file_of_another_configuration_is_said(suffix: str, shop: Workshop, trial: Trial) -> None:
    """The tables of huffyuv stand in the header alone."""
    parts = []
    for name, arguments in (("one", ()), ("other", ("-pred", "median"))):
        kind = Kind(("-c:v", "huffyuv", *arguments), "yuv422p", intra=True)
        parts.append(clip(shop.cli, trial.folder / f"{name}{suffix}", FIRST_HALF, kind).read_bytes())
    row, _ = trial.made(f"both{suffix}", b"".join(parts), "transcode")
    assert any(f"another file begins at byte {len(parts[0])} " in text for text in row["warnings"]), row["warnings"]


def test_streams_that_are_shown_at_once_are_not_parts_of_one(shop: Workshop, trial: Trial) -> None:
    """Slides, each for two seconds, beside a camera; and a still picture in a transport stream before the film."""
    slides, out = trial.folder / "slides.mp4", trial.folder / "both.mp4"
    (trial.folder / "camera.mp4").write_bytes(shop.half("h264.mp4"))
    clip(shop.cli, slides, [1, 2, 3], KINDS["h264.mp4"], rate="1/2")
    shop.cli.run("-i", slides, "-i", trial.folder / "camera.mp4", "-map", "0:v", "-map", "1:v", "-c", "copy", out)
    row, _ = trial.made("both.mp4", out.read_bytes(), "transcode")
    assert "damaged" not in row["warning_codes"], row["warnings"]
    still = clip(shop.cli, trial.folder / "still.ts", [7], KINDS["h264.ts"], writing=("-mpegts_start_pid", "0x110"))
    row, _ = trial.made("still.ts", still.read_bytes() + shop.half("h264.ts"), "transcode")
    assert "damaged" not in row["warning_codes"], row["warnings"]


@pytest.mark.parametrize("name", ["h264.mp4", "mpeg4.avi", "wmv2.wmv", "pictures.apng"])
def test_bytes_behind_the_end_are_said_and_are_no_damage(name: str, shop: Workshop, trial: Trial) -> None:
    row, pictures = trial.made(name, shop.half(name) + b"notes\n" * 500, "transcode")
    assert numbers(pictures) == FIRST_HALF
    assert "damaged" not in row["warning_codes"]
    assert any("its last 3000 bytes follow its end" in text for text in row["warnings"]), row["warnings"]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", ["h264.mkv", "mjpeg.mkv", "h264.mov"])
def test_a_cover_that_is_not_marked_as_one_does_not_beat_the_film(
    name: str, is_first: bool, shop: Workshop, trial: Trial
) -> None:
    cover, film = shop.folder / "cover.mkv", shop.folder / f"film_{name}"
    clip(shop.cli, cover, [777], KINDS["mjpeg.mkv"])
    film.write_bytes(shop.half(name))
    files = [cover, film] if is_first else [film, cover]
    out = trial.folder / f"covered{film.suffix}"
    default = 0 if is_first else 1
    shop.cli.run(
        "-i",
        files[0],
        "-i",
        files[1],
        "-map",
        "0:v",
        "-map",
        "1:v",
        "-c",
        "copy",
        f"-disposition:v:{default}",
        "default",
        f"-disposition:v:{1 - default}",
        0,
        out,
    )
    data = out.read_bytes()
    _, pictures = trial.made(out.name, data, "transcode")
    assert numbers(pictures) == FIRST_HALF
    assert trial.raw(out.name, data) == FIRST_HALF


# ------------------------------------------------------------------------------------------------ damage, and what is none

SECTORS = {
    "huffyuv.avi": KINDS["huffyuv.avi"],
    "cfhd.mov": KINDS["cfhd.mov"],
    "vc2.mkv": Kind(("-c:v", "vc2"), intra=True),
    "v210.mov": KINDS["v210.mov"],
    "raw.avi": KINDS["raw.avi"],
    "raw.mkv": KINDS["raw.mkv"],
    "raw.mov": KINDS["raw.mov"],
    "raw.y4m": KINDS["raw.y4m"],
}


@pytest.mark.parametrize("name", SECTORS)
def test_lost_sectors_are_damage(name: str, shop: Workshop, trial: Trial) -> None:
    path = shop.folder / f"sectors_{name}"
    clip(shop.cli, path, FIRST_HALF, SECTORS[name])
    whole = path.read_bytes()
    row, _ = trial.made(name, whole, "transcode")
    assert "damaged" not in row["warning_codes"]
    for place in (0.3, 0.45, 0.6):
        data = bytearray(whole)
        at = int(len(data) * place) // 512 * 512
        data[at : at + 4096] = bytes(4096)
        row, _ = trial.made(name, bytes(data), "transcode")
        assert row["status"] == "failed" or "damaged" in row["warning_codes"], at


@pytest.mark.parametrize("name", [*SECTORS, "mjpeg.mov", "qtrle.mov", "utvideo.avi", "ffv1.mkv"])
def test_black_pictures_are_not_lost_sectors(name: str, cli: Ffmpeg, trial: Trial) -> None:
    """Moving bars and boxes, black on grey: lines of zeros that begin and end with sectors now and then."""
    kind = SECTORS.get(name) or KINDS[name]
    path = trial.folder / name
    drawn = np.full((40, 128, 512, 3), 120, np.uint8)
    for number, each in enumerate(drawn):
        each[number * 2 : number * 2 + 30] = 0
        each[90:120, number * 8 : number * 8 + 200] = 0
    drawn[20:25] = 0
    chain = f"scale=out_range=full,format={kind.pixel_format}"
    reading = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "512x128", "-r", 25, "-i", "-")
    cli.run(*reading, "-vf", chain, *kind.arguments, path, stdin=drawn.tobytes())
    row, _ = trial.made(name, path.read_bytes(), "transcode")
    assert "damaged" not in row["warning_codes"], row["warnings"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["prores.mov", "cfhd.mov"])
def test_a_bad_packet_costs_its_frame_and_no_more(name: str, way: str, shop: Workshop, trial: Trial) -> None:
    data = bytearray(shop.half(name))
    at = len(data) // 2 // 512 * 512
    data[at : at + 4096] = bytes(4096)
    row, pictures = trial.made(name, bytes(data), way)
    assert row["status"] == "ok" and "damaged" in row["warning_codes"], row["message"]
    assert len(pictures) >= HALF - 8
    assert len(trial.raw(name, bytes(data))) == len(pictures)


@pytest.mark.parametrize("way", OURS)
def test_chained_ogg_is_one_video(way: str, shop: Workshop, trial: Trial) -> None:
    """RFC 3533, 4: logical streams may follow one another; the headers of the second are no frames."""
    data = shop.half("theora.ogv") + shop.half("theora.ogv", 100)
    row, pictures = trial.made("chain.ogv", data, way)
    assert numbers(pictures) == list(BOTH) and "damaged" not in row["warning_codes"]
    assert trial.raw("chain.ogv", data) == list(BOTH)


def test_zeros_that_a_standard_allows_are_no_damage(shop: Workshop, trial: Trial) -> None:
    """Behind a unit of H.264 (annex B.1.1), and between JPEGs of a fixed size, as capture cards write them."""
    stream = shop.half("h264.h264").replace(b"\0\0\0\1", bytes(300) + b"\0\0\0\1")
    row, pictures = trial.made("padded.h264", stream, "transcode")
    assert numbers(pictures) == FIRST_HALF and "damaged" not in row["warning_codes"], row["warnings"]
    frames = b"".join(jpeg(picture(number), 1).ljust(8192, b"\0") for number in FIRST_HALF)
    row, _ = trial.made("padded.avi", shop.wrapped(frames, "mjpeg.mjpeg", ".avi"), "transcode")
    assert "damaged" not in row["warning_codes"], row["warnings"]


def test_samples_without_bytes_repeat_a_picture(shop: Workshop, trial: Trial) -> None:
    """As QuickTime writes what does not change: an entry of 0 in the table of sizes (stsz), and no bytes."""
    whole, held = shop.half("mjpeg.mov"), (HALF - 3, HALF - 2, HALF - 1)
    data, sizes = bytearray(whole), whole.index(b"stsz") + 16
    for number in held:
        data[sizes + 4 * number : sizes + 4 * number + 4] = bytes(4)
    row, pictures = trial.made("held.mov", bytes(data), "transcode")
    assert "damaged" not in row["warning_codes"], row["warnings"]
    assert numbers(pictures) == FIRST_HALF[: -len(held)]


def upscaled(data: bytes) -> bytes:
    """VP8 in IVF whose keyframes ask to be shown larger (RFC 6386, 9.1)."""
    changed, at = bytearray(data), 32
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        frame = at + 12
        if not data[frame] & 1:
            changed[frame + 7] |= 0x40
            changed[frame + 9] |= 0x40
        at = frame + size
    return bytes(changed)


def test_decoder_messages_about_complete_frames_are_no_damage(shop: Workshop, trial: Trial) -> None:
    row, pictures = trial.made("scaled.ivf", upscaled(shop.half("vp8.ivf")), "transcode")
    assert numbers(pictures) == FIRST_HALF and "damaged" not in row["warning_codes"]


def test_tags_of_a_track_that_is_not_there_are_no_damage(shop: Workshop, trial: Trial) -> None:
    plain = trial.folder / "plain.webm"
    plain.write_bytes(shop.half("vp8.webm"))
    tagged = trial.folder / "tagged.mkv"
    shop.cli.run("-i", plain, "-c", "copy", "-metadata:s:v", "title=x", tagged)
    data = bytearray(tagged.read_bytes())
    data[data.index(b"\x63\xc5") + 4] ^= 0x55  # TagTrackUID (RFC 9559, 5.1.8.1.1.3)
    row, pictures = trial.made("tagged.mkv", bytes(data), "transcode")
    assert numbers(pictures) == FIRST_HALF and "damaged" not in row["warning_codes"], row["warnings"]


@pytest.mark.parametrize("format_name", ["vob", "mpeg"])
def test_a_program_stream_whose_clock_wraps_is_whole(format_name: str, shop: Workshop, trial: Trial) -> None:
    """Of four seconds two are before the wrap."""
    writing = ("-f", format_name, "-output_ts_offset", (1 << 33) / 90000 - 2)
    data = shop.clip("mpeg2.mpg", range(100), f"wrap_{format_name}", writing=writing)
    row, pictures = trial.made("wrap.mpg", data, "transcode")
    assert numbers(pictures) == list(range(100)) and "damaged" not in row["warning_codes"], row["warnings"]
