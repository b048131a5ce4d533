"""Pieces of one video into one file, packet by packet, nothing encoded again; held against what was measured of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.stream import VideoStream

from vidprep.formats.errors import VerifyError
from vidprep.formats.model import OutputFormat
from vidprep.formats.profiles import CODECS
from vidprep.formats.video.framing import with_start_codes
from vidprep.formats.video.source import open_video
from vidprep.formats.video.writer import VideoWriter
from vidprep.transcode.media.audio_output import AudioTrack
from vidprep.transcode.media.verify import Measured
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.unit.job import MadeSegment
from vidprep.transcode.unit.segments import measured_of


def join(
    settings: RunSettings,
    partial: Path,
    output: OutputFormat,
    made: Sequence[MadeSegment],
    end_pts: int,
    audio: AudioTrack,
) -> Measured:
    """Write `partial`. What was measured of it has each GOP on either side of a joint.

    end_pts: tick of the output at which its last frame ends, as far as is known. Raises EncodeError, VerifyError, OSError.
    """
    measured = measured_of(made)
    order = sorted(measured.pts)
    ends = dict(zip(order, [*order[1:], max(end_pts, order[-1] + 1)], strict=True))
    writer = VideoWriter(partial, settings.video.encoder, output)
    try:
        audio.add_to(writer)
        writer.take_order(measured.pts)
        for each in made:
            for packet in _packets(each, settings.video.encoder.codec, output.time_base):
                assert packet.pts is not None
                audio.mux_until(packet.pts * output.time_base)
                writer.mux(packet, ends[packet.pts] - packet.pts)
        audio.finish(max(ends.values()) * output.time_base)
    finally:
        writer.close()
    return measured


def _packets(made: MadeSegment, codec: str, time_base: Fraction) -> Iterator[Packet[VideoStream]]:
    """As they left the encoder, but for their times: those of the whole. Raises VerifyError."""
    try:
        with open_video(made.path) as container:
            packets = (packet for packet in container.demux(container.streams.video[0]) if packet.size)
            for packet, pts in zip(packets, made.measured.pts, strict=True):
                given = Packet(with_start_codes(bytes(packet))) if CODECS[codec].has_units else packet
                given.is_keyframe = packet.is_keyframe
                given.pts = pts + made.segment.first_pts
                given.time_base = time_base
                yield cast("Packet[VideoStream]", given)
    except (AvError, ValueError) as error:
        raise VerifyError(f"segment {made.segment.index + 1} does not read back ({error}); run again") from error
