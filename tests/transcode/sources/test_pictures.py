"""Folders of numbered pictures, raw streams without a rate, and files with several video streams."""

from __future__ import annotations

import csv
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
import pytest
import simplejpeg
from av.video.stream import VideoStream
from PIL import Image

from tests.helpers import manifest, transcode
from tests.numbered_pictures import number_on, picture, write
from vidprep.formats import VideoFiles, open_store
from vidprep.formats.errors import StoreError
from vidprep.transcode import burst

COUNT = 24


def jpeg(number: int, size: int = 64, quality: int = 92) -> bytes:
    pixels = np.repeat(picture(number, size)[:, :, None], 3, 2)
    return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", "420"))


def as_other(number: int, codec: str) -> bytes:
    """A picture as PNG, BMP or TIFF, by libavcodec."""
    encoder = cast(av.VideoCodecContext, av.CodecContext.create(codec, "w"))
    frame = av.VideoFrame.from_ndarray(np.repeat(picture(number)[:, :, None], 3, 2), format="rgb24")
    frame = frame.reformat(format={"bmp": "bgr24"}.get(codec, "rgb24"))
    encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, frame.format.name
    encoder.time_base = Fraction(1, 1)
    return b"".join(bytes(packet) for packet in (*encoder.encode(frame), *encoder.encode(None)))


def numbers_on(frames: np.ndarray) -> list[int | None]:
    return [number_on(frame) for frame in frames]


def folder_of(place: Path, name: Callable[[int], str], make: Callable[[int], bytes] = jpeg, count: int = COUNT) -> Path:
    place.mkdir(parents=True)
    for number in range(count):
        (place / name(number)).write_bytes(make(number))
    return place


def with_orientation(data: bytes, orientation: int) -> bytes:
    """A JPEG with an Exif segment (Exif 2.3, 4.6.4: tag 0x112 is Orientation, a SHORT)."""
    entry = bytes.fromhex("0112 0003 00000001") + orientation.to_bytes(2) + b"\0\0"
    exif = b"Exif\0\0MM\0\x2a" + (8).to_bytes(4) + (1).to_bytes(2) + entry + bytes(4)
    return data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2) + exif + data[2:]


def coded_frames(path: Path) -> list[tuple[bytes, Fraction]]:
    """Bytes and time of each packet."""
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        return [(bytes(each), each.pts * Fraction(video.time_base)) for each in container.demux(video) if each.size]


@pytest.mark.parametrize("name", ["{:05d}.jpg", "frame_{}.jpg", "IMG {} x.JPEG"])
def test_a_burst_of_jpegs_holds_the_bytes_of_their_files_in_the_order_of_their_numbers(
    tmp_path: Path, name: str
) -> None:
    clip = folder_of(tmp_path / "src" / "a.b" / "clip.01", lambda number: name.format(number + 7))
    (clip / "notes.txt").write_text("not a picture")
    (clip / ("._" + name.format(7))).write_bytes(b"of another system")
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 12, verb="burst").code == 0
    store = open_store(tmp_path / "out")
    assert store.ids == ["a.b/clip.01"]
    found = store.stored_jpegs("a.b/clip.01")
    assert found is not None
    assert list(found) == [(clip / name.format(number + 7)).read_bytes() for number in range(COUNT)]
    assert store.facts("a.b/clip.01").frame_rate == 12
    row = manifest(tmp_path / "out")["a.b/clip.01"]
    assert (row["encoder"], row["jpeg_quality"], row["source"]) == ("copy", None, str(clip))
    assert row["source_size_bytes"] == sum(path.stat().st_size for path in clip.glob("[!.]*.[jJ]*"))
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 12, verb="burst").err.count("1 done before")
    assert transcode(tmp_path / "src", tmp_path / "out", verb="validate").code == 0
    (clip / name.format(9)).write_bytes(jpeg(1000))
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 12, verb="burst").code == 0
    assert number_on(open_store(tmp_path / "out")["a.b/clip.01"].frames([2])[0]) == 1000


