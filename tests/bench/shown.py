"""What ffmpeg shows of a file: its size, and the mean colours of patches of some frames by exact arithmetic (ITU-T H.273).

ffmpeg decodes, turns and crops; the rest is numpy on the samples as they are. A picture that is not tagged is taken for what the
README says: BT.709 from 720 lines up, BT.601 below, limited range unless it is RGB, grey or of a still image's codec.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
from av.video.format import VideoFormat

from tests.witness import Ffmpeg

ACROSS, DOWN = 4, 2
WEIGHTS = {"bt709": (0.2126, 0.0722), "smpte240m": (0.212, 0.087), "bt2020nc": (0.2627, 0.0593)}  # of red and blue
BT601 = (0.299, 0.114)
HD_LINES = 720
DEINTERLACE = "bwdif=deint=interlaced:mode=send_frame"

Colours = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shown:
    """stored: width and height when upright. size: with square pixels, as high as it is stored. lines: before it is turned.
    told: what the first frame says, by showinfo's names.
    """

    stored: tuple[int, int]
    size: tuple[float, float]
    lines: int
    pixel_format: str
    told: dict[str, str]

    @property
    def is_hdr(self) -> bool:
        return self.told.get("color_trc") in ("smpte2084", "arib-std-b67")


def _run(
    cli: Ffmpeg, path: Path, stream: str, reading: Sequence[object], filters: str, frames: int
) -> tuple[bytes, Shown]:
    command = [
        cli.exe,
        "-hide_banner",
        "-nostdin",
        *reading,
        "-i",
        path,
        "-map",
        stream,
        "-vf",
        f"{filters},showinfo",
        "-fps_mode",
        "passthrough",
        "-frames:v",
        frames,
        "-c:v",
        "rawvideo",
        "-f",
        "rawvideo",
        "-",
    ]
    ran = subprocess.run([str(part) for part in command], capture_output=True, check=False)
    log = ran.stderr.decode(errors="replace")
    found = re.search(r"fmt:(\w+) .*?sar:(\d+)/(\d+) s:(\d+)x(\d+)", log)
    assert found is not None, log[-500:]
    pixel_format, across, down, width, height = found.groups()
    # Where pixels have no shape, or an absurd one, they are square.
    ratio = Fraction(int(across), int(down)) if int(across) and int(down) else Fraction(1)
    shape = ratio if Fraction(1, 20) <= ratio <= 20 else Fraction(1)
    told = dict(re.findall(r"(color_\w+):(\S+)", log))
    size = float(int(width) * shape), float(height)
    return ran.stdout, Shown((int(width), int(height)), size, int(height), pixel_format, told)


def shown(cli: Ffmpeg, path: Path, stream: str = "0:v:0", reading: Sequence[object] = ()) -> Shown:
    upright, lying = (_run(cli, path, stream, (*more, *reading), "null", 1)[1] for more in ((), ("-noautorotate",)))
    is_turned = upright.stored != lying.stored
    return replace(upright, lines=lying.lines, size=lying.size[::-1] if is_turned else lying.size)


def colours(
    cli: Ffmpeg,
    path: Path,
    about: Shown,
    numbers: Sequence[int],
    *,
    still: bool = False,
    deinterlace: bool = False,
    stream: str = "0:v:0",
    reading: Sequence[object] = (),
    trim: tuple[int, int] | None = None,
) -> Colours:
    """(frames, 8, 3) in 0..255. still: of a codec of still images. trim: even size that is left of an odd one."""
    held = _held_as(about.pixel_format)
    chain = [f"select='{'+'.join(f'eq(n,{n})' for n in numbers)}'", f"format={held}"]
    if deinterlace:
        chain.insert(0, DEINTERLACE)
    data, _ = _run(cli, path, stream, reading, ",".join(chain), len(numbers))
    width, height = about.stored
    held = held.rpartition("=")[2]
    bits = VideoFormat(held).components[0].bits
    frame_samples = sum(rows * columns for rows, columns in _shapes(held, width, height))
    samples = np.frombuffer(data, np.uint8 if bits == 8 else "<u2").reshape(-1, frame_samples)
    return np.stack(
        [_patches(_rgb(row, held, about, still)[: trim and trim[1], : trim and trim[0]]) for row in samples]
    )


def _held_as(pixel_format: str) -> str:
    """The same samples in planes; RGB always with alpha."""
    layout = VideoFormat(pixel_format)
    deep = max(component.bits for component in layout.components) > 8
    if pixel_format in ("rgb8", "bgr8"):  # three bits end at 252
        return "rgb24,lutrgb=r=val*255/252:g=val*255/252,format=gbrap"
    if layout.is_rgb and layout.components[0].bits < 8:
        return "rgb24,format=gbrap"  # or five bits are shifted, and not stretched
    if layout.is_rgb or layout.has_palette:
        return "gbrap16le" if deep else "gbrap"
    if pixel_format.startswith("gray"):
        return "gray16le" if deep else "gray"
    if pixel_format.startswith(("mono", "ya")):
        return "gbrap16le" if deep else "gbrap"
    planes = {component.plane for component in layout.components}
    if len(planes) == len(layout.components) and not pixel_format.endswith("be"):
        return pixel_format
    alpha = "a" if len(layout.components) == 4 else ""
    across, down = 64 // layout.chroma_width(64), 64 // layout.chroma_height(64)
    name = {(1, 1): "444", (2, 1): "422", (2, 2): "420", (4, 1): "411"}[across, down]
    bits = max(component.bits for component in layout.components)
    return f"yuv{alpha}{name}p" + ("" if bits == 8 else f"{bits}le")


def _shapes(held: str, width: int, height: int) -> list[tuple[int, int]]:
    layout = VideoFormat(held)
    chroma = -(-height * layout.chroma_height(64) // 64), -(-width * layout.chroma_width(64) // 64)
    count = len(layout.components)
    return [(height, width) if n in (0, 3) or held.startswith("gb") else chroma for n in range(count)]


def _rgb(samples: npt.NDArray[np.integer], held: str, about: Shown, still: bool) -> Colours:
    width, height = about.stored
    planes, at = [], 0
    most = 2 ** VideoFormat(held).components[0].bits - 1
    for rows, columns in _shapes(held, width, height):
        plane = samples[at : at + rows * columns].reshape(rows, columns).astype(float)
        at += rows * columns
        down, across = -(-height // rows), -(-width // columns)
        planes.append(plane.repeat(down, 0).repeat(across, 1)[:height, :width])
    if held.startswith("gb"):
        green, blue, red, alpha = planes
        return np.stack([red, green, blue], -1) * alpha[..., None] / most**2 * 255
    if held.startswith("gray"):
        return np.repeat(planes[0][..., None], 3, -1) / most * 255
    full = still or about.pixel_format.startswith("yuvj") or about.told.get("color_range") == "pc"
    unit = (most + 1) // 256
    scale, offset, chroma = (most, 0, most) if full else (219 * unit, 16 * unit, 224 * unit)
    space = about.told.get("color_space", "unknown")
    guess = WEIGHTS["bt709"] if about.lines >= HD_LINES else BT601
    red_weight, blue_weight = guess if space in ("unknown", "gbr", "reserved") else WEIGHTS.get(space, BT601)
    luma, cb, cr = (planes[0] - offset) / scale, *((plane - 128 * unit) / chroma for plane in planes[1:3])
    red, blue = luma + 2 * (1 - red_weight) * cr, luma + 2 * (1 - blue_weight) * cb
    green = (luma - red_weight * red - blue_weight * blue) / (1 - red_weight - blue_weight)
    # Not clipped, where it need not be: so subsampling and scaling leave the means as they were.
    rgb = np.stack([red, green, blue], -1) * 255
    return np.clip(rgb, 0, 255) * (planes[3] / most)[..., None] if len(planes) == 4 else rgb


def _patches(rgb: Colours) -> Colours:
    """(8, 3): means over a grid, to the fraction of a pixel, so that it is the same at every size."""
    height, width = rgb.shape[:2]
    rows, columns = _shares(height, DOWN), _shares(width, ACROSS)
    return np.einsum("ph,qw,hwc->pqc", rows, columns, rgb, optimize=True).reshape(-1, 3)


def _shares(length: int, parts: int) -> Colours:
    """(parts, length): how much of each part each line is."""
    edges = np.clip(np.linspace(0, length, parts + 1)[:, None] - np.arange(length), 0, 1)
    return np.diff(edges, axis=0) * parts / length
