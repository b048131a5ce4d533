"""Oddities through vidprep: what is ok and without a warning shows the very pictures that went in."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz.numbered_clips import HEIGHT, WIDTH, number_on, psnr, seen
from tests.fuzz.oddities import HEADER, Odd, Workshop
from tests.helpers import manifest, transcode
from tests.witness import Ffmpeg
from vidprep.formats import open_store
from vidprep.formats.manifest.remarks import NOTES

WAYS: dict[str, tuple[str, tuple[object, ...]]] = {
    "transcode": ("transcode", ("--preset", "ultrafast", "--crf", 8)),
    "burst": ("burst", ("--quality", 95)),
    "ffmpeg": ("transcode", ("--preset", "ultrafast", "--crf", 8, "--engine", "ffmpeg")),
}
BATCH = 120
# Warnings that say nothing of lost or wrong pictures, of a file that has been judged by what it shows.
NO_EXCUSE = NOTES | {"larger_than_source", "picture_changed", "several_streams", "untagged_colours", "deinterlaced"}
MIN_DB = 19.0  # of a picture in few colours, at 4:2:0; upside down, or in other colours, it has less


@dataclass(slots=True)
class Done:
    """Files, how many were whole, and what was found wrong."""

    files: int = 0
    whole: int = 0
    ok: int = 0
    seconds: float = 0.0
    found: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.files} files ({self.whole} whole), {self.ok} ok, {len(self.found)} findings in {self.seconds:.0f} s"
        )


def campaign(
    seeds: Sequence[int],
    cli: Ffmpeg,
    folder: Path,
    *,
    ways: Sequence[str] = tuple(WAYS),
    batch: int = BATCH,
    make: Callable[[Workshop, int], Odd] = Workshop.make,
    show: Callable[[str], object] = lambda _line: None,
) -> Done:
    """Make the oddities of these seeds, in batches of one way each, and judge what comes out.

    make: with `Workshop.hurt`, clips in which one number of a header is another; then only what is lost of them is found.
    """
    (folder / "clips").mkdir(parents=True)
    shop, done, begun = Workshop(folder / "clips", cli), Done(), time.monotonic()
    for number, first in enumerate(range(0, len(seeds), batch)):
        part = seeds[first : first + batch]
        way = ways[number % len(ways)]
        odds = [make(shop, seed) for seed in part]
        place = folder / f"batch{number}"
        found = list(_judged(odds, way, place, cli, done))
        done.seconds = time.monotonic() - begun
        done.found += found
        for line in found:
            show(line)
        show(f"seeds {part[0]} to {part[-1]}: {way}: {done}; {dict(Counter(odd.what.split()[0] for odd in odds))}")
    return done


def _judged(odds: list[Odd], way: str, place: Path, cli: Ffmpeg, done: Done) -> Iterator[str]:
    source, destination = place / "src", place / "dst"
    source.mkdir(parents=True)
    for odd in odds:
        (source / odd.name).write_bytes(odd.data)
    verb, options = WAYS[way]
    if way == "ffmpeg":
        options = (*options, "--ffmpeg", cli.exe)
    ran = transcode(source, destination, *options, "--keep-source-suffix", verb=verb)
    rows = manifest(destination)
    assert rows.keys() == {odd.name for odd in odds}, ran.err
    store = open_store(destination) if verb == "burst" else None

    def judge(odd: Odd) -> list[str]:
        row = rows[odd.name]
        return [
            f"{way}: seed {odd.seed}: {odd.name}: {odd.what}: {fault}"
            for fault in _faults(odd, row, way, destination, store, cli)
        ]

    done.files += len(odds)
    done.whole += sum(odd.what == "whole" for odd in odds)
    done.ok += sum(row["status"] == "ok" for row in rows.values())
    with ThreadPoolExecutor(2) as threads:
        for faults in threads.map(judge, odds):
            yield from faults


def _faults(odd: Odd, row: dict[str, Any], way: str, destination: Path, store: Any, cli: Ffmpeg) -> Iterator[str]:
    if row["status"] != "ok":
        message = row["message"] or ""
        if odd.what == "whole" and not (way == "ffmpeg" and "--engine av" in message):
            yield f"failed: {message}"
        elif ".py:" in message or row["error"] not in (
            "ReadError",
            "NoVideoError",
            "VerifyError",
            "RefusedError",
            "FfmpegError",
        ):
            yield f"a fault of ours: {row['error']}: {message}"
        return
    codes = set(row["warning_codes"] or ())
    if odd.what == "whole" and "damaged" in codes:
        yield f"called damaged: {row['warnings']}"
    if codes - NO_EXCUSE:
        return
    if store is None:
        shown = seen(cli, destination / row["file_name"], row["width"], row["height"])
    else:
        shown = list(store[row["id"]].frames())
    pictures = [_part(picture, odd, number) for number, picture in enumerate(shown)]
    numbers = [number_on(picture) for picture in pictures]
    if odd.what.startswith(HEADER):
        if lost := sorted(set(odd.shows) - set(numbers)):
            yield f"lost {_short(lost)} of {len(odd.shows)} without a warning: {row['warnings']}"
        return
    if numbers != list(odd.shows):
        is_beginning = numbers == list(odd.shows[: len(numbers)])
        if not (odd.what.startswith("cut") and is_beginning and not odd.tells_end):
            yield f"shows {_short(numbers)} without a warning: {row['warnings']}"
        return
    worst = min(psnr(picture, number) for picture, number in zip(pictures, odd.shows, strict=True))
    if worst < MIN_DB:
        yield f"a picture of {worst:.1f} dB without a warning: {row['warnings']}"


def _part(picture: np.ndarray, odd: Odd, number: int) -> np.ndarray:
    """The picture without the bars around it, in its own size."""
    box = next((box for first, box in reversed(odd.boxes.items()) if number >= first), None)
    if box is not None:
        left, top, width, height = box
        picture = picture[top : top + height, left : left + width]
    if picture.shape == (HEIGHT, WIDTH, 3):
        return picture
    return np.asarray(Image.fromarray(picture).resize((WIDTH, HEIGHT), Image.Resampling.BOX))


def _short(numbers: Sequence[int | None]) -> str:
    runs: list[str] = []
    at = 0
    while at < len(numbers):
        end = at
        while end + 1 < len(numbers) and numbers[end] is not None and numbers[end + 1] == (numbers[end] or 0) + 1:
            end += 1
        runs.append(str(numbers[at]) if end == at else f"{numbers[at]}-{numbers[end]}")
        at = end + 1
    return " ".join(runs[:20]) + " …" * (len(runs) > 20)
