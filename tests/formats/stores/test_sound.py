"""Audio of stores: the samples that ffmpeg decodes, at their times, also from the middle and resampled."""

from __future__ import annotations

import math
import re
from pathlib import Path

import av
import numpy as np
import pytest

from tests.helpers import make_clips, transcode
from vidprep.formats import PrefetchLoader, VideoDataset, clips_uniform, open_store
from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.stores.raw_files import VideoFiles

SWEEP = "aevalsrc=0.4*sin(2*PI*(300+150*t)*t)|0.3*sin(2*PI*(900-120*t)*t):s={rate}:d=4"


pytestmark = pytest.mark.xdist_group("sound")  # the stores are made once


@pytest.fixture(scope="module")
def heard(cli, tmp_path_factory) -> Path:
    """A folder of stores: 4 s of video with a sweep in each ear, whose every part is like no other."""
    root = tmp_path_factory.mktemp("heard")
    (root / "src").mkdir()
    picture = ("-f", "lavfi", "-i", "testsrc2=size=128x96:rate=25:d=4")
    for name, rate, codec in (
        ("aac", 44100, "aac"),
        ("aac48", 48000, "aac"),
        ("mp3", 44100, "libmp3lame"),
        ("flac", 32000, "flac"),
        ("opus", 48000, "libopus"),
    ):
        sound = ("-f", "lavfi", "-i", SWEEP.format(rate=rate))
        cli.run(
            *picture,
            *sound,
            "-c:v",
            "libx264",
            "-g",
            10,
            "-pix_fmt",
            "yuv420p",
            "-c:a",
            codec,
            "-strict",
            "-2",
            root / "src" / f"{name}.mkv",
        )
    cli.run(*picture, "-c:v", "libx264", "-pix_fmt", "yuv420p", root / "src" / "silent.mkv")
    for kind, how in (
        ("mp4", ["--audio", "aac"]),
        ("mkv", ["--audio", "copy", "--container", "mkv"]),
        ("webm", ["--audio", "opus", "--codec", "vp9", "--container", "webm"]),
    ):
        ran = transcode(root / "src", root / kind, "--gop", 10, "--short-side", 64, "--quiet", *how)
        assert ran.code == 0, ran.err
    return root


def of_ffmpeg(cli, path, rate=None, channels=2) -> np.ndarray:
    """(C, N) from the first frame on, by the ffmpeg command."""
    how = ("-af", "aresample=async=1:first_pts=0" + (f",aresample={rate}" if rate else ""))
    return (
        np.frombuffer(cli.run("-i", path, "-vn", *how, "-ac", channels, "-f", "f32le", "-"), "<f4")
        .reshape(-1, channels)
        .T
    )


def offset_of(found: np.ndarray, due: np.ndarray, most: int = 2000) -> int:
    """By how many samples one lies behind the other: the peak of their correlation."""
    size = 1 << math.ceil(math.log2(len(found) + len(due)))
    peaks = np.fft.irfft(np.fft.rfft(found, size).conj() * np.fft.rfft(due, size), size)
    lags = np.concatenate([peaks[-most:], peaks[: most + 1]])
    return int(np.argmax(lags)) - most


NAMES = ("aac", "aac48", "mp3", "flac", "opus")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mp4", "mkv", "webm"])
def test_samples_are_those_of_ffmpeg_wherever_one_begins(kind, heard, cli):
    store = open_store(heard / kind)
    rng = np.random.default_rng(1)
    for name in NAMES:
        video = store[name]
        due = of_ffmpeg(cli, store.file(name))
        rate = video.sample_rate
        whole = video.samples()
        assert whole.dtype == np.float32 and whole.shape == (2, round(video.end_seconds * rate))
        count = min(whole.shape[1], due.shape[1])
        assert count > 3.9 * rate
        for ear in range(2):
            assert offset_of(whole[ear], due[ear]) == 0, name
        assert np.abs(whole[:, :count] - due[:, :count]).max() < 2e-3, name
        for start, length in [
            *zip(rng.uniform(0, 3.4, 5), rng.uniform(0.02, 0.5, 5), strict=True),
            (0.0, 0.1),
            (3.7, 0.3),
        ]:
            part = video.samples(start, start + length)
            first, last = math.floor(start * rate + 0.5), math.floor((start + length) * rate + 0.5)
            assert part.shape == (2, last - first)
            # AAC fills bands with noise that depends on what was decoded before.
            assert np.abs(part - whole[:, first:last]).max() < 0.02, (name, start)
            assert len(part[0]) < 2000 or offset_of(part[0], whole[0, first:last]) == 0, (name, start)


