"""Aspect-ratio buckets: the nearest of all that there are, counted by hand, and outputs of just that size."""

from __future__ import annotations

import math
import random
from pathlib import Path

import av
import pytest

from tests.helpers import manifest, transcode
from tests.witness import Ffmpeg
from vidprep.formats.spread import aspect_buckets, nearest_bucket


@pytest.mark.parametrize("multiple", [16, 32, 64])
@pytest.mark.parametrize("area", [256 * 256, 512 * 512, 480 * 832, 1024 * 1024])
def test_buckets_are_the_largest_of_their_width_or_height(multiple: int, area: int) -> None:
    sides = range(multiple, 3 * math.isqrt(area), multiple)
    every = [(width, height) for width in sides for height in sides if width * height <= area]
    largest = {
        each
        for each in every
        if (each[0], each[1] + multiple) not in every or (each[0] + multiple, each[1]) not in every
    }
    found = aspect_buckets(multiple, area)
    assert found == sorted({(height, width) for width, height in found})
    assert {*found} <= largest
    assert all(1 / 7 < width / height < 7 for width, height in found)
    square = math.isqrt(area) // multiple * multiple
    assert any(width == square for width, _ in found)


def test_the_nearest_bucket_and_a_picture_of_its_own_size() -> None:
    rng = random.Random(1)
    for _ in range(300):
        width, height = rng.randint(100, 4000), rng.randint(100, 4000)
        buckets = aspect_buckets(16, 512 * 512)
        found = nearest_bucket(width, height, 16, 512 * 512)
        ratio = width / height
        apart = [max(ratio / (w / h), (w / h) / ratio) for w, h in buckets]
        assert apart[buckets.index(found)] == pytest.approx(min(apart))
        assert nearest_bucket(*found, 16, 512 * 512) == found
        assert nearest_bucket(height, width, 16, 512 * 512) == found[::-1]


SIZES = {"wide": "640x360", "tall": "360x640", "square": "400x402", "film": "640x272", "small": "150x100"}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory, cli: Ffmpeg) -> Path:
    folder = tmp_path_factory.mktemp("buckets") / "raw"
    folder.mkdir()
    for name, size in SIZES.items():
        source = ("-f", "lavfi", "-i", f"testsrc2=size={size}:rate=24:duration=0.8")
        cli.run(*source, "-pix_fmt", "yuv420p", folder / f"{name}.mp4")
    cli.run("-display_rotation", "90", "-i", folder / "wide.mp4", "-c", "copy", folder / "turned.mp4")
    anamorphic = ("-f", "lavfi", "-i", "testsrc2=size=360x360:rate=24:duration=0.8", "-vf", "setsar=16/9")
    cli.run(*anamorphic, "-pix_fmt", "yuv420p", folder / "anamorphic.mp4")
    return folder


@pytest.mark.parametrize(("fit", "engine"), [((), "av"), (("--fit", "pad"), "av"), (("--fit", "crop"), "ffmpeg")])
def test_every_output_has_the_size_of_its_bucket(raw: Path, tmp_path: Path, fit: tuple[str, ...], engine: str) -> None:
    asked = ("--buckets", "16", "--bucket-area", "256x256", *fit, "--engine", engine, "--frames", "8n+1")
    assert transcode(raw, tmp_path / "out", *asked).code == 0
    found = {}
    for id_, row in manifest(tmp_path / "out").items():
        with av.open(str(tmp_path / "out" / row["file_name"])) as container:
            frames = [(frame.width, frame.height) for frame in container.decode(video=0)]
        assert row["bucket"] == f"{frames[0][0]}x{frames[0][1]}x{len(frames)}"
        assert len({*frames}) == 1
        assert len(frames) == 17
        found[id_] = frames[0]
    assert found["small"] == (144, 96)
    assert found["wide"] == found["anamorphic"] == nearest_bucket(640, 360, 16, 65536)
    assert found["tall"] == found["turned"] == found["wide"][::-1]
    assert found["film"] == nearest_bucket(640, 272, 16, 65536)
    assert found["square"] == (256, 256)


def test_a_small_picture_is_enlarged_only_where_that_is_allowed(raw: Path, tmp_path: Path) -> None:
    asked = ("--buckets", "16", "--bucket-area", "256x256", "--include", "small*")
    ran = transcode(raw, tmp_path / "own", *asked)
    assert "smaller than its bucket" in ran.err
    assert transcode(raw, tmp_path / "large", *asked, "--upscale").code == 0
    assert manifest(tmp_path / "large")["small"]["bucket"].startswith(
        "{}x{}x".format(*nearest_bucket(150, 100, 16, 65536))
    )
    assert (
        transcode(raw, tmp_path / "none", "--buckets", "128", "--bucket-area", "256x256", "--include", "small*").code
        == 1
    )


def test_stored_frames_have_buckets_too(raw: Path, tmp_path: Path) -> None:
    asked = ("--buckets", "32", "--bucket-area", "256x256", "--include", "wide*", "--frames", "9")
    assert transcode(raw, tmp_path / "out", *asked, verb="burst").code == 0
    width, height = nearest_bucket(640, 360, 32, 65536)
    assert manifest(tmp_path / "out")["wide"]["bucket"] == f"{width}x{height}x9"
