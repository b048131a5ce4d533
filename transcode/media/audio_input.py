"""The audio of a source, read apart from its pictures: coded packets, or samples that lie where the output wants them."""

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

from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import round_half_away
from vidprep.formats.text import count_of
from vidprep.formats.video.audio_decoder import AudioDecoder, AudioPacket
from vidprep.formats.video.pyav import fraction, open_input, time_base_of
from vidprep.formats.video.source import READ_OPTIONS, file_url, open_video

if TYPE_CHECKING:  # most outputs have no audio to load numpy for
    import numpy as np
    import numpy.typing as npt

    Samples = npt.NDArray[np.float32]
else:
    Samples = None

# Decoded before time 0 and thrown away: codecs lean on what came before, Opus on 80 ms of it.
PREROLL_SECONDS = 1
# A clock that jumps back by more begins anew where it left off, as that of the pictures does.
JUMP_SECONDS = 1
# What is further from its timestamp is moved there, unless what follows shows that the timestamps jitter.
MAX_OFFSET_SECONDS = Fraction(1, 1000)
AHEAD_SECONDS, AHEAD_BLOCKS = Fraction(1, 4), 64
# Shorter silence is not worth a warning.
HOLE_SECONDS = Fraction(1, 25)


class AudioSource:
    """The best audio stream of a source through a handle of its own. stream: None where there is none to decode.

    origin: time 0 of the output, in seconds of the source's own clock. seconds: where the audio ends, None for its own
    end. Raises PyAV's errors when it is opened; later ones are kept for `damage`. Close it.
    """

    def __init__(self, path: str | Path, origin: Fraction, seconds: Fraction | None) -> None:
        self._path, self._origin = path, origin
        self._seconds = seconds
        self._stopped: list[str] = []
        self._bad: list[str] = []
        self._num_holes = 0
        with av.logging.Capture():  # the pictures' handle has said what is wrong with the file
            self._container = open_video(path)
        self.num_streams = len(self._container.streams.audio)
        self._decoder = AudioDecoder(self._container)
        self.stream = self._decoder.stream

    def close(self) -> None:
        self._container.close()

    def end_at(self, seconds: Fraction) -> None:
        """End the audio at this time of the output, also where reading has begun."""
        self._seconds = seconds

    @contextmanager
    def template(self) -> Iterator[AudioStream]:
        """The stream as it is coded, without what an edit list hides of it: mkv would declare that as the codec's own delay, and
        readers skip as much of what is copied.
        """
        assert self.stream is not None
        if self._container.format.name.split(",")[0] != "mov":
            yield self.stream
            return
        with open_input(file_url(self._path), READ_OPTIONS | {"ignore_editlist": "1"}) as container:
            yield cast(AudioStream, container.streams[self.stream.index])

    @property
    def damage(self) -> list[str]:
        """What of the audio was lost, a line each."""
        lost = (
            [f"{count_of(len(self._bad), 'audio packet')} could not be decoded ({self._bad[0]})"] if self._bad else []
        )
        return lost + self._stopped

    @property
    def warnings(self) -> list[Remark]:
        holes = Remark("audio_holes", f"the audio has gaps ({self._num_holes}), filled with silence")
        return [holes] if self._num_holes else []

    def _sample_at(self, ticks: int, time_base: Fraction, rate: int) -> int:
        """A time of the source as a sample of the output."""
        return round_half_away((ticks * time_base - self._origin) * rate)

    def _packets(self) -> Iterator[AudioPacket]:
        """Coded packets from shortly before time 0, with PTS that do not jump back."""
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
        """Packets that begin at this sample of the output or later, up to the end, their times counted in samples."""
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
        """Blocks of (C, N) samples in order, each with the sample of the output that it begins at; none overlap.

        What lies before 0 and after the end is cut off, to the sample. A block begins where the last one ended, unless its
        timestamp and all that follow it for a while are on one side of that.
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
        """Keep what does not decode, unless it is only decoded for what follows."""
        if packet is None or packet.pts is None or self._sample_at(packet.pts, time_base_of(packet), 1) >= 0:
            self._bad.append(reason)


def _read_ahead(
    blocks: Iterator[tuple[int | None, Samples]], ahead: deque[tuple[int | None, Samples]], rate: int
) -> bool:
    """Whether there is a block left, and some that follow it."""
    held = sum(block.shape[1] for _, block in ahead)
    while not ahead or (held < AHEAD_SECONDS * rate and len(ahead) < AHEAD_BLOCKS):
        following = next(blocks, None)
        if following is None:
            break
        ahead.append(following)
        held += following[1].shape[1]
    return bool(ahead)


def _offset(due: int, ahead: Iterable[tuple[int | None, Samples]], rate: int) -> int:
    """By how many samples the first block is moved from `due`, so that no block that follows is further from its timestamp than it
    has to be.
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
