"""The audio of an output: copied or encoded beside the pictures, on one clock, from time 0 to the end of the cut.

Time 0 is the first picture; audio before it is dropped. Where encoded audio starts late or has holes, silence is
encoded, so it has no gap in any container. Encoders put a encoder delay before the audio, which must not move it: mkv and
webm declare it and readers take it back. In mp4 only an edit list could, and the outputs have none. There

aac     loses its first packet, which is nothing but encoder delay, and the next one begins at 0.
opus    is given the audio from where its encoder delay ends, so packets begin at 0; readers skip the encoder delay, 6.5 ms.
copy    keeps the packets that begin in the range. Every track begins at 0, so the first packet lasts until the second,
        and all but the first have their own times.

Damaged audio never stops the pictures: what cannot be decoded is silent, and said. Copied audio is not decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import cast

import av
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.error import FFmpegError as AvError

from vidprep.formats.errors import EncodeError, LimitError
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import round_half_away
from vidprep.formats.profiles import CONTAINERS
from vidprep.formats.text import count_of
from vidprep.formats.video.audio_decoder import AudioPacket
from vidprep.formats.video.pyav import reason_of
from vidprep.formats.video.writer import VideoWriter
from vidprep.transcode.media.audio_input import AudioSource, Samples

ENCODERS = {"aac": ("aac", "fltp"), "opus": ("libopus", "flt")}
USUAL_RATE = 48_000
BITS_PER_CHANNEL = 64_000
MAX_SILENT_HOURS = 10
LATE_SECONDS = Fraction(1, 25)
LEFT_OUT = Remark("audio_left_out", "audio that begins long after the pictures have ended is left out")


class AudioTrack:
    """The audio of one output; nothing at all in mode "drop" and where the source has none.

    origin: time 0 of the output, in seconds of the source's own clock. seconds: length of the cut, None without one.
    ends_with_pictures: whether the audio ends where the pictures do, which `finish` is told.
    Call `add_to` before a packet is muxed, `mux_until` before each packet of pictures, `finish` after the last; close it.
    warnings, damage: what the row must say; complete after `finish`.
    """

    def __init__(
        self,
        path: str | Path,
        mode: str,
        container: str,
        *,
        origin: Fraction,
        seconds: Fraction | None = None,
        ends_with_pictures: bool = False,
    ) -> None:
        self.warnings: list[Remark] = []
        self.damage: list[str] = []
        self._mode, self._box = mode, CONTAINERS[container]
        self._has_delay = self._box.has_codec_delay
        self._reached = Fraction(0)
        self._pictures_over = False
        self._ends_with_pictures = ends_with_pictures
        self._num_refused = 0
        self._packets: Iterator[AudioPacket] = iter(())
        self._next: AudioPacket | None = None
        self._audio: AudioSource | None = None
        if mode != "drop":
            try:
                self._audio = AudioSource(path, origin, seconds)
            except (AvError, OSError, ValueError) as error:
                self.damage.append(f"the audio cannot be read: {reason_of(error)}")

    def close(self) -> None:
        if self._audio is not None:
            self._audio.close()

    def add_to(self, writer: VideoWriter) -> None:
        """Give the output an audio stream, when there is audio in the range, and write its header. Raises EncodeError."""
        audio = self._audio
        if audio is None:
            return
        if audio.stream is None:
            if audio.num_streams:
                self.warnings.append(Remark("audio_left_out", "the audio is left out: there is no decoder for it"))
            return
        self._writer = writer
        if (self._copy if self._mode == "copy" else self._encode)(audio, audio.stream):
            self._encoder_delay = round_half_away(writer.lead_seconds * self._rate)
            self._next = next(self._packets, None)
        elif not audio.damage:
            self.warnings.append(Remark("audio_left_out", "no audio in the range of the pictures"))

    def mux_until(self, seconds: Fraction) -> None:
        """Mux the audio that begins before this time of the output. Raises EncodeError, OSError."""
        self._reached = max(self._reached, seconds)
        while self._next is not None and (self._next.pts or 0) < seconds * self._rate:
            self._mux(self._next)

    def finish(self, pictures_end: Fraction) -> None:
        """Mux the rest. Audio may outlast the pictures, which end at this time of the output; a hole of more than a second then ends it."""
        self._pictures_over = True
        if self._ends_with_pictures and self._audio is not None:
            self._audio.end_at(pictures_end)
            if self._next is not None and (self._next.pts or 0) >= pictures_end * self._rate:
                self._next = None
        while self._next is not None and (self._next.pts or 0) <= (self._reached + 1) * self._rate:
            self._mux(self._next)
            self._reached = max(self._reached, Fraction(self._ended, self._rate))
        if self._next is not None:
            self.warnings.append(LEFT_OUT)
        if self._num_refused:
            self.damage.append(f"{count_of(self._num_refused, 'audio packet')} cannot be stored in {self._box.name}")
        if self._audio is not None:
            self.damage += self._audio.damage
            self.warnings += self._audio.warnings

    def _mux(self, packet: AudioPacket) -> None:
        at = packet.pts or 0
        self._ended = at + (packet.duration or 0)
        packet.stream = self._out
        packet.pts = packet.dts = at - self._encoder_delay
        try:
            self._writer.container.mux_one(packet)
        except AvError as error:
            if isinstance(error, OSError):
                raise
            self._num_refused += 1
        self._next = next(self._packets, None)

    def _copy(self, audio: AudioSource, source: AudioStream) -> bool:
        codec = source.codec_context.codec.canonical_name
        self._rate = source.codec_context.sample_rate or USUAL_RATE
        # What mkv and webm can write before 0 is the encoder delay that the codec declares, to the millisecond.
        encoder_delay = _opus_delay(source) if codec == "opus" and self._has_delay else 0
        packets = audio.packets_from(-round_half_away(Fraction(encoder_delay, 48)) * 48, self._rate)
        first = next(packets, None)
        if first is None:
            return False
        refusal = f"{self._box.name} cannot hold {codec}; --audio {self._box.audio[1]}"
        if self._box.copied_audio and codec not in self._box.copied_audio:
            raise EncodeError(refusal)
        if not self._has_delay:
            late, first.pts = first.pts or 0, 0
            if late > LATE_SECONDS * self._rate:
                message = (
                    f"the copied audio begins {late / self._rate:.3f} s late; in mp4 its first packet is heard at once"
                )
                self.warnings.append(Remark("audio_late", f"{message}, or take --audio {self._box.audio[1]}"))
        try:
            with audio.template() as template:
                self._out = self._writer.container.add_stream_from_template(template)
            self._writer.container.start_encoding()
        except (AvError, ValueError) as error:
            raise EncodeError(refusal) from error
        self._packets = chain([first], packets)
        return True

    def _encode(self, audio: AudioSource, source: AudioStream) -> bool:
        encoder, sample_format = ENCODERS[self._mode]
        rate = source.codec_context.sample_rate
        keeps_rate = self._mode == "aac" and rate in (av.Codec(encoder, "w").audio_rates or [])
        self._rate = rate if keeps_rate else USUAL_RATE
        channels = source.codec_context.channels
        self._layout = "mono" if channels == 1 else "stereo"
        if channels > 2:
            self.warnings.append(
                Remark(
                    "audio_downmixed",
                    f"the audio's {channels} channels ({source.codec_context.layout.name}) become stereo",
                )
            )
        blocks = audio.samples(self._rate, self._layout)
        first = next(blocks, None)
        if first is None:
            return False
        try:
            self._out = cast(AudioStream, self._writer.container.add_stream(encoder, rate=self._rate))
            self._out.format, self._out.layout = sample_format, self._layout
            self._out.bit_rate = BITS_PER_CHANNEL * self._out.channels
            self._writer.container.start_encoding()
        except (AvError, ValueError) as error:
            raise EncodeError(f"{encoder} does not start: {reason_of(error)}") from error
        self._packets = self._encoded(chain([first], blocks))
        return True

    def _encoded(self, blocks: Iterator[tuple[int, Samples]]) -> Iterator[AudioPacket]:
        """Packets of these blocks with silence between them."""
        import numpy as np

        due = _opus_delay(self._out) if not self._has_delay and self._mode == "opus" else 0
        silent = 0
        for at, samples in blocks:
            while due < at:
                if self._pictures_over and at - due > self._rate:
                    self.warnings.append(LEFT_OUT)
                    yield from self._coded(None, due)
                    return
                silent += min(at - due, self._rate)
                if silent > MAX_SILENT_HOURS * 3600 * self._rate:
                    raise LimitError(
                        f"its audio has gaps of more than {MAX_SILENT_HOURS} hours; --audio drop or copy encodes no silence"
                    )
                silence = np.zeros((len(samples), min(at - due, self._rate)), np.float32)
                yield from self._coded(silence, due)
                due += silence.shape[1]
            heard = samples[:, due - at :]
            if heard.size:  # the first block may be shorter than what Opus in mp4 leaves out
                yield from self._coded(heard, due)
            due += heard.shape[1]
        yield from self._coded(None, due)

    def _coded(self, samples: Samples | None, at: int) -> Iterator[AudioPacket]:
        frame = None
        if samples is not None:
            # A copy lies in one segment, as PyAV wants it.
            frame = AudioFrame.from_ndarray(samples.copy(), format="fltp", layout=self._layout)
            frame.sample_rate, frame.pts, frame.time_base = self._rate, at, Fraction(1, self._rate)
        try:
            packets = self._out.encode(frame)
        except (AvError, ValueError) as error:
            raise EncodeError(f"{self._out.codec_context.name} failed: {reason_of(error)}") from error
        yield from (cast(AudioPacket, packet) for packet in packets if self._has_delay or (packet.pts or 0) >= 0)


def _opus_delay(stream: AudioStream) -> int:
    """Samples of 48 kHz that readers skip: bytes 10 and 11 of its OpusHead."""
    return int.from_bytes((stream.codec_context.extradata or b"")[10:12], "little")
