"""The sound of an output: copied or encoded beside the pictures, on one clock, from time 0 to the end of the cut.

Time 0 is the first picture; sound before it is dropped. Where encoded sound starts late or has holes, silence is
encoded, so it has no gap in any container. Encoders put a lead-in before the sound, which must not move it: mkv and
webm declare it and readers take it back. In mp4 only an edit list could, and the outputs have none. There

aac     loses its first packet, which is nothing but lead-in, and the next one begins at 0.
opus    is given the sound from where its lead-in ends, so packets begin at 0; readers skip the lead-in, 6.5 ms.
copy    keeps the packets that begin in the range. Every track begins at 0, so the first packet lasts until the second,
        and all but the first have their own times.

Damaged sound never stops the pictures: what cannot be decoded is silent, and said. Copied sound is not decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.error import FFmpegError as AvError
from av.error import InvalidDataError

from vidprep.formats.errors import EncodeError
from vidprep.formats.model import round_half_away
from vidprep.formats.profiles import CONTAINERS
from vidprep.formats.video import VideoWriter
from vidprep.transcode.sound import TREMBLE_SECONDS, AudioPacket, Samples, SoundSource

ENCODERS = {"aac": ("aac", "fltp"), "opus": ("libopus", "flt")}
USUAL_RATE = 48_000
BITS_PER_CHANNEL = 64_000
MS = Fraction(1, 1000)


class AudioTrack:
    """The sound of one output; nothing at all in mode "drop" and where the source has none.

    origin: time 0 of the output, in seconds of the source's own clock. seconds: length of the cut, None without one.
    Call `add_to` before a packet is muxed, `mux_until` before each packet of pictures, `finish` after the last.
    warnings, damage: what the row must say; complete after `finish`.
    """

    def __init__(
        self, path: str | Path, mode: str, container: str, *, origin: Fraction, seconds: Fraction | None = None
    ) -> None:
        self.warnings: list[str] = []
        self.damage: list[str] = []
        self._mode, self._box = mode, CONTAINERS[container]
        self._in_mp4 = container == "mp4"
        self._end = seconds
        self._pictures_over = False
        self._packets: Iterator[AudioPacket] = iter(())
        self._next: AudioPacket | None = None
        self._sound: SoundSource | None = None
        if mode != "drop":
            try:
                self._sound = SoundSource(path, origin, seconds)
            except (AvError, OSError, ValueError) as error:
                self.damage.append(f"the sound cannot be read: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._sound is not None:
            self._sound.close()

    def add_to(self, writer: VideoWriter) -> None:
        """Give the output an audio stream, when there is sound in the range, and write its header. Raises EncodeError."""
        sound = self._sound
        if sound is None:
            return
        if sound.stream is None:
            if sound.num_streams:
                self.warnings.append("the sound is left out: nothing here decodes it")
            return
        self._writer = writer
        if (self._copy if self._mode == "copy" else self._encode)(sound, sound.stream):
            self._lead = round_half_away(writer.lead_seconds * self._rate)
            self._next = next(self._packets, None)
        elif not sound.damage:
            self.warnings.append("no sound in the range of the pictures")

    def mux_until(self, seconds: Fraction) -> None:
        """Mux the sound that begins before this time of the output. Raises EncodeError, OSError."""
        while self._next is not None and (self._next.pts or 0) < seconds * self._rate:
            self._mux_next(self._next)

    def finish(self) -> None:
        """Mux the rest. Sound may outlast the pictures; a hole of more than a second then ends it."""
        self._pictures_over = True
        while self._next is not None:
            self._mux_next(self._next)
        if self._sound is not None:
            self.damage += self._sound.damage

    def _mux_next(self, packet: AudioPacket) -> None:
        packet.stream = self._out
        packet.pts = packet.dts = (packet.pts or 0) - self._lead
        try:
            self._writer.container.mux_one(packet)
        except InvalidDataError as error:
            raise EncodeError(f"{self._box.name} refuses the sound: {error}; --audio {self._box.audio[1]}") from error
        self._next = next(self._packets, None)

    def _copy(self, sound: SoundSource, source: AudioStream) -> bool:
        codec = source.codec_context.codec.canonical_name
        self._rate = source.codec_context.sample_rate or USUAL_RATE
        # Bytes 10 and 11 of OpusHead: the lead-in, which mkv and webm write before 0, to the millisecond.
        opus = codec == "opus" and not self._in_mp4
        lead_in = _opus_lead_in(source) / Fraction(USUAL_RATE) if opus else Fraction(0)
        packets = self._copied(sound, -round_half_away(lead_in / MS) * MS * self._rate)
        first = next(packets, None)
        if first is None:
            return False
        refusal = f"{self._box.name} cannot hold {codec}; --audio {self._box.audio[1]}"
        if self._box.copied_audio and codec not in self._box.copied_audio:
            raise EncodeError(refusal)
        try:
            self._out = self._writer.container.add_stream_from_template(source)
            self._writer.container.start_encoding()
        except (AvError, ValueError) as error:
            raise EncodeError(f"{refusal} ({error})") from error
        self._packets = chain([first], packets)
        return True

    def _copied(self, sound: SoundSource, lowest: Fraction) -> Iterator[AudioPacket]:
        """Packets that begin in the range, on the output's clock in samples, one after the other."""
        rate, due, last = self._rate, 0, None
        for packet in sound.packets():
            at = due if packet.pts is None else sound.sample_at(packet.pts, packet.time_base, rate)
            duration = round_half_away((packet.duration or 0) * packet.time_base * rate)
            due = at + duration
            if packet.is_discard or at < lowest:
                continue
            if self._end is not None and at >= self._end * rate:
                return
            if last is None and self._in_mp4:
                if at > TREMBLE_SECONDS * rate:
                    late = f"the copied sound begins {at / rate:.3f} s late; in mp4 its first packet is heard at once"
                    self.warnings.append(f"{late}, or take --audio {self._box.audio[1]}")
                at = 0
            packet.time_base = Fraction(1, rate)
            packet.pts = packet.dts = last = at if last is None else max(at, last + 1)
            packet.duration = duration
            yield packet

    def _encode(self, sound: SoundSource, source: AudioStream) -> bool:
        encoder, sample_format = ENCODERS[self._mode]
        taken = av.Codec(encoder, "w").audio_rates or []
        keeps = self._mode == "aac" and source.codec_context.sample_rate in taken
        self._rate = source.codec_context.sample_rate if keeps else USUAL_RATE
        self._layout = "mono" if source.codec_context.channels == 1 else "stereo"
        blocks = sound.samples(self._rate, self._layout)
        first = next(blocks, None)
        if first is None:
            return False
        try:
            self._out = cast(AudioStream, self._writer.container.add_stream(encoder, rate=self._rate))
            self._out.format, self._out.layout = sample_format, self._layout
            self._out.bit_rate = BITS_PER_CHANNEL * self._out.channels
            self._writer.container.start_encoding()
        except (AvError, ValueError) as error:
            raise EncodeError(f"{encoder} does not start: {error}") from error
        self._packets = self._encoded(chain([first], blocks))
        return True

    def _encoded(self, blocks: Iterator[tuple[int, Samples]]) -> Iterator[AudioPacket]:
        """Packets of these blocks with silence between them."""
        due = _opus_lead_in(self._out) if self._in_mp4 and self._mode == "opus" else 0
        for at, samples in blocks:
            while due < at:
                if self._pictures_over and at - due > self._rate:
                    self.warnings.append("sound that begins long after the pictures have ended is left out")
                    yield from self._coded(None, due)
                    return
                silence = np.zeros((len(samples), min(at - due, self._rate)), np.float32)
                yield from self._coded(silence, due)
                due += silence.shape[1]
            heard = samples[:, due - at :]
            yield from self._coded(heard, due)
            due += heard.shape[1]
        yield from self._coded(None, due)

    def _coded(self, samples: Samples | None, at: int) -> Iterator[AudioPacket]:
        frame = None
        if samples is not None:
            frame = AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=self._layout)
            frame.sample_rate, frame.pts, frame.time_base = self._rate, at, Fraction(1, self._rate)
        try:
            packets = self._out.encode(frame)
        except (AvError, ValueError) as error:
            raise EncodeError(f"{self._out.codec_context.name} failed: {error}") from error
        yield from (cast(AudioPacket, packet) for packet in packets if not self._in_mp4 or (packet.pts or 0) >= 0)


def _opus_lead_in(stream: AudioStream) -> int:
    """Samples of 48 kHz that readers skip: bytes 10 and 11 of its OpusHead."""
    return int.from_bytes((stream.codec_context.extradata or b"")[10:12], "little")
