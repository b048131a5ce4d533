"""Colours as they are read back: against the arithmetic of ITU-T H.273, done by hand."""

from __future__ import annotations

import pickle

import av
import numpy as np
import pytest

from tests.helpers import transcode
from vidprep.formats import open_store
from vidprep.formats.errors import StoreError
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.video.rgb import ToRgb

WEIGHTS = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
PATCH, HIGH, WIDE = 16, 8, 12


def patches(matrix: int, bits: int, *, full: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """Y, Cb, Cr of flat patches of random colours, (HIGH, WIDE) each; and their RGB, exact, in 0..255."""
    red, blue = WEIGHTS[matrix]
    rgb = np.random.default_rng(7).random((HIGH, WIDE, 3))
    y = rgb @ (red, 1 - red - blue, blue)
    cb, cr = (rgb[..., 2] - y) / (2 * (1 - blue)), (rgb[..., 0] - y) / (2 * (1 - red))
    deep, most = 2 ** (bits - 8), 2**bits - 1
    scale, offset = ((most, most), 0) if full else ((219 * deep, 224 * deep), 16 * deep)
    levels = [
        np.round(y * scale[0] + offset),
        *(np.clip(np.round(c * scale[1] + 128 * deep), 0, most) for c in (cb, cr)),
    ]
    y, cb, cr = (levels[0] - offset) / scale[0], *((c - 128 * deep) / scale[1] for c in levels[1:])
    r, b = y + 2 * (1 - red) * cr, y + 2 * (1 - blue) * cb
    return levels, np.clip(np.stack([r, (y - red * r - blue * b) / (1 - red - blue), b], -1), 0, 1) * 255


def plane_bytes(levels: list[np.ndarray], bits: int, *, chroma: tuple[int, int]) -> list[np.ndarray]:
    """(H, W) each. chroma: pixels of a sample, down and across."""
    kind = np.uint8 if bits == 8 else "<u2"
    shapes = ((1, 1), chroma, chroma)
    return [
        np.kron(p, np.ones((PATCH // h, PATCH // w))).astype(kind) for p, (h, w) in zip(levels, shapes, strict=True)
    ]


def middles(picture: np.ndarray) -> np.ndarray:
    """The mean of the inner 4x4 of each patch."""
    inner = picture.reshape(HIGH, PATCH, WIDE, PATCH, 3)[:, 6:10, :, 6:10]
    return inner.astype(float).mean((1, 3))


@pytest.mark.parametrize("matrix", WEIGHTS)
@pytest.mark.parametrize(
    ("pixel_format", "bits", "chroma", "full"),
    [
        ("yuv420p", 8, (2, 2), False),
        ("yuv420p", 8, (2, 2), True),
        ("yuv422p", 8, (1, 2), False),
        ("yuv444p", 8, (1, 1), False),
        ("yuv420p10le", 10, (2, 2), False),
        ("yuv422p10le", 10, (1, 2), False),
        ("yuv444p10le", 10, (1, 1), False),
    ],
)
def test_rgb_is_the_nearest_to_exact_arithmetic(pixel_format, bits, chroma, matrix, full):
    levels, exact = patches(matrix, bits, full=full)
    frame = av.VideoFrame(WIDE * PATCH, HIGH * PATCH, pixel_format)
    frame.colorspace, frame.color_range = matrix, 2 if full else 1
    for plane, samples in zip(frame.planes, plane_bytes(levels, bits, chroma=chroma), strict=True):
        lines = np.zeros((plane.height, plane.line_size), np.uint8)
        lines[:, : plane.width * samples.itemsize] = samples.view(np.uint8)
        plane.update(lines)
    made = ToRgb().plane(frame)
    picture = np.frombuffer(made, np.uint8).reshape(made.height, made.line_size)[:, : WIDE * PATCH * 3]
    error = middles(picture.reshape(HIGH * PATCH, -1, 3)) - exact
    assert np.abs(error).max() < 0.6
    assert np.abs(error.mean((0, 1))).max() < 0.1


@pytest.fixture(scope="module")
def flat(tmp_path_factory, cli):
    """A source of flat patches in BT.709, and what they are in RGB."""
    folder = tmp_path_factory.mktemp("flat")
    levels, exact = patches(1, 8, full=False)
    raw = folder / "raw"
    raw.write_bytes(b"".join(plane.tobytes() for plane in plane_bytes(levels, 8, chroma=(2, 2))) * 3)
    size = f"{WIDE * PATCH}x{HIGH * PATCH}"
    tags = "setparams=range=tv:colorspace=bt709:color_primaries=bt709:color_trc=bt709"
    (folder / "source").mkdir()
    reading = ("-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", size, "-r", 25, "-i", raw)
    cli.run(*reading, "-vf", tags, "-c:v", "ffv1", folder / "source" / "a.mkv")
    return folder / "source", exact


STORES = {  # and how far a patch may be off, where the colours are coded once more
    "tensor": ("burst", ["--format", "tensor"], 0.6),
    "burst": ("burst", ["--subsampling", "444", "--quality", 100], 2.0),
    "h264": ("transcode", ["--crf", 1], 1.0),
    "10 bits": ("transcode", ["--crf", 1, "--pixel-format", "yuv420p10le"], 1.0),
    "av1": ("transcode", ["--codec", "av1", "--crf", 1], 1.0),
}


@pytest.mark.parametrize("name", STORES)
def test_a_frame_has_the_same_rgb_from_every_store(name, flat, tmp_path):
    source, exact = flat
    verb, options, tolerance = STORES[name]
    assert transcode(source, tmp_path / "made", *options, verb=verb).code == 0
    stores = [open_store(tmp_path / "made")]
    if verb == "transcode":
        assert transcode(tmp_path / "made", tmp_path / "tar", "--to", "webdataset", verb="pack").code == 0
        assert list((tmp_path / "tar").glob("*.tar"))
        stores.append(open_store(tmp_path / "tar"))
    for store in stores:
        error = middles(store["a"].frames([1])[0]) - exact
        assert np.abs(error).max() < tolerance
        assert np.abs(error.mean((0, 1))).max() < 0.25
    assert transcode(source, tmp_path / "made", verb="validate").code == 0
    if verb == "transcode":
        fast = pickle.loads(pickle.dumps(open_store(tmp_path / "made", fast=True)))
        assert (middles(fast["a"].frames([1])[0]) - exact).mean() < -0.5  # what it costs, and that it is passed on


def test_fast_is_only_for_coded_frames(flat, tmp_path):
    assert transcode(flat[0], tmp_path / "made", "--format", "tensor", verb="burst").code == 0
    with pytest.raises(StoreError, match="fast is for stores of JPEGs and encoded videos"):
        open_store(tmp_path / "made", fast=True)


@pytest.mark.parametrize("matrix", [2, 3, 202])
def test_an_unprepared_file_has_the_colours_of_a_run(matrix, flat, cli, tmp_path):
    """Untagged, or with a reserved code: BT.709 from 720 lines up, else BT.601."""
    for lines, name in ((720, "bt709"), (64, "bt601")):
        path = tmp_path / f"{lines}.m2v"
        cli.run(
            "-f",
            "lavfi",
            "-i",
            f"color=0x4080c0:s=64x{lines}:r=25:d=0.12,format=gbrp",
            "-vf",
            f"scale=out_color_matrix={name}:out_range=tv,format=yuv420p",
            "-c:v",
            "mpeg2video",
            "-q:v",
            1,
            "-bsf:v",
            f"mpeg2_metadata=matrix_coefficients={matrix}",
            path,
        )
        assert np.abs(VideoFiles([path])[path.stem].frames([0]).mean((0, 1, 2)) - (0x40, 0x80, 0xC0)).max() < 1.5
