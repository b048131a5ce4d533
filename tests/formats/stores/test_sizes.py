"""Frames at the size that is asked: against bicubic scaling of their full-size RGB, done by hand at full precision."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.formats.conftest import ENCODED, STORED
from tests.helpers import make_clip, transcode
from tests.sampling import in_turn
from vidprep.formats import VideoDataset, open_store
from vidprep.formats.errors import StoreError
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.video.rgb import resize_picture

# Their colours are beyond RGB: cut off there, and then averaged, they are not what they are averaged first.
BEYOND_RGB = {"clock_320x240_300s.mp4", "pattern_480i_bff_mpeg2.mkv"}
SLOW = {"phone_4k60_rotated_90.mp4"}


def bicubic(distance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Keys' kernel with a = -0.6, as libswscale has it. R. Keys, "Cubic convolution interpolation for digital image processing", 1981."""
    x, a = np.abs(distance), -0.6
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def weights(count: int, wanted: int) -> npt.NDArray[np.float64]:
    """(wanted, count): what each sample adds to each one made; the kernel is widened where there are fewer, and edges are repeated."""
    step = max(1.0, count / wanted)
    around = int(np.ceil(2 * step)) + 2
    places = np.arange(-around, count + around)
    middles = (np.arange(wanted) + 0.5) * count / wanted - 0.5
    each = bicubic((places[None] - middles[:, None]) / step)
    made = np.zeros((wanted, count))
    for column, place in enumerate(np.clip(places, 0, count - 1)):
        made[:, place] += each[:, column]
    return made / made.sum(1, keepdims=True)


def scaled(pictures: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.float64]:
    down, across = weights(pictures.shape[1], height), weights(pictures.shape[2], width)
    return np.clip(np.einsum("hy,tyxc,wx->thwc", down, pictures.astype(np.float64), across, optimize=True), 0, 255)


def psnr(made: npt.NDArray[np.uint8], due: npt.NDArray[np.float64]) -> float:
    return float(10 * np.log10(255**2 / max(1e-9, np.square(made - np.rint(due)).mean())))


@pytest.fixture(scope="module")
def smooth(cli, tmp_path_factory) -> Path:
    """A second of colours that are all within RGB."""
    path = tmp_path_factory.mktemp("smooth") / "clip.mkv"
    made = "gradients=s=96x64:n=6:speed=0.05:seed=5,format=yuv444p,noise=alls=8:allf=t:all_seed=1"
    cli.run("-f", "lavfi", "-i", made, "-t", 1, "-c:v", "ffv1", path)
    return path


@pytest.mark.parametrize("size", [(32, 48), (37, 29), (64, 40), (100, 150)])
@pytest.mark.parametrize("kind", in_turn([*STORED, *ENCODED], 4))
def test_each_store_scales_as_if_in_rgb_at_full_precision(kind, size, smooth, tmp_path):
    options, verb = (ENCODED[kind], "transcode") if kind in ENCODED else (STORED[kind], "burst")
    assert transcode(smooth, tmp_path / "made", *options, verb=verb).code == 0
    video = open_store(tmp_path / "made")["clip"]
    made = video.frames([3, 9, 3], size=size)
    assert made.shape == (3, *size, 3)
    assert np.array_equal(made[0], made[2])
    assert psnr(made, scaled(video.frames([3, 9, 3]), *size)) > 40
    into = np.empty_like(made)
    assert video.frames([3, 9, 3], out=into, size=size) is into
    assert np.array_equal(into, made)


