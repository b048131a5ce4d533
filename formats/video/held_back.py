"""The picture that libavcodec's decoder of MPEG-1 and MPEG-2 holds back, and loses where the size changes if nobody asks before."""

from __future__ import annotations

from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

CODECS = {"mpeg1video", "mpeg2video"}
SEQUENCE_HEADER = b"\0\0\1\xb3"  # 12 bits of width and of height follow (ISO/IEC 13818-2, 6.2.2.1)
LOOKED_AT = 4096


class HeldBack:
    """Asks a decoder for what it holds back, before a packet that changes the size."""

    def __init__(self, codec: str) -> None:
        """Prepare for the packets of one stream. codec: libavcodec's name."""
        self._looks = codec in CODECS
        self._size: bytes | None = None

    def before(self, packet: Packet[VideoStream], decoder: VideoCodecContext) -> list[VideoFrame]:
        """Return the frames that come out before a packet is decoded; nearly always none. Raises PyAV's errors."""
        if not self._looks:
            return []
        head = bytes(packet)[:LOOKED_AT]
        at = head.find(SEQUENCE_HEADER)
        size = head[at + 4 : at + 7] if at >= 0 else self._size
        changes, self._size = self._size not in (None, size), size
        if not changes:
            return []
        frames = decoder.decode(None)
        decoder.flush_buffers()
        return frames
