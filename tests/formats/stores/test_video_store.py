"""Encoded folders put together by hand: colours, and what a damaged file does to its reader."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import av.logging
import numpy as np
import pytest

from vidprep.formats import open_store
from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.table import ManifestRow, write_rows

GOP, COUNT, WIDTH, HEIGHT = 4, 12, 96, 64
COEFFICIENTS = {1: (0.2126, 0.0722), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}  # red and blue, by colorspace
NO_LOSS = {
    "libx264": {"qp": "0", "x264-params": "scenecut=0:bframes=0"},
    "libvpx-vp9": {"lossless": "1", "auto-alt-ref": "0"},
}


def planes_of(number: int, pixel_format: str) -> list[np.ndarray]:
    """Y, U, V of frame `number`: flat blocks of 32, away from the ends of the limited range."""
    rng = np.random.default_rng(number)
    planes = [rng.integers(60, 190, (2, 3)).repeat(32, 0).repeat(32, 1) for _ in range(3)]
    if "420" in pixel_format:
        planes[1:] = [plane[::2, ::2] for plane in planes[1:]]
    return [plane * 4 if "10" in pixel_format else plane for plane in planes]


def write_video(
    path: Path, *, codec: str = "libx264", pixel_format: str = "yuv420p", colorspace: int = 1, color_range: int = 1
) -> Path:
    """A lossless video with a keyframe every 4 frames, tags as they say, and a manifest with its one row, `v`."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options={"g": str(GOP), **NO_LOSS[codec]})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = WIDTH, HEIGHT, pixel_format, GOP
        stream.codec_context.thread_count = 1
        stream.codec_context.colorspace, stream.codec_context.color_range = colorspace, color_range
        for number in range(COUNT):
            frame = av.VideoFrame(WIDTH, HEIGHT, pixel_format)
            for plane, values in zip(frame.planes, planes_of(number, pixel_format), strict=True):
                lines = np.frombuffer(plane, np.uint16 if "10" in pixel_format else np.uint8).reshape(plane.height, -1)
                lines[:, : plane.width] = values
            frame.pts, frame.colorspace, frame.color_range = number, colorspace, color_range
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    row = ManifestRow(
        "v",
        path.name,
        "v",
        status="ok",
        width=WIDTH,
        height=HEIGHT,
        num_frames=COUNT,
        frame_rate_num=25,
        frame_rate_den=1,
        keyframes=list(range(0, COUNT, GOP)),
        time_base_num=1,
        time_base_den=25,
    )
    write_rows(path.parent / "manifest.parquet", None, [row])
    return path.parent


@pytest.mark.parametrize("colorspace", COEFFICIENTS)
@pytest.mark.parametrize("color_range", [1, 2])
@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv444p", "yuv420p10le"])
def test_colours_are_those_of_the_matrix_and_the_range_in_the_tags(pixel_format, color_range, colorspace, tmp_path):
    video = open_store(
        write_video(tmp_path / "v.mp4", pixel_format=pixel_format, colorspace=colorspace, color_range=color_range)
    )["v"]
    red, blue = COEFFICIENTS[colorspace]
    for number, frame in zip((5, 0, 11), video.frames([5, 0, 11]), strict=True):
        y, u, v = (
            plane.astype(float) / (4 if "10" in pixel_format else 1) for plane in planes_of(number, pixel_format)
        )
        u, v = (plane.repeat(HEIGHT // len(plane), 0).repeat(HEIGHT // len(plane), 1) - 128 for plane in (u, v))
        if color_range == 1:
            y, u, v = (y - 16) * 255 / 219, u * 255 / 224, v * 255 / 224
        r, b = y + 2 * (1 - red) * v, y + 2 * (1 - blue) * u
        expected = np.stack([r, (y - red * r - blue * b) / (1 - red - blue), b], -1).clip(0, 255)
        middles = np.ix_(range(16, HEIGHT, 32), range(16, WIDTH, 32))
        assert np.abs(frame[middles] - expected[middles]).max() <= (0.6 if "444" in pixel_format else 4)


@pytest.mark.parametrize("name", ["v.mp4", "v.mkv", "v.webm"])
@pytest.mark.logs_errors
def test_a_damaged_video_is_an_error_of_the_store_or_decodes(name, tmp_path):
    """Never IndexError, which says that the caller asked for too much."""
    path = tmp_path / name
    write_video(path, codec="libvpx-vp9" if path.suffix == ".webm" else "libx264")
    data, rng, refused = path.read_bytes(), random.Random(1), 0
    for place in [*range(0, 700, 11), *rng.sample(range(700, len(data)), 20)]:
        broken = bytearray(data)
        broken[place] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        try:
            frames = open_store(tmp_path)["v"].frames([0, 6, 11])
        except StoreError as error:
            refused += 1
            assert name in str(error)
        else:
            assert frames.shape == (3, HEIGHT, WIDTH, 3)
    assert refused > 3


def test_threads_have_a_decoder_each(tmp_path):
    video = open_store(write_video(tmp_path / "v.mp4"))["v"]
    every = video.frames()
    orders = [random.Random(number).sample(range(COUNT), 5) for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for order, frames in zip(orders, pool.map(video.frames, orders), strict=True):
            assert np.array_equal(frames, every[order])


def test_opening_prints_nothing_that_decoders_log(tmp_path, caplog):
    """libavformat complains of every decoder that it may not try."""
    write_video(tmp_path / "v.mp4")
    before = av.logging.get_level()
    av.logging.set_level(av.logging.ERROR)
    try:
        assert open_store(tmp_path)["v"].frames([5]).shape == (1, HEIGHT, WIDTH, 3)
    finally:
        av.logging.set_level(before)
    assert caplog.messages == []


def test_a_manifest_of_before_is_refused_by_name(tmp_path):
    import pyarrow.parquet as pq

    write_video(tmp_path / "v.mp4")
    path = tmp_path / "manifest.parquet"
    pq.write_table(pq.read_table(path).drop(["time_base_num", "keyframes"]).replace_schema_metadata({}), path)
    with pytest.raises(StoreError, match="no keyframes, time_base_num"):
        open_store(tmp_path)