@pytest.mark.long
def test_real_clips_in_their_own_files(shared_media):
    """Turned, cropped, deep, interlaced and large ones."""
    for path in sorted(shared_media.iterdir()):
        if path.suffix in (".csv", ".md") or path.is_dir() or path.name in BEYOND_RGB | SLOW:
            continue
        store = VideoFiles([path])
        video = store[store.ids[0]]
        numbers = [0, len(video) // 2]
        made = video.frames(numbers, size=(112, 112))
        assert psnr(made, scaled(video.frames(numbers), 112, 112)) > 40, path.name


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_a_turned_file_is_turned_at_any_size(turn, smooth, cli, tmp_path):
    cli.run("-i", smooth, "-c:v", "libx264", "-frames:v", 4, tmp_path / "clip.mp4")
    cli.run("-display_rotation", turn, "-i", tmp_path / "clip.mp4", "-c", "copy", tmp_path / "turned.mp4")
    video = VideoFiles([tmp_path / "turned.mp4"])["turned"]
    assert psnr(video.frames(size=(40, 30)), scaled(video.frames(), 40, 30)) > 40


@pytest.mark.parametrize("format_", ["burst", "gulp", "webdataset"])
def test_smaller_by_eighths_and_then_scaled(format_, store_of):
    """`short_side` decodes at an eighth of the size that is large enough; the rest is scaled."""
    store = open_store(store_of(format_), short_side=40)
    video = store[store.ids[0]]
    assert (video.height, video.width) == (40, 60)
    assert psnr(video.frames([0, 5], size=(32, 32)), scaled(video.frames([0, 5]), 32, 32)) > 40


@pytest.mark.parametrize("colours", ["RGB", "L", "CMYK"])
def test_jpegs_of_others_are_scaled_whatever_they_hold(colours, tmp_path):
    """A gulp file whose JPEGs are plain, without colours, or of four inks."""
    picture = Image.fromarray(np.random.default_rng(0).integers(60, 200, (8, 12, 3), np.uint8)).resize((96, 64))
    data = io.BytesIO()
    picture.convert(colours).save(data, "JPEG", quality=95)
    jpeg = data.getvalue()
    (tmp_path / "data_0.gulp").write_bytes(jpeg)
    (tmp_path / "meta_0.gmeta").write_text(json.dumps({"clip": {"frame_info": [[0, 0, len(jpeg)]], "meta_data": [{}]}}))
    video = open_store(tmp_path)["clip"]
    assert psnr(video.frames(size=(32, 40)), scaled(video.frames(), 32, 40)) > 40


def test_grey_stays_grey_and_flat_colours_are_unchanged():
    rng = np.random.default_rng(0)
    grey = np.repeat(rng.integers(0, 256, (40, 60, 1), np.uint8), 3, 2)
    made = np.empty((17, 23, 3), np.uint8)
    resize_picture(grey, made)
    assert np.array_equal(made[..., 0], made[..., 1])
    assert np.array_equal(made[..., 0], made[..., 2])
    for colour in rng.integers(0, 256, (20, 3), np.uint8):
        resize_picture(np.broadcast_to(colour, (40, 60, 3)), made)
        assert (made == colour).all()


@pytest.mark.parametrize("size", [(0, 5), (5, -1), (5,), (5, 5, 3)])
def test_a_size_that_is_none(size, store_of):
    store = open_store(store_of("burst"))
    with pytest.raises(ValueError, match="give \\(height, width\\) in pixels"):
        store[store.ids[0]].frames([0], size=size)


def test_an_array_of_another_size_is_named(store_of):
    store = open_store(store_of("h264"))
    with pytest.raises(ValueError, match=r"\(1, 32, 48, 3\) uint8"):
        store[store.ids[0]].frames([0], np.empty((1, 64, 96, 3), np.uint8), size=(32, 48))


def test_damage_is_reported_at_any_size(tmp_path):
    make_clip(tmp_path / "src" / "clip.mp4", 5, (96, 64))
    for format_ in ("burst", "gulp"):
        folder = tmp_path / format_
        assert transcode(tmp_path / "src", folder, "--format", format_, verb="burst").code == 0
        (shard,) = [path for path in folder.iterdir() if path.suffix in (".bin", ".gulp")]
        data = bytearray(shard.read_bytes())
        data[: len(data) // 2] = bytes(len(data) // 2)
        shard.write_bytes(data)
        store = open_store(folder)
        with pytest.raises(StoreError, match="clip"):
            store["clip"].frames([0], size=(32, 32))


@pytest.mark.parametrize("kind", ["h264", "burst", "tensor"])
def test_a_dataset_asks_its_store_for_the_size(kind, store_of):
    store = open_store(store_of(kind))
    item = VideoDataset(store_of(kind), 4, size=32, crop=24)[5]
    due = store[item["id"]].frames(item["indexes"], size=(32, 48))[:, 4:28, 12:36]
    assert np.array_equal(item["frames"], due)