def test_what_is_transcoded_of_jpegs_equals_what_is_transcoded_of_the_same_jpegs_in_an_avi(tmp_path: Path) -> None:
    folder_of(tmp_path / "src" / "clip", "{}.jpg".format)
    (tmp_path / "avi").mkdir()
    with av.open(str(tmp_path / "avi" / "clip.avi"), "w") as container:
        stream = container.add_stream("mjpeg", rate=Fraction(30000, 1001))
        stream.width = stream.height = 64
        stream.pix_fmt = "yuvj420p"
        for number in range(COUNT):
            packet = av.Packet(jpeg(number))
            packet.stream, packet.pts, packet.dts, packet.is_keyframe = stream, number, number, True
            packet.time_base = Fraction(1001, 30000)
            container.mux(packet)
    assert transcode(tmp_path / "src", tmp_path / "a", "--source-fps", "30000/1001").code == 0
    assert transcode(tmp_path / "avi", tmp_path / "b").code == 0
    ours, theirs = (coded_frames(tmp_path / name / "clip.mp4") for name in "ab")
    assert ours == theirs
    assert sorted(seconds for _, seconds in ours) == [Fraction(1001 * number, 30000) for number in range(COUNT)]


@pytest.mark.parametrize(("codec", "extension"), [("png", "png"), ("bmp", "bmp"), ("tiff", "tif"), ("png", "PNG")])
def test_pictures_of_other_kinds_are_the_frames_of_a_burst(tmp_path: Path, codec: str, extension: str) -> None:
    clip = folder_of(tmp_path / "src" / "clip", f"{{}}.{extension}".format, lambda number: as_other(number, codec), 12)
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, verb="burst").code == 0
    assert numbers_on(open_store(tmp_path / "out")["clip"].frames()) == list(range(12))
    store = VideoFiles([clip], source_fps=10)
    assert store.facts("clip").num_frames == 12
    assert numbers_on(store["clip"].frames([11, 0, 5])) == [11, 0, 5]
    assert store["clip"].sample_rate is None


@pytest.mark.parametrize(
    "options", [("--quality", 80), ("--short-side", 32), ("--fps", 5), ("--target-psnr", 35), ("--subsampling", "444")]
)
def test_an_option_of_size_rate_or_quality_encodes_the_jpegs_again(tmp_path: Path, options: tuple[object, ...]) -> None:
    clip = folder_of(tmp_path / "src" / "clip", "{}.jpg".format)
    ran = transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, *options, verb="burst")
    assert ran.code == 0, ran.err
    found = open_store(tmp_path / "out").stored_jpegs("clip")
    assert found is not None
    assert not {path.read_bytes() for path in clip.iterdir()} & set(found)
    assert transcode(tmp_path / "src", tmp_path / "out", verb="validate").code == 0


def test_jpegs_that_do_not_fit_are_encoded_and_the_others_kept(tmp_path: Path) -> None:
    clip = folder_of(tmp_path / "src" / "clip", "{}.jpg".format)
    whole = jpeg(5)
    odd = {3: jpeg(3, 80), 5: whole[:-30], 8: with_orientation(jpeg(8), 3), 9: b""}
    for number, data in odd.items():
        (clip / f"{number}.jpg").write_bytes(data)
    ran = transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, verb="burst")
    assert ran.code == 0
    found = open_store(tmp_path / "out").stored_jpegs("clip")
    assert found is not None
    row = manifest(tmp_path / "out")["clip"]
    stored = dict(zip((number for number in range(COUNT) if number != 9), found, strict=True))
    for number, data in stored.items():
        assert (data == (clip / f"{number}.jpg").read_bytes()) == (number not in odd), number
    warnings = " ".join(row["warnings"])
    assert "80x80 at output frame 3" in warnings
    assert "damaged" in warnings
    assert transcode(tmp_path / "src", tmp_path / "out", verb="validate").code == 0


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    wide = np.zeros((48, 64, 3), np.uint8)
    wide[:24, :32] = 255  # the quarter at the top left
    data = bytes(simplejpeg.encode_jpeg(wide, 95, "RGB", "420"))
    turned = {1: wide, 3: wide[::-1, ::-1], 6: np.rot90(wide, -1), 8: np.rot90(wide)}
    for orientation in turned:
        folder_of(
            tmp_path / "src" / f"o{orientation}", "{}.jpg".format, lambda _, o=orientation: with_orientation(data, o), 3
        )
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, verb="burst").code == 0
    store = open_store(tmp_path / "out")
    raw = VideoFiles([tmp_path / "src" / f"o{orientation}" for orientation in turned], source_fps=10)
    for orientation, due in turned.items():
        for found in (store[f"o{orientation}"].frames([1])[0], raw[f"o{orientation}"].frames([1])[0]):
            assert found.shape == due.shape
            assert np.abs(found.astype(int) - due).mean() < 3


