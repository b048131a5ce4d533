"""Bursts: what is written, and what other readers make of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image

from tests.helpers import make_clips, manifest, table, transcode
from tests.real_media import SHARED_MEDIA, real_clips
from tests.sampling import in_turn
from tests.transcode.media.patches import psnr
from tests.transcode.media.test_colours import MEANING, TO_RGB
from tests.transcode.unit.bursts import FORMATS, burst, good, is_whole


@pytest.mark.parametrize("store", FORMATS)
def test_every_byte_of_a_store_belongs_to_a_unit_and_is_as_the_manifest_says(store, clips, dst):
    ran = burst(clips, dst, "--format", store, "--json")
    assert ran.code == 0, ran.err
    assert ran.summary["ok"] == 5
    frames = is_whole(dst)
    assert [len(frames[f"c{n:02d}"]) for n in range(5)] == [6, 7, 8, 6, 7]
    for row in manifest(dst).values():
        assert row["container"] == store
        assert row["verified_in"] == "same pass"
        assert row["psnr_y_db"] > 35
        assert not any("larger" in text for text in row["warnings"])


def test_the_frames_of_a_tensor_store_are_those_of_ffmpeg(clips, dst, cli):
    assert burst(clips, dst, "--format", "tensor").code == 0
    for name, frames in is_whole(dst).items():
        row = good(dst)[name]
        ours = np.frombuffer(b"".join(frames), np.uint8).reshape(-1, row.height, row.width, 3)
        theirs = cli.raw(clips / f"{name}.mp4", TO_RGB.format("bt601", "limited"), row.width, row.height, "rgb24")
        assert psnr(ours, theirs.reshape(ours.shape)) > 38
        assert row.psnr_y_db == float("inf")


@pytest.mark.parametrize("subsampling", ["420", "444", "gray"])
def test_scores_are_those_of_the_jpegs_against_the_frames_that_went_in(subsampling, clips, dst, cli, tmp_path):
    """ffmpeg's psnr filter, on our JPEGs and on planes that ffmpeg made from the source."""
    assert burst(clips / "c00.mp4", dst, "--subsampling", subsampling, "--quality", "80").code == 0
    (frames,) = is_whole(dst).values()
    for number, data in enumerate(frames):
        (tmp_path / f"{number:03d}.jpg").write_bytes(data)
    pixels = {"420": "yuvj420p", "444": "yuvj444p", "gray": "yuvj420p"}[subsampling]
    flags = "flags=bicubic+accurate_rnd+bitexact:in_range=limited:out_range=full:in_color_matrix=bt601:out_color_matrix=bt601"
    luma = ",extractplanes=y" if subsampling == "gray" else ""
    said = cli.log(
        "-i",
        tmp_path / "%03d.jpg",
        "-i",
        clips / "c00.mp4",
        "-lavfi",
        f"[1:v]scale={flags},format={pixels}{luma}[r];[0:v]format={'gray' if luma else pixels}[d];[d][r]psnr",
        "-f",
        "null",
        "-",
    )
    theirs = float(said.rsplit(" y:", 1)[1].split()[0])
    assert good(dst)["c00"].psnr_y_db == pytest.approx(theirs, abs=0.01)


# Their YUV lies outside of RGB in places: the reference is clipped there before chroma is averaged, a JPEG after.
OUT_OF_GAMUT = {"traffic_1280x720_vfr.mp4", "pattern_480i_bff_mpeg2.mkv"}


def rgb_of(cli: Any, path: Path, meaning: tuple[str, str], size: tuple[int, int]) -> np.ndarray:
    return cli.raw(path, TO_RGB.format(*meaning), *size, "rgb24").reshape(-1, size[1], size[0], 3)


