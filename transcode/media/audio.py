"""Audio of an output: read from the source, then copied or encoded along with the pictures, from time 0 to the end of the
cut.

Time 0 is the first picture; audio before it is dropped. If encoded audio starts late or has holes, silence is encoded,
so that it has no gap in any container. Encoders put a delay before the audio, which must not move it: mkv and webm
declare it and readers skip it. In mp4 only an edit list could, and the outputs have none. So in mp4

aac     loses its first packet, which contains only encoder delay, and the next one begins at 0.
opus    gets the audio from where its encoder delay ends, so packets begin at 0; readers skip the encoder delay, 6.5 ms.
copy    keeps the packets that begin in the range. Every track begins at 0, so the first packet lasts until the second,
        and all but the first keep their own times.

Damaged audio never stops the pictures: undecodable parts become silence, and the row says so. Copied audio is not
decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

import av
import av.logging
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.error import FFmpegError as AvError

from vidprep.formats.errors import EncodeError, LimitError, count_of
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import round_half_away
from vidprep.formats.profiles import CONTAINERS
from vidprep.formats.video.audio_decoder import AudioDecoder, AudioPacket
from vidprep.formats.video.pyav import fraction, open_input, reason_of, time_base_of
from vidprep.formats.video.source import READ_OPTIONS, file_url, open_video
from vidprep.formats.video.writer import VideoWriter

if TYPE_CHECKING:  # most outputs have no audio to load numpy for
    import numpy as np
    import numpy.typing as npt

    Samples = npt.NDArray[np.float32]
else:
    Samples = None

# Audio decoded before time 0 and discarded: codecs depend on previous audio, Opus on 80 ms.
PREROLL_SECONDS = 1
# If the clock jumps back by more, time continues without a gap, as for pictures.
JUMP_SECONDS = 1
# A block that deviates more from its timestamp is moved, unless later timestamps show jitter.
MAX_OFFSET_SECONDS = Fraction(1, 1000)
AHEAD_SECONDS, AHEAD_BLOCKS = Fraction(1, 4), 64
# Shorter silence is not worth a warning.
HOLE_SECONDS = Fraction(1, 25)


class AudioSource:
    """The best audio stream of a source, read through its own file handle. Must be closed.

    Args:
        origin: Time 0 of the output, in seconds of the source's clock.
        seconds: Length of the output; None means to the end of the audio.

    Attributes:
        stream: The stream; None without one that can be decoded

    Raises:
        FFmpegError: The file cannot be opened. Later errors are reported by `damage`.
    """

    def __init__(self, path: str | Path, origin: Fraction, seconds: Fraction | None) -> None:
        self._path, self._origin = path, origin
        self._seconds = seconds
        self._stopped: list[str] = []
        self._bad: list[str] = []
        self._num_holes = 0
        with av.logging.Capture():  # the video's file handle has already reported faults of the file
            self._container = open_video(path)
        self.num_streams = len(self._container.streams.audio)
        self._decoder = AudioDecoder(self._container)
        self.stream = self._decoder.stream

    def close(self) -> None:
        self._container.close()

    def end_at(self, seconds: Fraction) -> None:
        """Set the end of the audio in the output's time, also during reading."""
        self._seconds = seconds

    @contextmanager
    def template(self) -> Iterator[AudioStream]:
        """Yield the coded stream without its edit list: mkv would declare the hidden part as codec delay, and readers
        would skip copied audio.
        """
        assert self.stream is not None
        if self._container.format.name.split(",")[0] != "mov":
            yield self.stream
            return
        with open_input(file_url(self._path), READ_OPTIONS | {"ignore_editlist": "1"}) as container:
            yield cast(AudioStream, container.streams[self.stream.index])

    @property
    def damage(self) -> list[str]:
        """Return a line for each kind of damage."""
        lost = (
            [f"{count_of(len(self._bad), 'audio packet')} could not be decoded ({self._bad[0]})"] if self._bad else []
        )
        return lost + self._stopped

    @property
    def warnings(self) -> list[Remark]:
        holes = Remark("audio_holes", f"the audio has gaps ({self._num_holes}), filled with silence")
        return [holes] if self._num_holes else []

    def _sample_at(self, ticks: int, time_base: Fraction, rate: int) -> int:
        """Convert a time of the source to a sample number of the output."""
        return round_half_away((ticks * time_base - self._origin) * rate)

    def _packets(self) -> Iterator[AudioPacket]:
        """Yield coded packets from shortly before time 0, with PTS that never jump back."""
        assert self.stream is not None
        base = time_base_of(self.stream)
        shift, end = 0, None
        packets = self._decoder.packets()
        while True:
            try:
                with av.logging.Capture():
                    packet = next(packets)
            except StopIteration:
                return
            except (AvError, OSError) as error:
                self._stopped.append(f"reading the audio stopped: {error.strerror}")
                return
            if packet.has_sidedata("encryption_info"):
                self._stopped.append("the audio is encrypted")
                return
            stamp = packet.dts if packet.pts is None else packet.pts
            if stamp is not None:
                if end is not None and (end - stamp - shift) * base > JUMP_SECONDS:
                    shift = end - stamp
                packet.pts = stamp + shift
                end = packet.pts + (packet.duration or 0)
                if end * base - self._origin < -PREROLL_SECONDS:
                    continue
            yield packet

    def packets_from(self, lowest: int, rate: int) -> Iterator[AudioPacket]:
        """Yield packets that start at this sample of the output or later, with times in samples."""
        due, last = 0, lowest - 1
        for packet in self._packets():
            at = due if packet.pts is None else self._sample_at(packet.pts, time_base_of(packet), rate)
            duration = round_half_away((packet.duration or 0) * time_base_of(packet) * rate)
            due = at + duration
            if self._seconds is not None and at >= self._seconds * rate:
                return
            if at >= lowest and not packet.is_discard:
                last = max(at, last + 1)
                packet.time_base = Fraction(1, rate)
                packet.pts, packet.dts, packet.duration = last, last, duration
                yield packet

    def samples(self, rate: int, layout: str) -> Iterator[tuple[int, Samples]]:
        """Yield blocks of (C, N) samples in order, each with the number of its first sample in the output; blocks never
        overlap.

        Audio before 0 and after the end is cut to the sample. A block begins where the last one ended, unless its
        timestamp and those of the following blocks all deviate in the same direction.
        """
        due, begun = 0, False
        ahead: deque[tuple[int | None, Samples]] = deque()
        blocks = self._blocks(rate, layout)
        while _read_ahead(blocks, ahead, rate):
            stamp, block = ahead[0]
            at = due + _offset(due, ahead, rate) if begun else due if stamp is None else stamp
            ahead.popleft()
            last = None if self._seconds is None else round_half_away(self._seconds * rate)
            if last is not None and at >= last:
                return
            heard = block[:, max(0, due - at) : None if last is None else last - at]
            at = max(at, due)
            if heard.size:
                self._num_holes += begun and at - due > HOLE_SECONDS * rate
                yield at, heard
                due, begun = at + heard.shape[1], True

    def _blocks(self, rate: int, layout: str) -> Iterator[tuple[int | None, Samples]]:
        resampler, shape = AudioResampler("fltp", layout, rate), None
        for frame in chain(self._decoder.frames(self._packets(), self._take_fault), [None]):
            done: list[AudioFrame] = []
            now = frame and (frame.format.name, frame.layout.name, frame.sample_rate)
            try:
                if now != shape:
                    done = resampler.resample(None)
                    resampler, shape = AudioResampler("fltp", layout, rate), now
                done += resampler.resample(frame)
            except (AvError, OSError, ValueError) as error:
                self._bad.append(str(error))
            for block in filter(None, done):
                at = None
                base = fraction(block.time_base)
                if block.pts is not None and base is not None:
                    at = self._sample_at(block.pts, base, rate)
                yield at, cast(Samples, block.to_ndarray())

    def _take_fault(self, packet: AudioPacket | None, reason: str) -> None:
        """Record a packet that cannot be decoded, unless it was only decoded for later ones."""
        if packet is None or packet.pts is None or self._sample_at(packet.pts, time_base_of(packet), 1) >= 0:
            self._bad.append(reason)


