"""A finished run, and the same command with one option changed: it is refused by the option's name, or nothing is made
again that the option would not change.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers import make_clip, manifest, outputs, transcode
from vidprep.transcode.media.ffmpeg_program import find_ffmpeg
from vidprep.transcode.settings.run import options_of_command

# One other value of each option; () leaves the option out of the test: it makes all again by its meaning, or needs a
# cluster, an array or a LeRobot dataset.
OTHER = {
    "include": "c00*", "exclude": "c00*", "limit": 1, "label_from_folder": True, "labels": "label", "on_bad_row": "skip",
    "split_by": "train=0.5,val=0.5", "split_group": "label", "split_seed": 1, "split_from_folder": True, "keep_source_suffix": (),
    "fps": 10, "cut_origin": "container", "source_fps": 25, "video_stream": 0, "short_side": 32, "side_of": "c00=32",
    "size": "32x32", "fit": "crop", "multiple_of": 32, "max_area": 50000, "min_area": 40000, "scaler": "area", "upscale": True,
    "codec": "hevc", "encoder": "libx265", "container": "mkv", "gop": 5, "crf": 25, "preset": "slow", "tune": "visual",
    "pixel_format": "yuv444p", "encoder_threads": 3, "audio": "copy", "engine": "ffmpeg", "segment": "off", "format": "shards",
    "shard_size": "2MiB", "hdr": "keep", "on_damage": "fail", "target_psnr": 38, "target_mode": "per-video",
    "target_vmaf": 90, "min_psnr": 20, "verify_every": 2, "score": "xpsnr", "vmaf_model": "vmaf_v1.0.16_3d0h",
    "backend": (), "cluster_address": (), "partition": (), "jobs": 1, "actions": (), "images_to_video": (),
    "overwrite": (), "skip_failed": True, "prune": True, "events": (), "metrics": (), "ffmpeg": (), "timeout": 60, "max_memory": "2GiB",
    "max_pixels": 1000000, "max_frames": 1000, "quality": 80, "subsampling": "444", "sample_fps": 2, "sample_max": 8,
    "sample_min": 2, "sample_rule": "llava", "keep": "motion > 1",
    "captions": True, "buckets": 16, "bucket_area": "64x64", "frames": "2n+1", "least_frames": 3, "on_short": "skip",
}  # fmt: skip
NO_OPTION_OF_OUTPUTS = ["include", "exclude", "limit", "label_from_folder", "split_from_folder", "captions", "on_bad_row", "split_by", "jobs", "shard_size", "skip_failed", "prune", "timeout", "max_memory", "max_pixels", "max_frames", "cut_origin", "source_fps", "video_stream", "audio", "hdr", "on_damage"]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with two plain clips, and what both commands made of them."""
    top = tmp_path_factory.mktemp("finished")
    for number in range(2):
        make_clip(top / "src" / f"c0{number}.mp4", 4, seed=number)
    for verb in ("transcode", "burst"):
        assert transcode(top / "src", top / verb, "--quiet", verb=verb).code == 0
    return top


def test_no_option_is_missing_here():
    assert OTHER.keys() == {each.keyword for verb in ("transcode", "burst") for each in options_of_command(verb)}


def _pictures(dst: Path) -> dict[str, bytes]:
    return {name: data for name, data in outputs(dst).items() if not name.endswith((".parquet", ".json"))}


@pytest.mark.long
@pytest.mark.parametrize("verb", ["transcode", "burst"])
def test_an_option_that_changes_is_refused_by_name_or_makes_nothing_again(verb, finished, tmp_path):
    dst = tmp_path / "dst"
    shutil.copytree(finished / verb, dst)
    before = _pictures(dst)
    for keyword in (each.keyword for each in options_of_command(verb) if OTHER[each.keyword] != ()):
        flag, value = f"--{keyword.replace('_', '-')}", OTHER[keyword]
        ran = transcode(finished / "src", dst, flag, *([] if value is True else [value]), "--json", verb=verb)
        assert _pictures(dst) == before, flag
        if ran.code == 0:
            assert ran.rows == {}, flag
            assert transcode(finished / "src", dst, "--json", verb=verb).rows == {}, f"without {flag} again"
        else:
            store = "encoded videos -> encoded videos in shards" if verb == "transcode" else "burst -> "
            assert ran.code == 2 and (flag in ran.err or (keyword == "format" and store in ran.err)), (flag, ran.err)
        assert ran.code == 0 or keyword not in NO_OPTION_OF_OUTPUTS, ran.err


