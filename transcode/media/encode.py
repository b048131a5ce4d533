"""The in-process engine: frames into the encoder, its packets measured on the way to the file."""

from __future__ import annotations

from pathlib import Path

from av.packet import Packet
from av.video.stream import VideoStream

from vidprep.formats.video.writer import VideoWriter
from vidprep.transcode.media.audio_output import AudioTrack
from vidprep.transcode.media.stream import FrameStream
from vidprep.transcode.media.verify import Measured, Verifier, check_decoder
from vidprep.transcode.settings.run import RunSettings


def encode_and_measure(settings: RunSettings, partial: Path, stream: FrameStream, audio: AudioTrack) -> Measured:
    """Write `partial`, and prove what left the encoder.

    Raises EncodeError, VerifyError, OSError; then the partial file is the caller's to remove.
    """
    options, output = settings.encoder, stream.output
    writer = VideoWriter(partial, options, output)
    durations: dict[int, int] = {}
    try:
        decoder = check_decoder(options.codec, writer.context.extradata)
        verifier = Verifier(output, options.codec, decoder, gop=options.gop, every=settings.gate.verify_every)
        audio.add_to(writer)

        def settle(packets: list[Packet[VideoStream]]) -> None:
            for packet in packets:
                verifier.check(packet)
                assert packet.pts is not None
                audio.mux_until(packet.pts * output.time_base)
                writer.mux(packet, durations.pop(packet.pts))

        for item in stream:
            frame = stream.picture_filter.apply(item.frame)
            durations[item.pts] = item.duration
            verifier.expect(frame, item.pts)
            settle(writer.encode(frame, item.pts))
        settle(writer.encode(None))
        audio.finish()
        return verifier.finish()
    finally:
        writer.close()