def _read_ahead(
    blocks: Iterator[tuple[int | None, Samples]], ahead: deque[tuple[int | None, Samples]], rate: int
) -> bool:
    """Fill `ahead` with the next blocks, about AHEAD_SECONDS of audio. Return whether a block is left."""
    held = sum(block.shape[1] for _, block in ahead)
    while not ahead or (held < AHEAD_SECONDS * rate and len(ahead) < AHEAD_BLOCKS):
        following = next(blocks, None)
        if following is None:
            break
        ahead.append(following)
        held += following[1].shape[1]
    return bool(ahead)


def _offset(due: int, ahead: Iterable[tuple[int | None, Samples]], rate: int) -> int:
    """Return how many samples to move the first block from `due`, so that no following block deviates from its timestamp
    more than necessary.
    """
    offsets = []
    for stamp, block in ahead:
        if stamp is not None:
            offsets.append(stamp - due)
        elif not offsets:
            return 0
        due += block.shape[1]
    nearest = max(min(offsets), 0) or min(max(offsets), 0)
    return nearest if abs(nearest) > MAX_OFFSET_SECONDS * rate else 0


ENCODERS = {"aac": ("aac", "fltp"), "opus": ("libopus", "flt")}
USUAL_RATE = 48_000
BITS_PER_CHANNEL = 64_000
MAX_SILENT_HOURS = 10
LATE_SECONDS = Fraction(1, 25)
LEFT_OUT = Remark("audio_left_out", "audio that begins long after the pictures have ended is left out")