def test_a_folder_that_is_no_single_series_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder_of(tmp_path / "src" / "flow", "flow_x_{:05d}.jpg".format)
    for number in range(COUNT):
        (tmp_path / "src" / "flow" / f"flow_y_{number:05d}.jpg").write_bytes(jpeg(number))
    folder_of(tmp_path / "src" / "twins", "{}.jpg".format)
    (tmp_path / "src" / "twins" / "007.jpg").write_bytes(jpeg(7))
    gaps = folder_of(tmp_path / "src" / "gaps", "{}.jpg".format)
    for number in (4, 5, 11):
        (gaps / f"{number}.jpg").unlink()
    beside = folder_of(tmp_path / "src" / "beside", "thumb{}.jpg".format, count=3)
    write(beside / "clip.mp4", [Fraction(number, 10) for number in range(10)])
    ran = transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10)
    assert ran.code == 1
    rows = manifest(tmp_path / "out")
    assert {id_ for id_, row in rows.items() if row["status"] == "ok"} == {"gaps", "beside/clip"}
    messages = " ".join(str(row["message"]) for row in rows.values())
    assert "2 series of pictures" in messages
    assert "two pictures have the number" in messages
    assert rows["gaps"]["num_frames"] == COUNT - 3
    assert "numbers are missing between 3.jpg and 6.jpg, and in 1 more place" in rows["gaps"]["warnings"][0]


def test_pictures_without_a_rate_are_refused_with_the_option_that_gives_it(tmp_path: Path) -> None:
    clip = folder_of(tmp_path / "src" / "clip", "{}.jpg".format)
    ran = transcode(tmp_path / "src", tmp_path / "out")
    assert ran.code == 2
    assert "--source-fps" in ran.err
    with pytest.raises(StoreError, match="source_fps"):
        VideoFiles([clip])
    listed = tmp_path / "list.csv"
    listed.write_text("path\nsrc/clip\n")
    ran = transcode(listed, tmp_path / "out")
    assert "--source-fps" in ran.err + str(manifest(tmp_path / "out"))
    assert transcode(listed, tmp_path / "out2", "--source-fps", 10).code == 0
    assert numbers_on(open_store(tmp_path / "out2")["src/clip"].frames()) == list(range(COUNT))


