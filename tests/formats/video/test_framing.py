"""Coded packets are the same on both sides of a container when their pictures are, and never otherwise."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from vidprep.formats.video.writer import payload_checksum

UNITS = [b"\x67\x42\x00\x01\x80", b"\x68\xce", b"\x65" + bytes(range(1, 200)) + b"\x00\x00\x03\x01\x99"]


def by_start_codes(units: list[bytes], code: bytes = b"\x00\x00\x00\x01") -> bytes:
    return b"".join(code + unit for unit in units)


def by_lengths(units: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(unit)) + unit for unit in units)


@pytest.mark.parametrize("code", [b"\x00\x00\x01", b"\x00\x00\x00\x01"])
@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_start_codes_and_lengths_are_the_same_coded_data(codec, code):
    assert payload_checksum(by_start_codes(UNITS, code), codec, "encoder") == payload_checksum(
        by_lengths(UNITS), codec, "container"
    )


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_any_flipped_bit_any_swap_and_any_other_border_changes_the_checksum(codec):
    whole = payload_checksum(by_lengths(UNITS), codec, "container")
    data = by_lengths(UNITS)
    for position in range(len(data) - len(UNITS[2]), len(data)):
        broken = bytearray(data)
        broken[position] ^= 0x10
        assert payload_checksum(bytes(broken), codec, "container") != whole
    assert payload_checksum(by_lengths(UNITS[::-1]), codec, "container") != whole
    joined = [UNITS[0] + UNITS[1], UNITS[2]]
    assert payload_checksum(by_lengths(joined), codec, "container") != whole


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"\x00\x00\x00\x09abc", "shorter"), (b"\x00\x00\x00\x01a\x00\x00", "inside a length"), (b"\xff" * 9, "shorter")],
)
def test_broken_lengths_are_a_value_error(data, said):
    with pytest.raises(ValueError, match=said):
        payload_checksum(data, "h264", "container")


def test_a_unit_without_a_byte_breaks_nothing():
    for codec in ("h264", "hevc"):
        assert payload_checksum(by_lengths([b"", b"\x26\x01"]), codec, "container") != 0


def test_a_packet_that_does_not_begin_with_a_start_code_is_a_value_error():
    with pytest.raises(ValueError, match="start code"):
        payload_checksum(b"abc\x00\x00\x01d", "h264", "encoder")


def test_parameter_sets_inside_an_hevc_packet_do_not_count_and_pictures_do():
    """x265 repeats them where each frame is a keyframe, and the hvc1 of MP4 takes them out again."""
    sets = [bytes([kind << 1, 1, 7]) for kind in (32, 33, 34)]
    slice_, other = b"\x28\x01\xaf\x10", b"\x28\x01\xaf\x11"
    alone = payload_checksum(by_lengths([slice_]), "hevc", "container")
    assert payload_checksum(by_start_codes([*sets, slice_]), "hevc", "encoder") == alone
    assert payload_checksum(by_start_codes([*sets, other]), "hevc", "encoder") != alone
    assert payload_checksum(by_start_codes([b"\x4e\x01\x05", slice_]), "hevc", "encoder") != alone


def test_av1_loses_its_temporal_delimiter_and_vp9_nothing():
    assert payload_checksum(b"\x12\x00\x0a\x0b", "av1", "encoder") == payload_checksum(b"\x0a\x0b", "av1", "container")
    assert payload_checksum(b"\x12\x00\x0a\x0b", "vp9", "encoder") != payload_checksum(b"\x0a\x0b", "vp9", "container")


@contextlib.contextmanager
def ordinary_priority() -> Iterator[None]:
    """SVT-AV1 run by root takes the highest real-time priority, for good."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    yield
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), policy, parameters)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="takes SVT-AV1's priority away as Linux does")
@pytest.mark.parametrize(
    ("codec", "encoder", "container"),
    [
        ("h264", "libx264", "mp4"),
        ("h264", "libx264", "matroska"),
        ("hevc", "libx265", "mp4"),
        ("vp9", "libvpx-vp9", "webm"),
        ("av1", "libsvtav1", "mp4"),
        ("av1", "libsvtav1", "matroska"),
    ],
)
def test_packets_of_a_real_encoder_keep_their_checksum_through_a_real_muxer(codec, encoder, container, tmp_path):
    path = tmp_path / "x"
    before: dict[int, int] = {}
    rng = np.random.default_rng(1)
    with av.open(str(path), "w", format=container) as file:
        stream = file.add_stream(encoder, rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.options = {"x265-params": "log-level=none"} if codec == "hevc" else {}
        with ordinary_priority():
            stream.codec_context.open()
        for n in range(12):
            frame = av.VideoFrame.from_ndarray(rng.integers(0, 255, (96, 96), np.uint8), format="yuv420p")
            frame.pts = n
            packets = stream.encode(frame)
            for packet in packets:
                before[packet.pts] = payload_checksum(bytes(packet), codec, "encoder")
                file.mux(packet)
        for packet in stream.encode(None):
            before[packet.pts] = payload_checksum(bytes(packet), codec, "encoder")
            file.mux(packet)
    with av.open(str(path)) as file:
        after = [payload_checksum(bytes(packet), codec, "container") for packet in file.demux(video=0) if packet.size]
    assert sorted(after) == sorted(before.values())
    assert len(set(after)) > 10  # AV1 shows a frame that it has with a packet of a few bytes