class AudioTrack:
    """Audio of one output; nothing in mode "drop" or if the source has none.

    Call `add_to` before a packet is muxed, `mux_until` before each packet of pictures, `finish` after the last; then
    close it.

    Args:
        origin: Time 0 of the output, in seconds of the source's clock.
        seconds: Length of the cut; None without a cut.
        ends_with_pictures: Whether the audio ends with the pictures; `finish` gets that time.

    Attributes:
        warnings: Remarks for the row; complete after `finish`
        damage: Damage for the row; complete after `finish`
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
        """Add an audio stream to the output, if there is audio in the range, and write the header. Raises EncodeError."""
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
        """Mux the audio that starts before this time of the output. Raises EncodeError, OSError."""
        self._reached = max(self._reached, seconds)
        while self._next is not None and (self._next.pts or 0) < seconds * self._rate:
            self._mux(self._next)

    def finish(self, pictures_end: Fraction) -> None:
        """Mux the remaining audio. It may outlast the pictures, which end at this time; a hole of more than a second then
        ends it.
        """
        self._pictures_over = True
        if self._ends_with_pictures and self._audio is not None:
            self._audio.end_at(pictures_end)
        while self._next is not None and (self._next.pts or 0) <= (self._reached + 1) * self._rate:
            if self._ends_with_pictures and (self._next.pts or 0) >= pictures_end * self._rate:
                self._next = None  # the encoder was ahead of the pictures
                break
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
        # mkv and webm can store audio before 0 only as encoder delay, to the millisecond.
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
        self._packets = self._encode_blocks(chain([first], blocks))
        return True

    def _encode_blocks(self, blocks: Iterator[tuple[int, Samples]]) -> Iterator[AudioPacket]:
        """Yield packets of these blocks, with silence between them."""
        import numpy as np

        due = _opus_delay(self._out) if not self._has_delay and self._mode == "opus" else 0
        silent = 0
        for at, samples in blocks:
            while due < at:
                if self._pictures_over and at - due > self._rate:
                    self.warnings.append(LEFT_OUT)
                    yield from self._encode_block(None, due)
                    return
                silent += min(at - due, self._rate)
                if silent > MAX_SILENT_HOURS * 3600 * self._rate:
                    raise LimitError(
                        f"its audio has gaps of more than {MAX_SILENT_HOURS} hours; --audio drop or copy encodes no silence"
                    )
                silence = np.zeros((len(samples), min(at - due, self._rate)), np.float32)
                yield from self._encode_block(silence, due)
                due += silence.shape[1]
            heard = samples[:, due - at :]
            if heard.size:  # the first block may be shorter than Opus's delay in mp4
                yield from self._encode_block(heard, due)
            due += heard.shape[1]
        yield from self._encode_block(None, due)

    def _encode_block(self, samples: Samples | None, at: int) -> Iterator[AudioPacket]:
        frame = None
        if samples is not None:
            # PyAV needs contiguous memory, so copy.
            frame = AudioFrame.from_ndarray(samples.copy(), format="fltp", layout=self._layout)
            frame.sample_rate, frame.pts, frame.time_base = self._rate, at, Fraction(1, self._rate)
        try:
            packets = self._out.encode(frame)
        except (AvError, ValueError) as error:
            raise EncodeError(f"{self._out.codec_context.name} failed: {reason_of(error)}") from error
        yield from (cast(AudioPacket, packet) for packet in packets if self._has_delay or (packet.pts or 0) >= 0)


def _opus_delay(stream: AudioStream) -> int:
    """Return the 48 kHz samples that readers skip: bytes 10 and 11 of OpusHead."""
    return int.from_bytes((stream.codec_context.extradata or b"")[10:12], "little")
