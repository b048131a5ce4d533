"""The index of packets: its bytes, and what is decoded by it."""

from __future__ import annotations

import io
import zlib

import av
import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.helpers import make_clip, make_clips, transcode
from vidprep.formats import open_store
from vidprep.formats.errors import NotIndexedError
from vidprep.formats.video.gop_frames import packets_of
from vidprep.formats.video.packets import PacketIndex, PacketIndexer, spans_of

EXAMPLE = "01 01020100 03000000 01000000 3000000000000000 03 842C28030100 0002FF EFBEADDE"


def test_the_worked_example_of_the_documentation():
    index = PacketIndex([0], [48, 948, 1248], [900, 300, 40], [0, 2, 1], [True, True, False], [0xDEADBEEF])
    assert index.to_bytes() == bytes.fromhex(EXAMPLE)
    assert index.span(0) == ((0, 1), 48, 1240)


@given(st.data())
def test_an_index_is_read_as_it_was_written_and_never_from_other_bytes(data):
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    count = sum(lengths)
    sizes = data.draw(st.lists(st.integers(1, 2**24), min_size=count, max_size=count))
    gaps = data.draw(st.one_of(st.just([0] * count), st.lists(st.integers(0, 70_000), min_size=count, max_size=count)))
    keyframes, offsets, frames = [], [], []
    at = data.draw(st.integers(0, 2**40))
    for length in lengths:
        keyframes.append(len(frames))
        frames += [len(frames) + place for place in data.draw(st.permutations(range(length)))]
    for place, (size, gap) in enumerate(zip(sizes, gaps, strict=True)):
        at += gap if place else 0
        offsets.append(at)
        at += size
    flags = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    crc32 = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(lengths), max_size=len(lengths)))
    index = PacketIndex(keyframes, offsets, sizes, frames, flags, crc32)
    found = PacketIndex.from_bytes(index.to_bytes())
    for name in PacketIndex.__slots__:
        assert list(getattr(found, name)) == list(getattr(index, name)), name
    for cut in (index.to_bytes()[:-1], index.to_bytes() + b"\0", b"", b"\2" + index.to_bytes()[1:]):
        with pytest.raises(ValueError):
            PacketIndex.from_bytes(cut)


def indexed(path, codec="h264"):
    with av.open(str(path)) as container, path.open("rb") as file:
        stream = container.streams.video[0]
        indexer = PacketIndexer(codec, stream.codec_context.extradata, file)
        for packet in container.demux(stream):
            if packet.size:
                indexer.add(packet, bytes(packet))
        return indexer.finish()


def test_frames_that_nobody_refers_to_are_decoded_only_if_they_are_wanted(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 16, options={"g": "8", "bf": "3", "x264-params": "b-pyramid=none:scenecut=0"})
    index, data = indexed(path), path.read_bytes()
    assert index.keyframes == [0, 8]
    loose = {frame for frame, needed in zip(index.frames, index.is_reference, strict=True) if not needed}
    assert len(loose) >= 4
    for wanted in ([0], [5], [1, 14], list(range(16)), [9, 15]):
        fed = []
        for span, _ in spans_of(index, wanted):
            part = memoryview(data)[span.offset : span.offset + span.size]
            fed += [packet.pts for packet in packets_of(index, span, part, {*wanted})]
        assert {*wanted} <= {*fed}
        assert not (loose - {*wanted}).intersection(fed)
        for gop, end in ((0, 8), (8, 16)):
            inside = [number for number in wanted if gop <= number < end]
            assert inside or not [number for number in fed if gop <= number < end], "no GOP is decoded for nothing"


@pytest.mark.parametrize("codec", ["hevc", "av1"])
def test_frames_that_nobody_refers_to_are_known_in_other_codecs_too(codec, tmp_path):
    src, made = make_clips(tmp_path / "src", 1, 33, size=(96, 64)), tmp_path / "made"
    assert transcode(src, made, "--codec", codec, "--gop", 16).code == 0
    store = open_store(made)
    index = store.entry("c00").packets
    loose = [frame for frame, needed in zip(index.frames, index.is_reference, strict=True) if not needed]
    assert len(loose) >= (8 if codec == "hevc" else 2)
    due = store["c00"].frames()
    for step in (1, 3, 5, 7):
        numbers = list(range(step % 3, 33, step))
        assert np.array_equal(store["c00"].frames(numbers), due[numbers])


def test_adjacent_gops_are_one_read_and_others_are_not(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 20, options={"g": "5"})
    index, size = indexed(path), path.stat().st_size
    assert [span.gops for span, _ in spans_of(index, [3, 4, 5, 6])] == [(0, 2)]
    assert [(span.gops, numbers) for span, numbers in spans_of(index, [0, 11, 19])] == [
        ((0, 1), [0]),
        ((2, 4), [11, 19]),
    ]
    for gop in range(4):
        _, offset, length = index.span(gop)
        assert zlib.crc32(path.read_bytes()[offset : offset + length]) == index.crc32[gop]
        assert offset + length <= size


@pytest.mark.parametrize(
    ("options", "why"),
    [({"g": "8", "bf": "3", "x264-params": "open-gop=1:scenecut=0"}, "is open"), ({"g": "300"}, None)],
)
def test_a_gop_that_needs_another_one_is_not_indexed(tmp_path, options, why):
    path = make_clip(tmp_path / "a.mp4", 30, options=options)
    if why is None:
        assert indexed(path).keyframes == [0]
        return
    with pytest.raises(NotIndexedError, match=why):
        indexed(path)


def test_packets_that_lie_elsewhere_are_not_indexed(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 6)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        indexer = PacketIndexer("h264", stream.codec_context.extradata, io.BytesIO(bytes(path.stat().st_size)))
        packet = next(container.demux(stream))
        with pytest.raises(NotIndexedError, match="not stored as it is decoded"):
            indexer.add(packet, bytes(packet))