@pytest.mark.parametrize("kind", ["mp4", "mkv", "webm"])
@pytest.mark.parametrize("rate", [16000, 22050, 48000])
def test_resampled_audio_is_aligned_to_the_sample(kind, rate, heard, cli):
    store = open_store(heard / kind)
    for name in ("aac", "flac"):
        video = store[name]
        whole, due = video.samples(rate=rate, num_channels=1)[0], of_ffmpeg(cli, store.file(name), rate, 1)[0]
        assert offset_of(whole, due) == 0, (name, rate)
        inner = slice(rate // 20, min(len(whole), len(due)) - rate // 20)  # at the ends ffmpeg mirrors what it has
        assert np.abs(whole[inner] - due[inner]).max() < 2e-3
        for start in (0.0, 0.3331, 1.7, 3.2):
            part = video.samples(start, start + 0.4, rate=rate, num_channels=1)[0]
            first = math.floor(start * rate + 0.5)
            assert len(part) == math.floor((start + 0.4) * rate + 0.5) - first
            assert np.abs(part - whole[first : first + len(part)]).max() < 0.02, (name, start)
            assert offset_of(part, whole[first : first + len(part)]) == 0


def test_audio_of_unprepared_files_begins_with_their_video(heard, media, cli):
    store = VideoFiles([heard / "src" / "aac.mkv", media["with_sound.mkv"]])
    for id_ in store.ids:
        video = store[id_]
        found, due = video.samples(), of_ffmpeg(cli, store.file(id_), channels=len(video.samples(0, 0.1)))
        with av.open(str(store.file(id_))) as container:
            picture = container.streams.video[0]
            late = float(picture.start_time * picture.time_base) - container.start_time / 1e6
        due = due[:, round(late * video.sample_rate) :][:, : found.shape[1]]
        count = min(found.shape[1], due.shape[1])
        assert offset_of(found[0], due[0]) == 0 and np.abs(found[:, :count] - due[:, :count]).max() < 2e-3


def test_there_is_silence_before_and_behind(heard):
    video = open_store(heard / "mp4")["aac"]
    around = video.samples(-0.5, 5.0)
    rate = video.sample_rate
    assert around.shape == (2, round(5.5 * rate))
    assert not around[:, : rate // 2].any() and not around[:, -rate // 2 :].any()
    assert np.array_equal(around[:, rate // 2 : rate], video.samples(0, 0.5))
    assert video.samples(1.0, 1.0).shape == (2, 0)


def test_a_video_without_audio_raises(heard, store_of):
    store = open_store(heard / "mp4")
    assert store["silent"].sample_rate is None
    with pytest.raises(StoreError, match=r"silent: has no audio: its source has none, or the run dropped it"):
        store["silent"].samples()
    frames = open_store(store_of("burst"))
    assert frames[frames.ids[0]].sample_rate is None
    with pytest.raises(StoreError, match="has no audio: its source has none, or the run dropped it"):
        frames[frames.ids[0]].samples()
    for arguments, said in (((2, 1), "a start that is not after the end"), ((0, float("nan")), "[0, nan) s")):
        with pytest.raises(ValueError, match=re.escape(said)):
            store["aac"].samples(*arguments)
    for how in ({"rate": 0}, {"num_channels": 3}):
        with pytest.raises(ValueError, match="give samples per second, and 1 or 2 channels"):
            store["aac"].samples(**how)


@pytest.mark.parametrize("processes", [True, False])
def test_batches_carry_the_audio_of_their_frames(processes, heard):
    dataset = VideoDataset(heard / "mp4", 10, 2, 7, size=32, audio_rate=16000)
    count = round(10 * 2 / 25 * 16000)
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes) as loader:
        for batch in loader:
            assert batch["audio"].shape == (len(batch["id"]), 1, count)
            for place, id_ in enumerate(batch["id"]):
                assert bool(batch["has_audio"][place]) == (id_ != "silent")
                if id_ == "silent":
                    assert not batch["audio"][place].any()
                    continue
                begin = batch["timestamps"][place][0]
                due = dataset.store[id_].samples(begin, begin + count / 16000, rate=16000, num_channels=1)
                assert due.shape[1] == count and np.array_equal(batch["audio"][place], due)
    stereo = VideoDataset(heard / "mp4", 3, audio_rate=8000, audio_channels=2, audio_seconds=0.25, ids=["aac"])
    assert stereo[5]["audio"].shape == (2, 2000) and stereo[5]["has_audio"] is True


def test_a_store_without_audio_is_silent_beside_one_that_has_it(heard, store_of):
    with pytest.warns(UserWarning, match="have no label"):
        both = VideoDataset(
            {"a": heard / "mp4", "b": store_of("tensor")}, 5, step=20, size=16, audio_rate=8000, audio_seconds=0.2
        )
    found = {item["id"]: item for item in map(both.__getitem__, range(len(both)))}
    assert found["a/aac"]["has_audio"] and found["a/aac"]["audio"].any()
    of_frames = [item for id_, item in found.items() if id_.startswith("b/")]
    assert of_frames and not any(item["has_audio"] or item["audio"].any() for item in of_frames)
    assert {item["audio"].shape for item in found.values()} == {(1, 1600)}


def test_clips_that_last_otherwise_than_the_audio_are_named(heard, cli, tmp_path):
    for name, rate in (("a", 25), ("b", 50)):
        how = (
            "-f",
            "lavfi",
            "-i",
            f"testsrc2=size=64x48:rate={rate}:d=1",
            "-f",
            "lavfi",
            "-i",
            "sine=d=1",
            "-pix_fmt",
            "yuv420p",
        )
        (tmp_path / "src").mkdir(exist_ok=True)
        cli.run(*how, tmp_path / "src" / f"{name}.mp4")
    assert transcode(tmp_path / "src", tmp_path / "dst", "--audio", "aac").code == 0
    dataset = VideoDataset(tmp_path / "dst", 10, step=10, audio_rate=8000)
    assert dataset[0]["audio"].shape == (1, 3200)
    with pytest.raises(
        StoreError, match=r"b: its clips do not last 0\.400 s, as those of others do; give audio_seconds"
    ):
        dataset[2]
    assert VideoDataset(tmp_path / "dst", 10, step=10, audio_rate=8000, audio_seconds=0.4)[2]["audio"].shape == (
        1,
        3200,
    )


def test_audio_that_cannot_be_read_from_the_middle_is_read_from_the_start(cli, tmp_path):
    path = tmp_path / "a.avi"
    how = (
        "-f",
        "lavfi",
        "-i",
        "testsrc2=size=64x48:rate=15:d=2",
        "-f",
        "lavfi",
        "-i",
        SWEEP.format(rate=22050),
        "-c:v",
        "mjpeg",
        "-t",
        2,
    )
    cli.run(*how, "-c:a", "pcm_s16le", "-fflags", "+bitexact", path)
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"idx1")])  # a recording that was not closed
    video = VideoFiles([path])["a"]
    whole = video.samples()
    part = video.samples(0.62, 1.1)
    first = math.floor(0.62 * 22050 + 0.5)
    assert np.array_equal(part, whole[:, first : first + part.shape[1]]) and part.any()