TOGETHER = [
    ("transcode", ["--side-of", "c00=32", "--fps", 10, "--hdr", "keep", "--audio", "copy", "--score", "xpsnr", "--cut-origin", "container"]),
    ("transcode", ["--target-psnr", 30, "--target-mode", "per-video", "--video-stream", 0, "--on-damage", "fail", "--min-psnr", 20]),
    ("transcode", ["--engine", "ffmpeg", "--size", "32x32", "--fit", "crop", "--source-fps", 12, "--gop", 5]),
    ("transcode", ["--format", "shards", "--short-side", 32, "--gop", 5, "--segment", "off"]),
    ("burst", ["--side-of", "c01=32", "--sample-fps", 2, "--quality", 80, "--subsampling", "444"]),
    ("burst", ["--format", "tensor", "--multiple-of", 32, "--min-area", 1024, "--max-area", 4096]),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "given"), TOGETHER)
def test_the_same_command_makes_nothing_again(verb, given, finished, dst):
    assert transcode(finished / "src", dst, *given, "--quiet", verb=verb).code == 0
    again = transcode(finished / "src", dst, *given, "--json", verb=verb)
    assert (again.code, again.rows, again.summary["done_before"]) == (0, {}, 2), again.err


@pytest.mark.parametrize(("verb", "given"), TOGETHER[::4])
def test_an_array_of_such_videos_is_whole(verb, given, finished, dst):
    for number in range(2):
        assert transcode(finished / "src", dst, *given, "--partition", f"{number}/2", verb=verb).code == 0
    merged = transcode(dst, verb="merge")
    assert merged.code == 0 and "2 ok, 0 failed" in merged.err, merged.err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("--sample-max", 8), "--sample-max 768 -> 8"),
        (("--sample-fps", 4), "--sample-fps 2 -> 4"),
        (("--quality", 80), "--quality 90 -> 80"),
        (("--side-of", "c00=32"), "--side-of not given -> c00=32"),
    ],
)
def test_the_message_names_options_as_they_are_typed(change, told, finished, dst):
    given = {"--sample-fps": 2}
    command = [str(each) for pair in given.items() for each in pair]
    assert transcode(finished / "src", dst, *command, "--quiet", verb="burst").code == 0
    changed = [str(each) for pair in (given | dict([change])).items() for each in pair]
    ran = transcode(finished / "src", dst, *changed, verb="burst")
    assert ran.code == 2 and f"made with different settings: {told}. Take" in ran.err, ran.err


def test_a_whole_number_is_not_shown_with_a_point(finished, tmp_path):
    shutil.copytree(finished / "transcode", tmp_path / "dst")
    ran = transcode(finished / "src", tmp_path / "dst", "--crf", 25)
    assert ran.code == 2 and "--crf 20 -> 25." in ran.err, ran.err


@pytest.mark.parametrize(
    ("option", "values", "name"),
    [
        ("--audio", ("drop", "copy"), "sound"),
        ("--hdr", ("sdr", "keep"), "hdr"),
        ("--video-stream", (0, 1), "streams"),
        ("--source-fps", (25, 10), "raw"),
    ],
)
def test_a_setting_counts_where_an_output_depends_on_it(option, values, name, tmp_path, dst):
    """Of two videos one depends on the option: the message names it, and without that one the other stays as it is."""
    src = tmp_path / "src"
    make_clip(src / "plain.mp4", 4)
    other = _make(name, src)
    assert transcode(src, dst, option, values[0], "--quiet").code == 0
    told = transcode(src, dst, option, values[1], "--json")
    assert told.code == 2 and f"{option} {values[0]} -> {values[1]}" in told.err, told.err
    other.unlink()
    assert transcode(src, dst, option, values[0], "--prune", "--quiet").code == 0 and set(manifest(dst)) == {"plain"}
    again = transcode(src, dst, option, "best" if name == "streams" else values[1], "--json")
    assert again.code == 0 and again.rows == {}, again.err


# Sources of which an output depends on an option, as arguments of ffmpeg after a picture of its own.
MADE = {
    "sound": ["-f", "lavfi", "-i", "sine=duration=1", "-c:a", "aac", "-shortest"],
    "hdr": ["-vf", "format=yuv420p10,setparams=color_trc=smpte2084:color_primaries=bt2020:colorspace=bt2020nc"],
    "streams": ["-f", "lavfi", "-i", "testsrc2=size=64x48:rate=10:duration=1", "-map", "0", "-map", "1"],
    "raw": ["-f", "mjpeg"],
}


def _make(name: str, folder: Path) -> Path:
    path = folder / ("raw.mjpeg" if name == "raw" else f"{name}.mkv")
    picture = ["-f", "lavfi", "-i", "testsrc2=size=64x48:rate=10:duration=1"]
    subprocess.run([find_ffmpeg(None), "-v", "error", *picture, *MADE[name], str(path)], check=True)
    return path
