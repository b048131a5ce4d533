"""Decode frames from the bytes of whole GOPs, without a demuxer.

A decoder is kept for each codec configuration, for all videos that share it, and is emptied after each read. The PTS
of a packet is the number of its frame, so a frame that comes out of the decoder tells which one it is. Packets after
the last wanted frame, and those of frames that are neither wanted nor referred to, are not decoded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.profiles import CODECS
from vidprep.formats.video.numbered import set_store_options
from vidprep.formats.video.packets import PacketIndex, PacketSpan
from vidprep.formats.video.pyav import video_decoder

KEPT_PIXELS, KEPT_DECODERS = 1 << 24, 64  # a decoder takes up to 30 bytes for each pixel of its frames


class DecoderConfig(NamedTuple):
    """Configuration of a decoder.

    Attributes:
        extradata: Configuration record of the container, such as avcC; empty if there is none
    """

    codec: str
    extradata: bytes


class GopDecoders:
    """Decoders of one thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[DecoderConfig, VideoCodecContext] = OrderedDict()

    def frames(
        self, config: DecoderConfig, index: PacketIndex, span: PacketSpan, data: memoryview, numbers: Sequence[int]
    ) -> Iterator[tuple[int, VideoFrame]]:
        """Yield the wanted frames of some GOPs with their numbers, ascending. Raises PyAV's errors.

        A decoder belongs to one call until that has yielded its last frame, and is dropped if it does not get so far.

        Args:
            config: Configuration of the decoder.
            index: Index of the video.
            span: The GOPs.
            data: Their bytes.
            numbers: Frame numbers, ascending, all in these GOPs.
        """
        decoder, wanted = self._kept.pop(config, None) or _new_decoder(config), set(numbers)
        for packet in packets_of(index, span, data, wanted):
            for frame in decoder.decode(packet):
                if frame.pts in wanted:
                    yield frame.pts, frame
        for frame in decoder.decode(None):
            if frame.pts in wanted:
                yield frame.pts, frame
        decoder.flush_buffers()
        self._keep(config, decoder)

    def close(self) -> None:
        """Free the decoders."""
        self._kept.clear()

    def _keep(self, config: DecoderConfig, decoder: VideoCodecContext) -> None:
        self._kept[config] = decoder
        pixels = sum(each.width * each.height for each in self._kept.values())
        while len(self._kept) > 1 and (len(self._kept) > KEPT_DECODERS or pixels > KEPT_PIXELS):
            _, gone = self._kept.popitem(last=False)
            pixels -= gone.width * gone.height


def _new_decoder(config: DecoderConfig) -> VideoCodecContext:
    decoder = video_decoder(CODECS[config.codec].check_decoder)
    if config.extradata:
        decoder.extradata = config.extradata
    set_store_options(decoder)
    return decoder


def packets_of(
    index: PacketIndex, span: PacketSpan, data: memoryview, wanted: set[int]
) -> Iterator[Packet[VideoStream]]:
    """Yield the packets that the wanted frames of some GOPs need."""
    for gop in range(*span.gops):
        first, end = index.keyframes[gop], index.gop_end(gop)
        last = max((place for place in range(first, end) if index.frames[place] in wanted), default=-1)
        for place in range(first, last + 1):
            if index.is_reference[place] or index.frames[place] in wanted:
                begin = index.offsets[place] - span.offset
                coded = cast("bytes", data[begin : begin + index.sizes[place]])
                packet = cast("Packet[VideoStream]", Packet(coded))
                packet.pts = packet.dts = index.frames[place]
                yield packet