def test_a_file_that_comes_back_is_read_again(heard, tmp_path):
    path = tmp_path / "x.webm"
    path.write_bytes((heard / "webm" / "aac.webm").read_bytes())
    video = VideoFiles([path])["x"]
    due = video.samples(0, 0.1)
    path.rename(tmp_path / "y.webm")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"x\.webm: cannot be read"):
            video.samples(0, 0.1)
    (tmp_path / "y.webm").rename(path)
    assert np.array_equal(video.samples(0, 0.1), due)


def test_audio_that_cannot_be_is_refused(heard, store_of, tmp_path):
    for options, said in (
        ({"audio_rate": 8}, "audio_rate is 8"),
        ({"audio_seconds": 2.0}, "audio_seconds and audio_channels need audio_rate"),
        (
            {"audio_rate": 8000, "audio_seconds": float("nan")},
            "audio_seconds is nan; give seconds, at least one sample",
        ),
        ({"audio_rate": 8000, "audio_seconds": 1e-9}, "audio_seconds is 1e-09"),
        ({"audio_rate": 8000, "audio_channels": 5}, "audio_channels is 5; give 1 or 2"),
        ({"audio_rate": 8000, "clips": clips_uniform(4)}, "audio_seconds is needed: clips are not all of one length"),
        (
            {"audio_rate": 8000, "ids": ["silent"]},
            "'silent' and 0 others have no audio; vidprep transcode --audio copy keeps it",
        ),
    ):
        with pytest.raises(SettingsError, match=re.escape(said)):
            VideoDataset(heard / "mp4", **options)
    with pytest.raises(SettingsError, match="and 3 others have no audio"):
        VideoDataset(store_of("tensor"), audio_rate=8000)
    with pytest.raises(SettingsError, match="0 sequences of 100000 frames"):
        VideoDataset(heard / "mp4", 100_000, audio_rate=8000)
    assert transcode(make_clips(tmp_path / "src", 1, 12), tmp_path / "dst").code == 0
    with pytest.raises(SettingsError, match="'c00' and 0 others have no audio"):
        VideoDataset(tmp_path / "dst", audio_rate=8000)
