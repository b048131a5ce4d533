"""The proof of an output: it must notice whatever differs between what went in, what came out and what lies on disk."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from vidprep.formats.errors import VerifyError
from vidprep.formats.model import Colour, FrameSize, OutputFormat
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.writer import VideoWriter
from vidprep.transcode.media.metrics import FrameScore, FrameScorer, QualitySums, psnr_db
from vidprep.transcode.media.verify import Measurements, Verifier, check_decoder, check_file, frame_checksum, peak_of
from vidprep.transcode.settings.options import QualityGate

SIZE = FrameSize(96, 64)
COUNT = 24
BASE = Fraction(1, 30)
OUTPUT = OutputFormat(SIZE, "yuv420p", Colour(1, 1, 1), BASE, Fraction(30), Fraction(30))
CODECS = ("h264", "hevc", "vp9", "av1")


def picture(number: int, seed: int = 0) -> av.VideoFrame:
    """A pattern that moves by two pixels a frame."""
    y, x = np.mgrid[0:96, 0:96]
    grey = 128 + 60 * np.sin((x + 2 * number + 31 * seed) / 7) + 50 * np.cos((y - number) / (5 + seed))
    data = np.full((96, 96), 128, np.uint8)
    data[:64] = grey[:64].astype(np.uint8)
    return av.VideoFrame.from_ndarray(data, format="yuv420p")


@dataclass
class Encoded:
    path: Path
    codec: str
    extradata: bytes | None
    packets: list[tuple[bytes, int, int, bool]]

    def again(self) -> list[av.Packet]:
        """The packets as they left the encoder."""
        out = []
        for data, pts, dts, key in self.packets:
            packet = av.Packet(data)
            packet.pts, packet.dts, packet.is_keyframe, packet.time_base = pts, dts, key, BASE
            out.append(packet)
        return out


def encode(path: Path, codec: str, gop: int = 5, seed: int = 0, count: int = COUNT) -> Encoded:
    options = EncoderOptions(codec=codec, container=path.suffix[1:], gop=gop)
    writer = VideoWriter(path, options, OUTPUT)
    kept = []
    try:
        extradata = writer.context.extradata
        for n in [*range(count), None]:
            for packet in writer.flush() if n is None else writer.encode(picture(n, seed), n):
                kept.append((bytes(packet), packet.pts, packet.dts, packet.is_keyframe))
                writer.mux(packet, 1)
    finally:
        writer.close()
    return Encoded(path, codec, extradata, kept)


def verify(made: Encoded, frames: Any = None, packets: Any = None, *, gop: int = 5, every: int = 1) -> Measurements:
    """frames: (picture, PTS) that are said to have gone in."""
    verifier = Verifier(
        OUTPUT, made.codec, check_decoder(made.codec, made.extradata), gop=gop, gate=QualityGate(verify_every=every)
    )
    for frame, pts in frames if frames is not None else [(picture(n), n) for n in range(COUNT)]:
        verifier.expect(frame, pts)
    for packet in packets if packets is not None else made.again():
        verifier.check(packet)
    return verifier.finish()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("quality")


@pytest.fixture(scope="module", params=CODECS)
def made(request, folder) -> Encoded:
    return encode(folder / f"{request.param}.mkv", request.param)


@pytest.fixture(scope="module")
def h264(folder) -> Encoded:
    return encode(folder / "whole.mp4", "h264")


def test_an_output_that_is_as_it_should_be_passes(made):
    measured = verify(made)
    assert measured.num_frames == COUNT
    assert measured.keyframes == (0, 5, 10, 15, 20)
    assert measured.keyframe_interval_max == 5
    assert measured.quality.psnr_y_db > 30
    check_file(made.path, measured, made.codec, BASE)


def test_a_frame_that_went_in_and_did_not_come_out_is_noticed(made):
    more = [(picture(n), n) for n in range(COUNT + 3)]
    with pytest.raises(
        VerifyError, match=f"^verify: {COUNT + 3} frames went in, {COUNT} came out|^{COUNT + 3} frames went in"
    ):
        verify(made, more)


def test_a_frame_that_came_out_and_did_not_go_in_is_noticed(made):
    with pytest.raises(VerifyError, match="none more went in"):
        verify(made, [(picture(n), n) for n in range(COUNT - 1)])


@pytest.mark.logs_errors
@pytest.mark.parametrize("lost", [0, 7, COUNT - 1])
def test_a_packet_that_is_lost_is_noticed(made, lost):
    packets = made.again()
    del packets[lost]
    with pytest.raises(VerifyError):
        verify(made, packets=packets)


def test_two_frames_swapped_in_time_are_noticed(made):
    frames = [(picture(n), n) for n in range(COUNT)]
    frames[8], frames[9] = (frames[8][0], 9), (frames[9][0], 8)
    with pytest.raises(VerifyError, match="went in at tick 9 and came out at 8"):
        verify(made, frames)


def test_two_pictures_swapped_show_as_the_worst_frame(made):
    frames = [(picture(n if n not in (8, 15) else 23 - n), n) for n in range(COUNT)]
    whole, swapped = verify(made).quality, verify(made, frames).quality
    assert swapped.worst_frame in (8, 15)
    assert swapped.psnr_y_min_db < 25 < whole.psnr_y_min_db


def test_one_black_frame_shows_in_minimum_and_number_and_hardly_in_ssim(made):
    frames = [(picture(n), n) for n in range(COUNT)]
    black = np.full((96, 96), 128, np.uint8)
    black[:64] = 16
    frames[13] = (av.VideoFrame.from_ndarray(black, format="yuv420p"), 13)
    quality = verify(made, frames).quality
    assert quality.worst_frame == 13
    assert quality.psnr_y_min_db < 12
    assert quality.psnr_y_p1_db == quality.psnr_y_min_db
    assert quality.psnr_y_db > quality.psnr_y_min_db + 10


def test_frames_of_another_clip_do_not_score_like_the_right_ones(made):
    right, wrong = verify(made).quality, verify(made, [(picture(n, seed=3), n) for n in range(COUNT)]).quality
    assert right.psnr_y_db > 30 > 20 > wrong.psnr_y_db


def test_frames_one_too_late_are_misaligned_not_scored(made):
    with pytest.raises(VerifyError, match="went in at tick 1 and came out at 0"):
        verify(made, [(picture(n), n + 1) for n in range(COUNT)])
    with pytest.raises(VerifyError, match="went in at tick -1 and came out at 0"):
        verify(made, [(picture(n), n - 1) for n in range(COUNT)])


def test_frames_of_another_size_are_not_scored(h264):
    verifier = Verifier(
        OutputFormat(FrameSize(48, 32), "yuv420p", OUTPUT.colour, BASE, None, Fraction(30)),
        "h264",
        check_decoder("h264", h264.extradata),
        gop=5,
        gate=QualityGate(),
    )
    for n in range(COUNT):
        verifier.expect(picture(n).reformat(width=48, height=32), n)
    with pytest.raises(VerifyError, match="was made for 48x32 yuv420p"):
        verifier.expect(picture(0), COUNT)
    with pytest.raises(VerifyError, match="went in as 48x32 yuv420p and came out as 96x64"):
        for packet in h264.again():
            verifier.check(packet)
        verifier.finish()


@pytest.mark.parametrize("codec", CODECS)
def test_a_keyframe_too_few_or_too_many_is_named(codec, folder):
    long, short = (encode(folder / f"{codec}_{gop}.mkv", codec, gop) for gop in (10, 5))
    with pytest.raises(VerifyError, match="every 5 frames was requested; at frame 5 one is missing"):
        verify(long, gop=5)
    with pytest.raises(VerifyError, match="every 10 frames was requested; at frame 5 one is too many"):
        verify(short, gop=10)


@pytest.mark.logs_errors
@pytest.mark.parametrize(
    ("codec", "container"), [("h264", "mp4"), ("hevc", "mp4"), ("vp9", "webm"), ("av1", "mp4"), ("h264", "mkv")]
)
def test_every_flipped_byte_of_the_coded_data_is_found_in_the_file(codec, container, folder):
    made = encode(folder / f"flip_{codec}.{container}", codec)
    measured = verify(made)
    check_file(made.path, measured, codec, BASE)
    data = made.path.read_bytes()
    damaged = folder / f"flipped_{codec}.{container}"
    rng = np.random.default_rng(3)
    with av.open(str(made.path)) as file:
        coded = [bytes(packet) for packet in file.demux(video=0) if packet.size]
    for body in (coded[0], max(coded[6:9], key=len), max(coded[-3:], key=len)):
        at = data.find(body)
        assert at > 0, "the coded data was not found in the file"
        assert data.count(body) == 1
        for position in rng.integers(at, at + len(body), 8):
            broken = bytearray(data)
            broken[position] ^= 1 << int(rng.integers(8))
            damaged.write_bytes(broken)
            with pytest.raises(VerifyError):
                check_file(damaged, measured, codec, BASE)


@pytest.mark.logs_errors
def test_a_broken_length_in_the_file_is_a_failed_check(h264, folder):
    measured = verify(h264)
    data = h264.path.read_bytes()
    with av.open(str(h264.path)) as file:
        body = [bytes(packet) for packet in file.demux(video=0) if packet.size][3]
    at = data.find(body)
    assert at > 0
    damaged = folder / "length.mp4"
    damaged.write_bytes(data[: at + 1] + b"\xff" + data[at + 2 :])
    with pytest.raises(VerifyError, match="shorter than its lengths say"):
        check_file(damaged, measured, "h264", BASE)


@pytest.mark.logs_errors
@pytest.mark.parametrize("container", ["mp4", "mkv"])
@pytest.mark.parametrize("part", [0.0, 0.05, 0.5, 0.9, 0.99])
def test_a_file_that_is_cut_short_is_found(container, part, folder):
    made = encode(folder / f"short_{part}.{container}", "h264")
    measured = verify(made)
    data = made.path.read_bytes()
    made.path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(VerifyError):
        check_file(made.path, measured, "h264", BASE)


@pytest.mark.logs_errors
def test_a_file_of_other_frames_or_of_more_or_fewer_is_found(h264, folder):
    measured = verify(h264)
    for name, options, said in (
        ("other", {"seed": 2}, "other bytes"),
        ("fewer", {"count": COUNT - 1}, "packet"),
        ("more", {"count": COUNT + 1}, "packet"),
    ):
        other = encode(folder / f"{name}.mp4", "h264", **options)
        with pytest.raises(VerifyError, match=said):
            check_file(other.path, measured, "h264", BASE)


def test_a_file_whose_times_differ_is_found(h264):
    with pytest.raises(VerifyError, match="PTS"):
        check_file(h264.path, verify(h264), "h264", Fraction(1, 25))


# ------------------------------------------------------------------------------ what is remembered of pictures


def crc_of_visible_samples(frame: av.VideoFrame) -> int:
    """Planes one behind the other, without the padding of their lines: what numpy makes of a frame."""
    return zlib.crc32(np.ascontiguousarray(frame.to_ndarray()))


@pytest.mark.parametrize(("count", "gops"), [(4, [0]), (5, [0]), (6, [0, 5]), (11, [0, 10]), (24, [0, 20])])
def test_checksums_of_the_first_gop_and_the_last_and_of_some_frames_are_kept(count, gops, folder):
    made = encode(folder / f"kept_{count}.mp4", "h264", count=count)
    measured = verify(made, [(picture(n), n) for n in range(count)])
    with av.open(str(made.path)) as file:
        decoded = [crc_of_visible_samples(frame) for frame in file.decode(video=0)]
    assert measured.gops == tuple((first, decoded[first : first + 5]) for first in gops)
    due = {number: decoded[number] for number in (0, 1, 2, 4, 8, 16) if number < count}
    assert measured.samples == due


def test_the_two_frames_that_are_closest_in_time_are_among_them(folder):
    ticks = [n * 10 for n in range(12)]
    ticks[7] -= 3
    writer = VideoWriter(folder / "close.mp4", EncoderOptions(gop=5), replace(OUTPUT, frame_rate=None))
    verifier = Verifier(
        OUTPUT, "h264", check_decoder("h264", writer.context.extradata), gop=5, gate=QualityGate(verify_every=1)
    )
    for number, tick in enumerate([*ticks, None]):
        if tick is not None:
            verifier.expect(picture(number), tick)
        for packet in writer.flush() if tick is None else writer.encode(picture(number), tick):
            verifier.check(packet)
    writer.close()
    assert set(verifier.finish().samples) == {0, 1, 2, 4, 6, 7, 8}


def test_a_checksum_is_of_all_that_is_visible_and_of_nothing_else():
    whole = picture(3)
    assert frame_checksum(whole) == crc_of_visible_samples(whole)
    deep = whole.reformat(format="yuv420p10le")
    assert frame_checksum(deep) == crc_of_visible_samples(deep)
    assert (peak_of("yuv420p"), peak_of("yuv420p10le")) == (255, 1023)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("number", [0, 4, 8, 16, 20, 23])
def test_a_frame_that_is_read_as_another_picture_is_found(number, cores, h264):
    measured = verify(h264)
    check_file(h264.path, measured, "h264", BASE, cores)
    other = replace(measured, samples=measured.samples | {number: 1}, gops=())
    with pytest.raises(VerifyError, match=f"frame {number}, read by its number, is another picture"):
        check_file(h264.path, other, "h264", BASE, cores)


# ------------------------------------------------------------------------------------------------ figures


def test_equal_pictures_score_infinity():
    scorer = FrameScorer(OUTPUT, QualityGate())
    score = scorer.score(picture(1), picture(1))
    assert score == FrameScore(0.0, 0.0, 1.0)
    assert psnr_db(score.mse_y, 255) == math.inf
    sums = QualitySums()
    sums.add(0, score)
    report = sums.report(255)
    assert report.psnr_y_db == report.psnr_y_p1_db == report.psnr_y_min_db == report.psnr_yuv_db == math.inf


def test_scores_equal_numpys():
    a, b = picture(1), picture(4, seed=1)
    score = FrameScorer(OUTPUT, QualityGate()).score(a, b)
    difference = (a.to_ndarray().astype(float) - b.to_ndarray()) ** 2
    assert score.mse_y == pytest.approx(difference[:64].mean(), abs=0.006)  # ffmpeg prints two digits
    assert score.mse_yuv == pytest.approx(difference.mean(), abs=0.006)


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 199, 200, 201, 1000])
def test_the_first_percentile_is_the_nearest_rank(count):
    mses = np.random.default_rng(count).permutation(np.arange(1.0, count + 1))
    sums = QualitySums()
    for number, mse in enumerate(mses):
        sums.add(number, FrameScore(float(mse), float(mse), 0.9))
    report = sums.report(255)
    psnrs = 10 * np.log10(255**2 / mses)
    assert report.psnr_y_p1_db == pytest.approx(np.percentile(psnrs, 1, method="inverted_cdf"))
    assert report.psnr_y_min_db == pytest.approx(psnrs.min())
    assert report.worst_frame == int(mses.argmax())
    assert report.psnr_y_db == pytest.approx(10 * np.log10(255**2 / mses.mean()))
    assert report.num_scored == count


def test_the_peak_of_ten_bits_is_1023():
    sums = QualitySums()
    sums.add(0, FrameScore(1.0, 1.0, 1.0))
    assert sums.report(1023).psnr_y_db == pytest.approx(20 * math.log10(1023), abs=1e-4)


def test_only_each_nth_frame_is_scored_when_that_was_asked(made):
    frames = [(picture(n if n % 4 == 0 else n + 9), n) for n in range(COUNT)]
    scored = verify(made, frames, every=4).quality
    whole = verify(made).quality
    assert scored.num_scored == COUNT // 4
    assert scored.worst_frame % 4 == 0
    assert abs(scored.psnr_y_db - whole.psnr_y_db) < 3
    assert verify(made, frames, every=1).quality.psnr_y_db < 30
