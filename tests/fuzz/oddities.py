"""Numbered clips that are whole, joined, cut, holed, or change midway; what of their pictures should come out is known of each.

python -m tests.fuzz odd 2000
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.fuzz.mutants import FIELDS, change_field, flash, matroska
from tests.fuzz.numbered_clips import HEIGHT, KINDS, MJPEG, MPEG2, WIDTH, X264, X265, Kind, clip, jpeg, picture
from tests.fuzz.sample_descriptions import coded, joined
from tests.witness import Ffmpeg

SECTOR = 512
HURT = ("fragments.mp4", "h264.ts", "h264.flv", "h264.mkv", "hevc.ts", "flv1.flv", "vp8.webm", "mpeg2.ts")
HEADER = "a number of a header:"
RATES = (25, 24, 30, "30000/1001", 12)
HALF = 24  # frames before and behind a change


@dataclass(frozen=True, slots=True)
class Odd:
    """A file, and what it shows.

    Attributes:
        seed: That makes it again.
        name: Of the file.
        what: What is odd about it; "whole" where nothing is.
        data: Its bytes.
        shows: Numbers of its pictures, in order.
        boxes: From which picture on the picture stands where in the output: left, top, width, height.
        tells_end: As of its kind.
    """

    seed: int
    name: str
    what: str
    data: bytes
    shows: tuple[int, ...]
    boxes: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    tells_end: bool = True


class Workshop:
    """Makes oddities. folder: where clips are kept, each made once."""

    def __init__(self, folder: Path, cli: Ffmpeg) -> None:
        self.folder, self.cli = folder, cli

    def make(self, seed: int) -> Odd:
        """One in four is whole; the others take turns."""
        rng = random.Random(seed)
        if seed % 4 == 0:
            names = list(KINDS)
            return self._whole(seed, names[seed // 4 % len(names)], rng)
        way = WAYS[seed % len(WAYS)]
        made = way(self, seed, rng)
        assert made.what != "whole"
        return made

    def hurt(self, seed: int) -> Odd:
        """A clip of which one number that a demuxer believes is another."""
        rng, random_ = random.Random(seed), np.random.default_rng(seed)
        name = HURT[seed % len(HURT)]
        count, rate, gop = rng.choice((20, 33, 60)), rng.choice(RATES), rng.choice((4, 12))
        data = bytearray(self.clip(name, range(count), (rate, gop), rate=rate, gop=gop))
        done = change_field(data, list(FIELDS[name.rpartition(".")[2]](bytes(data))), random_)
        return Odd(seed, f"s{seed}_{name}", f"{HEADER} {done}", bytes(data), tuple(range(count)))

    def lost(self, seed: int) -> Odd:
        """A clip of which packets are missing, joined or swapped."""
        return without_packets(self, seed, random.Random(seed))

    def clip(self, name: str, numbers: Sequence[int], key: object = "", **how: object) -> bytes:
        """A kept clip of a kind."""
        path = self.folder / f"{numbers[0]}_{len(numbers)}_{key}_{name}".replace("/", "-")
        if not path.exists():
            clip(self.cli, path, numbers, KINDS[name], **how)  # type: ignore[arg-type]
        return path.read_bytes()

    def _whole(self, seed: int, name: str, rng: random.Random) -> Odd:
        count, rate, gop = rng.choice((8, 20, 33)), rng.choice(RATES), rng.choice((4, 12))
        rate = {"mpeg2": 25, "theora": 25}.get(name.partition(".")[0], rate)
        data = self.clip(name, range(count), (rate, gop), rate=rate, gop=gop)
        return Odd(seed, f"s{seed}_{name}", "whole", data, tuple(range(count)))

    def half(self, name: str, first: int = 0, key: object = "", **how: object) -> bytes:
        return self.clip(name, range(first, first + HALF), key, **how)

    def wrapped(self, data: bytes, name: str, suffix: str) -> bytes:
        """A raw stream in a container, a frame each 25th of a second."""
        stream = self.folder / "stream" / name
        if stream.suffix == suffix:
            return data
        stream.parent.mkdir(exist_ok=True)
        stream.write_bytes(data)
        out = stream.with_suffix(suffix)
        stamps = "setts=pts=N:dts=N:time_base=1/25"
        self.cli.run("-r", 25, "-i", stream, "-c", "copy", "-bsf:v", stamps, "-fflags", "+bitexact", out)
        return out.read_bytes()


WITH_END = (".mp4", ".mov", ".3gp", ".mkv", ".webm", ".avi", ".apng", ".wmv")
BOTH = (*range(HALF), *range(100, 100 + HALF))


def joined_with_itself(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    name = rng.choice(list(KINDS))
    return Odd(seed, f"s{seed}_{name}", "joined", shop.half(name) + shop.half(name, 100), BOTH)


def joined_with_another(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    one = rng.choice([name for name in KINDS if Path(name).suffix in WITH_END])
    other = rng.choice([name for name in KINDS if name != one])
    return Odd(seed, f"s{seed}_{one}", f"joined with {other}", shop.half(one) + shop.half(other, 100), BOTH)


def joined_with_another_codec(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    suffixes = sorted({Path(name).suffix for name in KINDS})
    families = [[name for name in KINDS if Path(name).suffix == suffix] for suffix in suffixes]
    one, other = rng.sample(rng.choice([family for family in families if len(family) > 1]), 2)
    return Odd(seed, f"s{seed}_{one}", f"joined with {other}", shop.half(one) + shop.half(other, 100), BOTH)


def cut_short(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    name = rng.choice(list(KINDS))
    data = shop.half(name)
    end = rng.randrange(len(data) // 4, len(data) - 1)
    return Odd(seed, f"s{seed}_{name}", f"cut at {end}", data[:end], BOTH[:HALF], tells_end=KINDS[name].tells_end)


def holed(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    name = rng.choice(list(KINDS))
    data = bytearray(shop.half(name))
    size = 4096 if len(data) > 32768 else SECTOR
    at = rng.randrange(len(data) // 8, len(data) * 7 // 8) // SECTOR * SECTOR
    data[at : at + size] = bytes(len(data[at : at + size]))
    return Odd(
        seed, f"s{seed}_{name}", f"{size} zeros at {at}", bytes(data), BOTH[:HALF], tells_end=KINDS[name].tells_end
    )


# Containers of which PyAV writes single packets with the times that they had.
PACKETS = (".mp4", ".mov", ".mkv", ".webm", ".flv", ".ts", ".3gp", ".nut")


def without_packets(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    """One to three packets are missing, or two became one, or two changed places; all keep their times."""
    what = rng.choice(("without", "without", "joined", "swapped"))
    fits = (".mkv", ".webm", ".flv") if what == "swapped" else PACKETS
    names = [name for name in KINDS if name.endswith(fits) and not name.startswith(("fragments", "live", "raw"))]
    name = rng.choice(names)
    if what == "swapped":
        data = shop.half(name)
        spans = list(PIECES[name.rpartition(".")[2]](data))
        number = rng.randrange(2, len(spans) - 1)
        (begin, middle), (again, end) = spans[number : number + 2]
        swapped = data[:begin] + data[again:end] + data[middle:again] + data[begin:middle] + data[end:]
        return Odd(seed, f"s{seed}_{name}", f"swapped packets {number} and {number + 1}", swapped, BOTH[:HALF])
    path = shop.folder / f"packets_{name}"
    path.write_bytes(shop.half(name))
    made = path.with_stem(f"made_{path.stem}")
    with av.open(str(path)) as source, av.open(str(made), "w", container_options={"fflags": "+bitexact"}) as target:
        stream = source.streams.video[0]
        out: Any = target.add_stream_from_template(stream, opaque=True)
        packets = [packet for packet in source.demux(stream) if packet.size]
        count = rng.choice((1, 1, 2, 3)) if what == "without" else 1
        numbers = sorted(rng.sample(range(1, len(packets) - 2), count))  # nothing tells of what is missing at the end
        for number, packet in enumerate(packets):
            written = packet
            if number in numbers:
                continue
            if what == "joined" and number - 1 in numbers:
                before = packets[number - 1]
                written = av.Packet(bytes(before) + bytes(packet))
                written.pts, written.dts, written.time_base = before.pts, before.dts, before.time_base
                written.duration, written.is_keyframe = before.duration, before.is_keyframe
            written.stream = out
            target.mux(written)
    return Odd(seed, f"s{seed}_{name}", f"{what} packets {numbers}", made.read_bytes(), BOTH[:HALF])


def blocks(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each SimpleBlock of Matroska lies, with its header."""
    begin = 0
    for each in matroska(data):
        if each.what == "id":
            begin = each.at
        elif each.what == "size of A3":
            size = int.from_bytes(data[each.at : each.at + each.size], "big") & ((1 << 7 * each.size) - 1)
            yield begin, each.at + each.size + size