def test_a_single_folder_of_pictures_and_a_cut_of_one(tmp_path: Path) -> None:
    clip = folder_of(tmp_path / "clip", "{}.jpg".format)
    assert transcode(clip, tmp_path / "out", "--source-fps", 10, verb="burst").code == 0
    assert numbers_on(open_store(tmp_path / "out")["clip"].frames()) == list(range(COUNT))
    with (tmp_path / "cuts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "start", "end"], ["clip", "0.5", "1.2"]])
    assert transcode(tmp_path / "cuts.csv", tmp_path / "cut", "--source-fps", 10, verb="burst").code == 0
    store = open_store(tmp_path / "cut")
    found = store.stored_jpegs(store.ids[0])
    assert found is not None
    assert list(found) == [jpeg(number) for number in range(5, 12)]


def test_a_raw_stream_gets_the_given_rate_and_a_guessed_one_is_reported(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "clip.mjpeg").write_bytes(b"".join(jpeg(number) for number in range(COUNT)))
    assert transcode(tmp_path / "src", tmp_path / "guessed").code == 0
    row = manifest(tmp_path / "guessed")["clip"]
    assert "25 a second were assumed (--source-fps gives another)" in row["warnings"][0]
    assert transcode(tmp_path / "src", tmp_path / "given", "--source-fps", 23.976).code == 0
    row = manifest(tmp_path / "given")["clip"]
    assert (row["frame_rate_num"], row["frame_rate_den"], row["warnings"]) == (24000, 1001, [])
    facts = VideoFiles([tmp_path / "src" / "clip.mjpeg"], source_fps="24000/1001").facts("clip")
    assert (facts.num_frames, facts.frame_rate) == (COUNT, Fraction(24000, 1001))
    assert transcode(tmp_path / "src", tmp_path / "given", "--source-fps", 24).code == 2


def test_a_video_stream_is_chosen_for_all_files_or_by_a_table(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    path = tmp_path / "src" / "cameras.mkv"
    with av.open(str(path), "w") as container:
        streams: list[VideoStream] = []
        for size in (96, 64):
            stream = container.add_stream("mjpeg", rate=10)
            stream.width = stream.height = size
            stream.pix_fmt = "yuvj420p"
            streams.append(stream)
        for number in range(COUNT):
            for first, stream in zip((0, 100), streams, strict=True):
                packet = av.Packet(jpeg(first + number, stream.width))
                packet.stream, packet.pts, packet.dts, packet.is_keyframe = stream, number * 100, number * 100, True
                packet.time_base = Fraction(1, 1000)
                container.mux(packet)
    assert transcode(tmp_path / "src", tmp_path / "best").code == 0
    assert numbers_on(open_store(tmp_path / "best")["cameras"].frames([0])) == [0]
    assert transcode(tmp_path / "src", tmp_path / "one", "--video-stream", 1).code == 0
    assert numbers_on(open_store(tmp_path / "one")["cameras"].frames()) == list(range(100, 100 + COUNT))
    assert not any("stream" in text for text in manifest(tmp_path / "one")["cameras"]["warnings"])
    assert transcode(tmp_path / "src", tmp_path / "one", verb="validate").code == 0
    assert numbers_on(VideoFiles([path], video_stream=1)["cameras"].frames([3])) == [103]
    listed = tmp_path / "list.csv"
    listed.write_text("path,video_stream\nsrc/cameras.mkv,0\nsrc/cameras.mkv,1\nsrc/cameras.mkv,2\nsrc/cameras.mkv,\n")
    assert transcode(listed, tmp_path / "each").code == 1
    rows = manifest(tmp_path / "each")
    store = open_store(tmp_path / "each")
    assert numbers_on(store["src/cameras_stream1"].frames([2])) == [102]
    assert numbers_on(store["src/cameras_stream0"].frames([2])) == [2]
    assert numbers_on(store["src/cameras"].frames([2])) == [2]
    assert "2 video streams; --video-stream asks for stream 2" in rows["src/cameras_stream2"]["message"]
    assert transcode(listed, tmp_path / "each").err.count("3 done before")
    with pytest.raises(StoreError, match="2 video streams"):
        VideoFiles([path], video_stream=2).facts("cameras")


def test_a_burst_in_python_takes_the_same_options(tmp_path: Path) -> None:
    folder_of(tmp_path / "src" / "clip", "{}.jpg".format)
    made = burst(tmp_path / "src", tmp_path / "out", source_fps=12.5)
    assert (made.ok, open_store(tmp_path / "out").facts("clip").frame_rate) == (1, Fraction(25, 2))


@pytest.mark.parametrize("alpha", [False, True])
def test_webp_pictures_are_the_same_frames_each_time(tmp_path: Path, alpha: bool) -> None:
    images = pytest.importorskip("PIL.Image")
    clip = tmp_path / "src" / "clip"
    clip.mkdir(parents=True)
    for number in range(6):
        grey = picture(number)
        layers = [grey, grey, grey, *([np.full_like(grey, 200)] if alpha else [])]
        images.fromarray(np.stack(layers, 2)).save(clip / f"{number}.webp", quality=90)
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, verb="burst").code == 0
    assert numbers_on(open_store(tmp_path / "out")["clip"].frames()) == list(range(6))
    assert transcode(tmp_path / "src", tmp_path / "out", verb="validate").code == 0


def test_renamed_pictures_are_another_video(tmp_path: Path) -> None:
    clip = folder_of(tmp_path / "src" / "clip", "cam1.{}.jpg".format)
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, verb="burst").code == 0
    assert numbers_on(open_store(tmp_path / "out")["clip"].frames()) == list(range(COUNT))
    (clip / "cam1.3.jpg").rename(clip / "other")
    (clip / "cam1.11.jpg").rename(clip / "cam1.3.jpg")
    (clip / "other").rename(clip / "cam1.11.jpg")
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, verb="burst").code == 0
    assert numbers_on(open_store(tmp_path / "out")["clip"].frames([3, 11])) == [11, 3]


