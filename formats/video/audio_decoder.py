"""Decode the audio stream of a file, without importing numpy, which most runs do not need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import av
import av.logging
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.stream import Discard

from vidprep.formats.video.pyav import demux

if TYPE_CHECKING:  # PyAV's packets are generic for type checkers only
    from av.container import InputContainer

    AudioPacket = Packet[AudioStream]
else:
    AudioPacket = Packet


class AudioDecoder:
    """Decodes the best audio stream of an open file in the caller's thread: threads do not survive a fork.

    Attributes:
        stream: The stream; None without one that can be decoded
    """

    def __init__(self, container: InputContainer) -> None:
        self._container = container
        best = container.streams.best("audio")
        self.stream = best if isinstance(best, AudioStream) and best.codec_context is not None else None
        if self.stream is not None:
            self.stream.codec_context.thread_count = 1
        for stream in container.streams:
            if stream is not best:
                stream.discard = Discard.all

    def packets(self) -> Iterator[AudioPacket]:
        """Yield the packets of the stream. Raises PyAV's errors."""
        assert self.stream is not None
        return demux(self._container, self.stream)

    def frames(
        self, packets: Iterable[AudioPacket], on_fault: Callable[[AudioPacket | None, str], object] | None = None
    ) -> Iterator[AudioFrame]:
        """Decode packets.

        Args:
            packets: Packets in their order.
            on_fault: Called with a packet that is corrupt or cannot be decoded (None for the end of the stream), and
                the reason. Without it PyAV's errors are raised.
        """
        assert self.stream is not None
        decode = self.stream.codec_context.decode
        for packet in chain(packets, [None]):
            if on_fault is None:
                yield from decode(packet)
                continue
            frames: list[AudioFrame] = []
            reason = "marked corrupt" if packet is not None and packet.is_corrupt else ""
            with av.logging.Capture() as logged:
                try:
                    frames = decode(packet)
                except (AvError, OSError, ValueError) as error:
                    reason = str(error)
            errors = [text.strip() for level, _, text in logged if level <= av.logging.ERROR]
            if errors or reason:
                on_fault(packet, errors[0] if errors else reason)
            yield from frames
