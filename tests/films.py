"""Films joined from clips, whose cuts are known by construction: hard cuts, dissolves, fades through black, and flashes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

Pictures = npt.NDArray[np.uint8]  # (T, H, W, 3)
RATES = (Fraction(25), Fraction(24000, 1001), Fraction(30), Fraction(30000, 1001))
MEAN_RATE = 25


@dataclass
class Film:
    """A film.

    cuts: Numbers of the frames that begin a shot. mixes: half-open intervals of frames that show two shots, or black. flashes: numbers
    of frames that are nearly white.
    """

    path: Path
    cuts: list[int] = field(default_factory=list)
    mixes: list[tuple[int, int]] = field(default_factory=list)
    flashes: list[int] = field(default_factory=list)


def scene(seed: int, frames: int = 60, *, light: float = 1.0, speed: int = 1) -> Pictures:
    """Large and small blocks of colour over which the camera moves, `speed` pixels a frame."""
    width, height = 96, 64
    rng = np.random.default_rng(seed)
    wide = np.zeros((height, width * 4, 3))
    for side, levels in ((32, 150), (8, 60), (4, 25)):
        blocks = rng.integers(0, levels, (height // side, width * 4 // side, 3))
        wide += blocks.repeat(side, 0).repeat(side, 1)
    starts = [number * speed for number in range(frames)]
    return np.stack([wide[:, start : start + width] * light for start in starts]).astype(np.uint8)


def join(path: Path, clips: Mapping[str, Pictures], rng: random.Random, *, is_variable: bool, rate: Fraction) -> Film:
    """Write a film of 6 to 12 shots, of 20 to 120 frames each; no two neighbours are of one clip."""
    film, frames = Film(path), list[Any]()
    name = ""
    for _ in range(rng.randint(6, 12)):
        name = rng.choice([each for each in sorted(clips) if each != name])
        shot = _part(clips[name], rng)
        if rng.random() < 0.15 and len(shot) > 30:
            at = rng.randrange(8, len(shot) - 8)
            for place in range(at, at + rng.randint(1, 2)):
                shot[place] = shot[at - 1] * 0.2 + 255 * 0.8
                film.flashes.append(len(frames) + place)
        kind = rng.random()
        if not frames or kind < 0.6:
            film.cuts += [len(frames)] if frames else []
        elif kind < 0.85:
            length = min(rng.randint(8, 24), len(shot) - 6, len(frames) - 6)
            first = len(frames) - length
            for place in range(length):
                share = (place + 1) / (length + 1)
                frames[first + place] = frames[first + place] * (1 - share) + shot[place] * share
            film.mixes.append((first, first + length))
            shot = shot[length:]
        else:
            length, black = rng.randint(6, 12), rng.randrange(6)
            for place in range(length):
                frames[place - length] = frames[place - length] * (1 - (place + 1) / length)
                shot[place] = shot[place] * ((place + 1) / (length + 1))
            film.mixes.append((len(frames) - length, len(frames) + black + length))
            frames += [np.zeros_like(shot[0])] * black
        frames += list(shot)
    write(path, [np.round(frame).astype(np.uint8) for frame in frames], rng, is_variable=is_variable, rate=rate)
    return film


def _part(pictures: Pictures, rng: random.Random) -> npt.NDArray[np.float32]:
    length = min(len(pictures), rng.randint(20, 120))
    first = rng.randrange(len(pictures) - length + 1)
    return pictures[first : first + length].astype(np.float32)


def write(
    path: Path, frames: Sequence[Pictures], rng: random.Random, *, is_variable: bool, rate: Fraction, crf: int = 20
) -> None:
    """Write pictures as H.264, at a constant rate or at times that vary."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=MEAN_RATE if is_variable else rate)
        height, width = frames[0].shape[:2]
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.options = {"preset": "veryfast", "crf": str(crf)}
        base = Fraction(1, 1000) if is_variable else 1 / rate
        stream.codec_context.time_base = base
        tick = 0
        for picture in frames:
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = tick, base
            tick += rng.choice((33, 33, 40, 50, 67)) if is_variable else 1
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