@pytest.mark.parametrize("name", sorted(MEANING))
def test_colours_are_right_in_readers_that_know_nothing_of_the_source(name, media, dst, cli):
    """Within 1 dB of a JPEG that Pillow makes from the reference RGB, and no channel off by a level."""
    assert burst(media[name], dst, "--quality", "90").code == 0
    ((frames, row),) = zip(is_whole(dst).values(), good(dst).values(), strict=True)
    reference = rgb_of(cli, media[name], MEANING[name], (row.width, row.height))[0]
    ours = np.asarray(Image.open(io.BytesIO(frames[0])).convert("RGB"))
    held = io.BytesIO()
    Image.fromarray(reference).save(held, "JPEG", quality=90, subsampling=2)
    theirs = np.asarray(Image.open(held).convert("RGB"))
    allowed = 1.1 if name == "colour_444_full.mp4" else 1  # its chroma is averaged by another filter than Pillow's
    assert psnr(ours, reference) > psnr(theirs, reference) - allowed
    assert np.abs(ours.mean((0, 1)) - reference.mean((0, 1))).max() < 1
    opened = cv2.cvtColor(cv2.imdecode(np.frombuffer(frames[0], np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    assert psnr(opened, ours) > 40


@pytest.mark.media
@pytest.mark.parametrize("name", in_turn(real_clips(), 2))
def test_jpegs_of_real_clips_have_their_colours(name, dst, tmp_path):
    """At quality 100 against RGB that ffmpeg made of the same picture; 4:2:0 costs what it costs any JPEG."""
    opening = table(tmp_path / "opening.csv", [{"path": SHARED_MEDIA / name, "id": "opening", "end": 0.5}])
    assert burst(opening, dst, "--quality", "100", "--short-side", "120", "--fps", "1").code == 0
    ((frames, row),) = zip(is_whole(dst).values(), good(dst).values(), strict=True)
    tensor = dst.with_name("tensor")
    assert burst(opening, tensor, "--format", "tensor", "--short-side", "120", "--fps", "1").code == 0
    raw = np.frombuffer(next(iter(is_whole(tensor).values()))[0], np.uint8).reshape(row.height, row.width, 3)
    ours = np.asarray(Image.open(io.BytesIO(frames[0])).convert("RGB"))
    held = io.BytesIO()
    Image.fromarray(raw).save(held, "JPEG", quality=100, subsampling=2)
    theirs = np.asarray(Image.open(held).convert("RGB"))
    least, most = (39.5, 1.1) if name in OUT_OF_GAMUT else (40, 1)
    assert psnr(ours, raw) > min(psnr(theirs, raw) - 1, least)
    assert np.abs(ours.mean((0, 1)) - raw.mean((0, 1))).max() < most


def test_the_same_video_gives_the_same_bytes_beside_any_other(clips, dst, tmp_path):
    assert burst(clips, dst, "--jobs", 2, "--shard-size", "1MiB").code == 0
    assert burst(clips / "c03.mp4", tmp_path / "one").code == 0
    assert is_whole(dst)["c03"] == is_whole(tmp_path / "one")["c03"]


def test_a_shard_takes_units_until_it_would_grow_past_its_size(tmp_path, dst):
    src = make_clips(tmp_path / "src", 6, 8, size=(256, 256), noise=True)
    assert burst(src, dst, "--shard-size", "1MiB", "--quality", "95").code == 0
    is_whole(dst)
    sizes = [path.stat().st_size for path in sorted(dst.glob("data-*.bin"))]
    assert len(sizes) > 1
    assert all(
        size <= 1 << 20 or sum(r.file_name == f"data-00001-{n:05d}.bin" for r in good(dst).values()) == 1
        for n, size in enumerate(sizes)
    )


def test_a_repeated_frame_is_stored_twice(clips, dst):
    assert burst(clips / "c00.mp4", dst, "--fps", 50).code == 0
    (frames,) = is_whole(dst).values()
    assert len(frames) == 12
    assert frames[0] == frames[1] != frames[2]
    assert good(dst)["c00"].source_frames == [n // 2 for n in range(12)]


def test_a_floor_for_quality_is_held(clips, dst):
    ran = burst(clips, dst, "--quality", 5, "--min-psnr", 45)
    assert ran.code == 1
    assert {row["error"] for row in manifest(dst).values()} == {"GateError"}
    assert not list(dst.glob("data-*"))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--quality", "0", "1 to 100"),
        ("--quality", "101", "1 to 100"),
        ("--shard-size", "10", "1 MiB"),
        ("--shard-size", "much", "such as 500MB"),
        ("--format", "zip", "burst"),
        ("--subsampling", "422", "420"),
    ],
)
def test_impossible_settings_are_reported_before_any_work(option, value, said, clips, dst):
    ran = burst(clips, dst, option, value)
    assert ran.code == 2
    assert said in ran.err
    assert not dst.exists()


def test_other_settings_are_refused_and_another_shard_size_is_not(clips, dst):
    assert burst(clips, dst).code == 0
    assert "quality 90 -> 80" in burst(clips, dst, "--quality", 80).err
    assert "jpeg" not in burst(clips, dst, "--shard-size", "2MiB").err
    ran = transcode(clips, dst)
    assert ran.code == 2
    assert "different settings" in ran.err


def test_gulpio2_reads_what_we_wrote(clips, dst):
    reader = pytest.importorskip("gulpio2")
    assert burst(clips, dst, "--format", "gulp", "--shard-size", "1MiB").code == 0
    frames = is_whole(dst)
    read = reader.GulpDirectory(str(dst))
    assert set(read.merged_meta_dict) == set(frames)
    for name, ours in frames.items():
        theirs, meta = read[name]
        expected = [simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True) for data in ours]  # as it does
        assert all(np.array_equal(a, b) for a, b in zip(theirs, expected, strict=True))
        assert meta["frame_rate"] == [25, 1]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves its files to be collected
def test_webdataset_reads_what_we_wrote(tmp_path, dst):
    reader = pytest.importorskip("webdataset")
    src = make_clips(tmp_path / "src" / "a.b", 3)
    assert burst(src.parent, dst, "--format", "webdataset", "--label-from-folder").code == 0
    samples = list(reader.WebDataset(str(dst / "data-00001-00000.tar"), shardshuffle=False))
    assert sorted(json.loads(sample["json"])["id"] for sample in samples) == ["a.b/c00", "a.b/c01", "a.b/c02"]
    frames = is_whole(dst)
    for sample in samples:
        facts = json.loads(sample["json"])
        assert facts["label"] == "a.b"
        names = sorted(name for name in sample if name.endswith(".jpg"))
        assert [sample[name] for name in names] == frames[facts["id"]]


def test_tar_shards_have_the_same_bytes_wherever_they_are_written(clips, dst, tmp_path):
    for folder in (dst, tmp_path / "again"):
        assert burst(clips, folder, "--format", "webdataset", "--jobs", 1).code == 0
    assert (dst / "data-00001-00000.tar").read_bytes() == (tmp_path / "again" / "data-00001-00000.tar").read_bytes()