def tags(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each video tag of FLV lies, with the size behind it."""
    for each in flash(data):
        if each.what == "tag type" and data[each.at] & 31 == 9:
            yield each.at, each.at + 15 + int.from_bytes(data[each.at + 1 : each.at + 4], "big")


PIECES = {"mkv": blocks, "webm": blocks, "flv": tags}


STREAMS = {"h264.h264": X264, "hevc.hevc": X265, "mpeg2.m2v": MPEG2, "mjpeg.mjpeg": MJPEG}
WRAPPED = {
    "h264.h264": (".h264", ".ts", ".mkv"),
    "hevc.hevc": (".hevc", ".ts", ".mkv"),
    "mpeg2.m2v": (".m2v", ".ts", ".mkv", ".mpg"),
    "mjpeg.mjpeg": (".mjpeg", ".avi", ".mkv", ".mov"),
}
CHANGES: dict[str, dict[str, object]] = {
    "nothing": {},
    "size": {"filters": f"scale={2 * WIDTH}:{2 * HEIGHT}:flags=neighbor"},
    "pixel shape": {"filters": "setsar=4/3"},
    "orientation": {
        "filters": "hflip,vflip",
        "writing": ("-bsf:v", "h264_metadata=display_orientation=insert:rotate=180"),
    },
    "range": {"full_range": True},
    "matrix": {"matrix": "bt709"},
}


def changed_midway(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    what = rng.choice([change for change in CHANGES if change != "nothing"])
    name = "h264.h264" if what in ("orientation", "range") else rng.choice(list(STREAMS))
    if name in ("mjpeg.mjpeg", "mpeg2.m2v") and what in (
        "matrix",
        "pixel shape",
    ):  # of which one has none, one only shapes of screens
        name = "hevc.hevc"
    one = shop.half(name, writing=NO_BFRAMES.get(name, ()), key="plain")
    how = dict(CHANGES[what])
    how["writing"] = (*NO_BFRAMES.get(name, ()), *how.get("writing", ()))  # type: ignore[misc]
    other = shop.half(name, 100, what, **how)
    if rng.random() < 0.3:
        one, other, shown = other, one, (*BOTH[HALF:], *BOTH[:HALF])
    else:
        shown = BOTH
    suffix = rng.choice(WRAPPED[name])
    data = shop.wrapped(one + other, name, suffix)
    made = Odd(seed, f"s{seed}{suffix}", f"another {what} midway", data, shown)
    return replace(made, boxes=boxes_of(what, is_first=shown is BOTH))


NO_BFRAMES = {"h264.h264": ("-bf", 0), "hevc.hevc": ("-bf", 0), "mpeg2.m2v": ("-bf", 0)}


def boxes_of(what: str, *, is_first: bool) -> dict[int, tuple[int, int, int, int]]:
    """Where pictures with pixels of another shape stand: those of the second half between bars, those of the first stretched."""
    if what != "pixel shape":
        return {}
    if is_first:
        height = round(HEIGHT * 3 / 4 / 2) * 2
        return {HALF: (0, (HEIGHT - height) // 4 * 2, WIDTH, height)}
    wide = WIDTH * 4 // 3
    return {0: (0, 0, wide, HEIGHT), HALF: ((wide - WIDTH) // 4 * 2, 0, WIDTH, HEIGHT)}


def exif_changes(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    halves = [jpeg(picture(n), 1) for n in BOTH[:HALF]]
    halves += [jpeg(np.ascontiguousarray(np.rot90(picture(n), 2)), 3) for n in BOTH[HALF:]]
    suffix = rng.choice(WRAPPED["mjpeg.mjpeg"])
    data = shop.wrapped(b"".join(halves), "mjpeg.mjpeg", suffix)
    return Odd(seed, f"s{seed}{suffix}", "another EXIF orientation midway", data, BOTH)


def other_pid(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    name = rng.choice(["h264.ts", "hevc.ts", "mpeg2.ts"])
    tables = rng.choice([(), ("-mpegts_pmt_start_pid", "0x1001")])
    late = ("-mpegts_start_pid", "0x110", *tables, "-output_ts_offset", rng.choice([0, 1, 100]))
    other = shop.half(name, 100, ("pid", *late), writing=late)
    return Odd(seed, f"s{seed}_{name}", "another PID midway", shop.half(name) + other, BOTH)


def other_description(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    what = rng.choice(["nothing", "size", "range", "matrix"])
    parts = []
    for first, how in ((0, {}), (100, CHANGES[what])):
        writing = ("-bf", 0, *(() if first == 0 else ("-profile:v", "baseline", "-refs", 1)))
        name = f"{first}_24_{('description', what)}_h264.mp4"
        shop.half("h264.mp4", first, ("description", what), writing=writing, **how)
        parts.append(coded(shop.folder / name))
    parts = parts if rng.random() < 0.7 else [*parts, parts[0]]
    shown = BOTH if len(parts) == 2 else (*BOTH, *BOTH[:HALF])
    return Odd(seed, f"s{seed}_h264.mp4", f"another sample description midway ({what})", joined(parts, 25), shown)


def unused_alpha(shop: Workshop, seed: int, rng: random.Random) -> Odd:
    suffix, how, pixel_format = rng.choice(
        [
            (".avi", ("-c:v", "rawvideo"), "bgra"),
            (".avi", ("-c:v", "huffyuv"), "rgb32"),
            (".avi", ("-c:v", "utvideo"), "gbrap"),
            (".mov", ("-c:v", "qtrle"), "argb"),
            (".mov", ("-c:v", "png"), "rgba"),
            (".mkv", ("-c:v", "ffv1"), "bgra"),
        ]
    )
    path = shop.folder / f"alpha_{how[1]}{suffix}"
    if not path.exists():
        kind = Kind((*how, "-pix_fmt", pixel_format), "rgb24", intra=True)
        clip(shop.cli, path, BOTH[:HALF], replace(kind, pixel_format="rgba,colorchannelmixer=aa=0"))
    return Odd(seed, f"s{seed}{suffix}", "alpha of zero", path.read_bytes(), BOTH[:HALF])


WAYS: tuple[Callable[[Workshop, int, random.Random], Odd], ...] = (
    joined_with_itself,
    cut_short,
    holed,
    changed_midway,
    joined_with_another,
    holed,
    changed_midway,
    cut_short,
    exif_changes,
    other_pid,
    other_description,
    holed,
    joined_with_itself,
    changed_midway,
    unused_alpha,
    joined_with_another_codec,
    without_packets,
)
