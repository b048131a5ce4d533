"""The in-process engine for videos: encode frames, and verify packets on their way to the file."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from av.packet import Packet
from av.video.stream import VideoStream

from vidprep.formats.video.writer import VideoWriter
from vidprep.transcode.media.audio import AudioTrack
from vidprep.transcode.media.stream import FilteredFrame, FrameStream, make_ahead, waiting_frames
from vidprep.transcode.media.verify import Measurements, Verifier, check_decoder
from vidprep.transcode.settings.run import RunSettings


class Encoded(NamedTuple):
    """A frame sent to the encoder and the packets that came out.

    Attributes:
        frame: None after the last frame
    """

    frame: FilteredFrame | None
    packets: list[Packet[VideoStream]]


def encode_and_measure(
    settings: RunSettings, partial: Path, stream: FrameStream, audio: AudioTrack, cores: Callable[[], int] = lambda: 1
) -> Measurements:
    """Write and verify `partial`. Raises EncodeError, VerifyError, OSError; the caller removes the file then."""
    options, output = settings.video.encoder, stream.output
    writer = VideoWriter(partial, options, output, cores())
    durations: dict[int, int] = {}
    end = 0
    waiting = waiting_frames(output.size)
    try:
        decoder = check_decoder(options.codec, writer.context.extradata)
        verifier = Verifier(output, options.codec, decoder, gop=options.gop, gate=settings.gate)
        audio.add_to(writer)
        filtered = make_ahead(stream.filter(), waiting, cores)
        with closing(make_ahead(_encode(filtered, writer), waiting, cores)) as encoded:
            for frame, packets in encoded:
                if frame is not None:
                    durations[frame.pts] = frame.duration
                    end = frame.pts + frame.duration
                    verifier.expect(frame.frame, frame.pts)
                for packet in packets:
                    verifier.check(packet)
                    assert packet.pts is not None
                    audio.mux_until(packet.pts * output.time_base)
                    writer.mux(packet, durations.pop(packet.pts))
        audio.finish(end * output.time_base)
        return verifier.finish()
    finally:
        writer.close()


def _encode(frames: Generator[FilteredFrame, None, None], writer: VideoWriter) -> Generator[Encoded, None, None]:
    with closing(frames):
        for frame in frames:
            yield Encoded(frame, writer.encode(frame.frame, frame.pts))
        for packet in writer.flush():
            yield Encoded(None, [packet])