def test_grey_jpegs_are_kept(tmp_path: Path) -> None:
    grey = bytes(simplejpeg.encode_jpeg(picture(5)[:, :, None], 90, "GRAY", "Gray"))
    folder_of(tmp_path / "src" / "clip", "{}.jpg".format, lambda _: grey, 3)
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, verb="burst").code == 0
    found = open_store(tmp_path / "out").stored_jpegs("clip")
    assert found is not None
    assert list(found) == [grey] * 3
    assert transcode(tmp_path / "src", tmp_path / "out", verb="validate").code == 0


NAMES: dict[str, Callable[[int], str]] = {
    "seconds": lambda n: f"{n * 0.3:.3f}.jpg",
    "prefixed seconds": lambda n: f"frame_{n * 0.3:.6f}.jpg",
    "a date": lambda n: f"2024-05-01_12-{n // 4:02d}-{n % 4 * 15:02d}.jpg",
    "a date with a prefix": lambda n: f"IMG 2024-05-01 12.{n // 4:02d}.{n % 4 * 15:02d} cam.jpg",
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_that_are_times_are_one_series(kind: str, tmp_path: Path) -> None:
    """Their last number begins again each second or minute: they were refused as several series."""
    folder_of(tmp_path / "src" / "clip", NAMES[kind])
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, verb="burst").code == 0
    assert numbers_on(open_store(tmp_path / "out")["clip"].frames()) == list(range(COUNT))
    assert not manifest(tmp_path / "out")["clip"]["warnings"]


@pytest.mark.parametrize("name", ["cam{}.{:04d}.jpg", "cam{}_{:04d}.jpg"])
def test_cameras_are_not_taken_for_times(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "src" / "clip"
    folder.mkdir(parents=True)
    for number in range(COUNT):
        for camera in (1, 2):
            (folder / name.format(camera, number)).write_bytes(jpeg(number))
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10).code == 1
    assert "2 series of pictures" in " ".join(row["message"] for row in manifest(tmp_path / "out").values())


def test_a_picture_is_read_as_what_it_is_and_not_as_its_name_says(tmp_path: Path) -> None:
    folder_of(tmp_path / "src" / "all", "{}.jpg".format, lambda n: as_other(n, "png"))
    folder_of(tmp_path / "src" / "some", "{}.jpg".format, lambda n: as_other(n, "png") if n % 3 else jpeg(n))
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, verb="burst").code == 0
    store, raw = open_store(tmp_path / "out"), VideoFiles([tmp_path / "src" / "some"], source_fps=10)
    for frames in (store["all"].frames(), store["some"].frames(), raw["some"].frames(range(COUNT))):
        assert numbers_on(frames) == list(range(COUNT))


def test_pages_of_a_tiff_that_are_not_read_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "clip"
    folder.mkdir(parents=True)
    for number in range(COUNT):
        pages = [Image.fromarray(np.repeat(picture(n)[..., None], 3, 2)) for n in (number, number + 100)]
        more = {"save_all": True, "append_images": pages[1:]} if number == 3 else {}
        pages[0].save(folder / f"{number}.tif", **more)
    assert transcode(tmp_path / "src", tmp_path / "out", "--source-fps", 10, verb="burst").code == 0
    assert numbers_on(open_store(tmp_path / "out")["clip"].frames()) == list(range(COUNT))
    assert manifest(tmp_path / "out")["clip"]["warnings"] == ["3.tif has 2 pages, of which the first was taken"]


def test_pictures_that_are_no_source_are_named_as_pictures(tmp_path: Path) -> None:
    write(tmp_path / "src" / "a.mp4", [Fraction(number, 10) for number in range(10)])
    (tmp_path / "src" / "poster.png").write_bytes(as_other(1, "png"))
    ran = transcode(tmp_path / "src", tmp_path / "out", "--dry-run")
    assert "a picture without a number" in ran.out + ran.err
