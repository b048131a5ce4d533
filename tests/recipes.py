"""Tiny media by name: each is a command of ffmpeg, or a small change of bytes, made on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import av
import numpy as np

from tests.witness import Ffmpeg

H264 = ("-c:v", "libx264", "-preset", "veryfast", "-threads", 1, "-bf", 2, "-g", 10, "-pix_fmt", "yuv420p")


def moving(size: str = "96x64", rate: str = "30", frames: int = 24) -> tuple[object, ...]:
    """A test pattern in which no two frames are equal."""
    return "-f", "lavfi", "-i", f"testsrc2=size={size}:rate={rate},trim=end_frame={frames}"


def chart(width: int = 128, height: int = 96, count: int = 8) -> bytes:
    """rgb24 frames: smooth colours of every hue that drift, and patches of grey. Smooth, so that 4:2:0 costs little."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    out = []
    for n in range(count):
        hue = 2 * np.pi * (x / width + n / 40)
        shade = 0.25 + 0.6 * y / height
        rgb = [shade * (0.55 + 0.4 * np.cos(hue + k * 2 * np.pi / 3)) for k in range(3)]
        picture = np.stack(rgb, axis=-1) * 255
        picture[: height // 8] = np.linspace(8, 247, width)[None, :, None]
        out.append(picture.round().clip(0, 255).astype(np.uint8))
    return np.stack(out).tobytes()


CHART_SIZE = (128, 96)
CHART_IN = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "128x96", "-r", 25, "-i", "-")


class Media:
    """Synthesised clips by name; each is made when first asked for."""

    def __init__(self, folder: Path, cli: Ffmpeg) -> None:
        self.folder, self.cli = folder, cli

    def __getitem__(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            RECIPES[name](self, path)
            assert path.stat().st_size > 0, name
        return path


Recipe = Callable[[Media, Path], None]
RECIPES: dict[str, Recipe] = {}


def recipe(name: str, *args: object, stdin: Callable[[], bytes] | None = None) -> None:
    """A clip that is one ffmpeg command."""
    RECIPES[name] = lambda media, path: void(
        media.cli.run(*args, "-fflags", "+bitexact", path, stdin=stdin() if stdin else None)
    )


def void(_: object) -> None:
    return None


def made(name: str) -> Callable[[Recipe], Recipe]:
    def keep(function: Recipe) -> Recipe:
        RECIPES[name] = function
        return function

    return keep


def copied(name: str, source: str, reading: Sequence[object], writing: Sequence[object] = ()) -> None:
    RECIPES[name] = lambda media, path: void(
        media.cli.run(*reading, "-i", media[source], "-c", "copy", *writing, "-fflags", "+bitexact", path)
    )


recipe("cfr.mp4", *moving(frames=36), *H264)
recipe("ntsc.mkv", *moving(rate="30000/1001"), *H264)
recipe("film.mp4", *moving(rate="24000/1001"), *H264)
recipe("open_gop.mp4", *moving(frames=40), *H264, "-x264-params", "open-gop=1:b-pyramid=normal:bframes=3:b-adapt=0")
copied("open_gop.mkv", "open_gop.mp4", ())
recipe("closed.mkv", *moving(frames=40), *H264)
recipe(
    "hevc.mp4",
    *moving(frames=30),
    "-c:v",
    "libx265",
    "-preset",
    "fast",
    "-tag:v",
    "hvc1",
    "-x265-params",
    "keyint=10:min-keyint=10:open-gop=1:bframes=3:pools=none:frame-threads=1:log-level=error",
)
recipe("vp9.webm", *moving(frames=20), "-c:v", "libvpx-vp9", "-deadline", "realtime", "-cpu-used", 8, "-g", 8)
recipe(
    "altref.webm",
    *moving(frames=30),
    "-c:v",
    "libvpx-vp9",
    "-deadline",
    "good",
    "-cpu-used",
    5,
    "-g",
    12,
    "-auto-alt-ref",
    1,
    "-lag-in-frames",
    12,
)
recipe("av1.mkv", *moving(frames=20), "-c:v", "libsvtav1", "-preset", 12, "-g", 8)
recipe("mjpeg.avi", *moving(frames=12, rate="15"), "-c:v", "mjpeg", "-pix_fmt", "yuvj422p")
recipe("raw.y4m", *moving(frames=10), "-pix_fmt", "yuv444p")
recipe("sorenson.flv", *moving(frames=16), "-c:v", "flv1")
recipe("annexb.h264", *moving(frames=20), *H264)
recipe("program.mpg", *moving(frames=20, rate="25"), "-c:v", "mpeg2video", "-bf", 2)
recipe("one.mp4", *moving(frames=1), *H264)
recipe("one_short.mp4", *moving(frames=1, rate="200"), *H264)
recipe("two.mkv", *moving(frames=2), *H264)

UNEVEN = "settb=1/1000,setpts='N*40+10*mod(N*2,5)'"
recipe("vfr.mp4", *moving(), "-vf", UNEVEN, "-fps_mode", "passthrough", "-enc_time_base", "1/1000", *H264)
recipe(
    "vfr.webm",
    *moving(),
    "-vf",
    UNEVEN,
    "-fps_mode",
    "passthrough",
    "-enc_time_base",
    "1/1000",
    "-c:v",
    "libvpx",
    "-cpu-used",
    5,
    "-deadline",
    "good",
)
recipe(
    "slows_down.mp4",
    *moving(),
    "-vf",
    "settb=1/600,setpts='if(lt(N,12),N*20,240+(N-12)*60)'",
    "-fps_mode",
    "passthrough",
    "-enc_time_base",
    "1/600",
    *H264,
)
recipe(
    "odd_444.mp4",
    *moving(),
    "-vf",
    "scale=97:63,setsar=1,format=yuv444p",
    *H264,
    "-pix_fmt",
    "yuv444p",
    "-x264-params",
    "bframes=2",
)
recipe(
    "odd_420.webm",
    *moving(frames=12),
    "-vf",
    "scale=97:63,setsar=1",
    "-c:v",
    "libvpx-vp9",
    "-deadline",
    "realtime",
    "-cpu-used",
    8,
)
recipe("sar_wide.mp4", *moving(), "-vf", "setsar=4/3", *H264)
recipe("sar_tall.mp4", *moving(), "-vf", "setsar=3/4", *H264)
recipe("deep.mp4", *moving(frames=12), *H264, "-pix_fmt", "yuv420p10le")
recipe("deep_422.mkv", *moving(frames=12), *H264, "-pix_fmt", "yuv422p10le")
recipe("twelve.mkv", *moving(frames=8), "-c:v", "ffv1", "-pix_fmt", "yuv444p12le")
recipe("grey.mp4", *moving(frames=12), *H264, "-pix_fmt", "gray")
recipe("grey16.mkv", *moving(frames=8), "-c:v", "ffv1", "-pix_fmt", "gray16le")
recipe("rgb.mkv", *moving(frames=8), "-c:v", "ffv1", "-pix_fmt", "gbrp")
recipe("palette.gif", *moving(frames=12, rate="20"))
recipe("ts_late.ts", *moving(), *H264, "-output_ts_offset", 10)
recipe(
    "two_streams.mp4",
    *moving(frames=12),
    "-f",
    "lavfi",
    "-i",
    "testsrc2=size=48x32:rate=15:d=0.6",
    "-map",
    "0:v",
    "-map",
    "1:v",
    *H264,
)
recipe("sound_only.mp4", "-f", "lavfi", "-i", "sine=d=0.5", "-c:a", "aac")
recipe("with_sound.mkv", *moving(), "-f", "lavfi", "-i", "sine=d=1.2", *H264, "-c:a", "libopus")

recipe("scenes.mp4", *moving(frames=40), "-vf", "negate=enable='mod(floor(n/7),2)'", *H264)
recipe("few.mkv", *moving("64x64", frames=6), "-c:v", "ffv1", "-pix_fmt", "yuv420p")

# -display_rotation is counter-clockwise; hflip and vflip come after it.
for name, options in {
    "turned_90.mp4": ("-display_rotation", 90),
    "turned_180.mp4": ("-display_rotation", 180),
    "turned_270.mp4": ("-display_rotation", 270),
    "mirrored.mp4": ("-display_hflip",),
    "upside_down.mp4": ("-display_vflip",),
    "turned_90_mirrored.mp4": ("-display_rotation", 90, "-display_hflip"),
    "turned_270_mirrored.mp4": ("-display_rotation", 270, "-display_hflip"),
}.items():
    copied(name, "cfr.mp4", options)
copied("turned_90_sar.mp4", "sar_wide.mp4", ("-display_rotation", 90))
copied("edit_list.mp4", "cfr.mp4", ("-ss", 0.5))
copied("edit_list_late.mp4", "cfr.mp4", ("-itsoffset", 1))


def coloured(name: str, matrix: str, tags: str, *, full: bool = False, pixels: str = "yuv420p") -> None:
    """tags: matrix, primaries, transfer and range as setparams names them."""
    range_ = "full" if full else "limited"
    names = ("colorspace", "color_primaries", "color_trc", "range")
    said = ":".join(f"{name}={value}" for name, value in zip(names, tags.split(), strict=True))
    recipe(
        name,
        *CHART_IN,
        "-vf",
        f"scale=out_color_matrix={matrix}:out_range={range_}:flags=bicubic+accurate_rnd+full_chroma_int,format={pixels}"
        f",setparams={said}",
        "-c:v",
        "libx264",
        "-preset",
        "veryfast",
        "-threads",
        1,
        "-qp",
        1,
        stdin=chart,
    )


coloured("colour_709.mp4", "bt709", "bt709 bt709 bt709 tv")
coloured("colour_601.mp4", "bt601", "smpte170m smpte170m smpte170m tv")
coloured("colour_pal.mp4", "bt601", "bt470bg bt470bg bt470bg tv")
coloured("colour_full.mp4", "bt709", "bt709 bt709 bt709 pc", full=True)
coloured("colour_untagged.mp4", "bt601", "unknown unknown unknown unknown")
recipe(
    "colour_untagged_hd.mp4",
    *CHART_IN,
    "-vf",
    "scale=128:720:out_color_matrix=bt709:out_range=limited:flags=bicubic+accurate_rnd+full_chroma_int,format=yuv420p"
    ",setparams=colorspace=unknown:color_primaries=unknown:color_trc=unknown:range=unknown",
    "-c:v",
    "libx264",
    "-preset",
    "veryfast",
    "-threads",
    1,
    "-qp",
    1,
    stdin=chart,
)
coloured("colour_deep.mp4", "bt709", "bt709 bt709 bt709 tv", pixels="yuv420p10le")
coloured("colour_2020.mp4", "bt2020", "bt2020nc bt2020 bt2020-10 tv", pixels="yuv420p10le")
coloured("colour_240.mp4", "smpte240m", "smpte240m smpte240m smpte240m tv")
recipe(
    "colour_limited.avi",
    *CHART_IN,
    "-vf",
    "scale=out_color_matrix=bt601:out_range=limited:flags=bicubic+accurate_rnd+full_chroma_int,"
    "format=yuv420p,setparams=range=tv",
    "-c:v",
    "mjpeg",
    "-color_range",
    "tv",
    "-strict",
    "unofficial",
    "-q:v",
    2,
    stdin=chart,
)
coloured("colour_444_full.mp4", "bt601", "smpte170m smpte170m smpte170m pc", full=True, pixels="yuv444p")


def high_dynamic_range(name: str, transfer: str, levels: Sequence[int]) -> None:
    """Vertical bars of neutral grey at these 10-bit luma levels, and a red one at the right."""

    def build(media: Media, path: Path) -> None:
        luma = np.repeat(np.array([*levels, 400], np.uint16), 16)[None].repeat(64, 0)
        u = np.full((32, luma.shape[1] // 2), 512, np.uint16)
        v = u.copy()
        u[:, -8:], v[:, -8:] = 430, 640
        data = b"".join(plane.tobytes() for plane in (luma, u, v)) * 6
        tags = ("-colorspace", "bt2020nc", "-color_primaries", "bt2020", "-color_trc", transfer, "-color_range", "tv")
        media.cli.run(
            "-f",
            "rawvideo",
            "-pix_fmt",
            "yuv420p10le",
            "-s",
            f"{luma.shape[1]}x64",
            "-r",
            25,
            *tags,
            "-i",
            "-",
            "-c:v",
            "libx264",
            "-qp",
            0,
            "-threads",
            1,
            *tags,
            path,
            stdin=data,
        )

    RECIPES[name] = build


# 10-bit limited luma of 0, 1, 10, 58, 100, 203, 1000 cd/m² in PQ (ITU-R BT.2100): 203 is reference white (BT.2408).
PQ_LEVELS = (64, 195, 328, 473, 509, 572, 723)
# Of 0, 10, 25, 50, 75, 100 % of the HLG signal: 75 % is reference white.
HLG_LEVELS = (64, 152, 283, 502, 721, 940)
high_dynamic_range("pq.mp4", "smpte2084", PQ_LEVELS)
high_dynamic_range("hlg.mp4", "arib-std-b67", HLG_LEVELS)

DISC = "format=yuva420p,geq=lum='lum(X,Y)':cb='cb(X,Y)':cr='cr(X,Y)':a='if(lt(hypot(X-48,Y-32),24),255,if(lt(X,16),128,0))'"
recipe(
    "alpha.webm",
    *moving(frames=8),
    "-vf",
    DISC,
    "-c:v",
    "libvpx-vp9",
    "-crf",
    4,
    "-b:v",
    0,
    "-deadline",
    "realtime",
    "-cpu-used",
    8,
    "-auto-alt-ref",
    0,
)
recipe("alpha.mov", *moving(frames=8), "-vf", DISC + ",format=argb", "-c:v", "qtrle")
recipe("alpha.gif", *moving(frames=8), "-vf", DISC + ",format=rgba,split[a][b];[a]palettegen[p];[b][p]paletteuse")

INTERLACED = "tinterlace=mode=interleave_{}"
MPEG2 = ("-c:v", "mpeg2video", "-b:v", "2M", "-bf", 2, "-g", 8, "-pix_fmt", "yuv420p")
for field, pixels in (("top", "yuv420p"), ("bottom", "yuv422p")):
    recipe(
        f"interlaced_{field}.mkv",
        *moving(rate="50", frames=40),
        "-vf",
        f"format={pixels}," + INTERLACED.format(field) + f",fieldorder={field[0]}ff",
        *MPEG2,
        "-pix_fmt",
        pixels,
        "-flags",
        "+ildct+ilme",
    )
recipe(
    "interlaced_h264.mp4",
    *moving(rate="50", frames=40),
    "-vf",
    INTERLACED.format("top"),
    *H264,
    "-flags",
    "+ildct+ilme",
    "-x264-params",
    "tff=1",
)
for offset in (0, 0.68):
    late = "_late" if offset else ""
    recipe(
        f"part_interlaced{late}.ts",
        *moving(rate="50", frames=32),
        "-vf",
        INTERLACED.format("top") + ",fieldorder=tff",
        *MPEG2,
        "-flags",
        "+ildct+ilme",
        "-output_ts_offset",
        offset,
    )
    recipe(f"part_progressive{late}.ts", *moving(rate="25", frames=16), *MPEG2, "-output_ts_offset", offset)
recipe("part_small.ts", *moving(rate="25", frames=12), *H264)
recipe("part_wide.ts", *moving("120x64", rate="25", frames=12), *H264, "-output_ts_offset", 0.48)
recipe("part_half.ts", *moving("48x32", rate="25", frames=12), *H264, "-output_ts_offset", 0.48)
recipe("part_narrow.ts", *moving("40x32", rate="25", frames=12), *H264, "-output_ts_offset", 0.48)
for shape in ("1/1", "4/3"):
    recipe(
        f"part_pixels_{shape[0]}.ts",
        *moving(rate="25", frames=12),
        "-vf",
        f"setsar={shape}",
        *H264,
        "-bf",
        0,
        "-output_ts_offset",
        0 if shape == "1/1" else 0.48,
    )


def joined(name: str, *parts: str) -> None:
    """Transport streams one behind the other, byte by byte."""
    RECIPES[name] = lambda media, path: void(path.write_bytes(b"".join(media[part].read_bytes() for part in parts)))


joined("mixed.ts", "part_progressive.ts", "part_interlaced_late.ts")
joined("mixed_interlaced_first.ts", "part_interlaced.ts", "part_progressive_late.ts")
joined("size_changes.ts", "part_small.ts", "part_wide.ts")
joined("size_halves.ts", "part_small.ts", "part_half.ts")
joined("size_narrows.ts", "part_small.ts", "part_narrow.ts")
joined("pixels_change.ts", "part_pixels_1.ts", "part_pixels_4.ts")
joined("jumps_back.ts", "part_small.ts", "part_small.ts", "part_small.ts")


below_zero = ("-bsf:v", "setts=pts=PTS-0.3/TB:dts=DTS-0.3/TB", "-avoid_negative_ts", "disabled")
copied("below_zero.mp4", "cfr.mp4", (), below_zero)  # ten packets are to be decoded and not shown
copied("below_zero.mkv", "cfr.mp4", (), below_zero)  # Matroska has no time below 0: nine packets have none


@made("claims_431.avi")
def claims_431(media: Media, path: Path) -> None:
    """An AVI whose headers claim 431 frames; 12 are there."""
    data = bytearray(media["mjpeg.avi"].read_bytes())
    for header, field in ((b"avih", 16), (b"strh", 32)):
        at = data.index(header) + 8 + field
        assert int.from_bytes(data[at : at + 4], "little") == 12
        data[at : at + 4] = (431).to_bytes(4, "little")
    path.write_bytes(data)


@made("swapped.mkv")
def swapped(media: Media, path: Path) -> None:
    """Each third pair of neighbours has its timestamps swapped, as packed B-frames leave them in AVI."""
    restamped(media, path, lambda n: n + 1 if n % 3 == 1 else n - 1 if n % 3 == 2 and n else n)


@made("doubled.mkv")
def doubled(media: Media, path: Path) -> None:
    """Every fourth frame has the timestamp of the one before it."""
    restamped(media, path, lambda n: n - 1 if n % 4 == 3 else n)


def restamped(media: Media, path: Path, stamp: Callable[[int], int]) -> None:
    plain = path.with_name(f"plain_{path.name}")
    media.cli.run(*moving(rate="25"), *H264, "-bf", 0, plain)
    with av.open(str(plain)) as source, av.open(str(path), "w", format="matroska") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(p for p in source.demux(video=0) if p.size):
            packet.pts = stamp(number) * 40
            packet.dts = min(number - 1, packet.pts // 40) * 40 if number else packet.pts - 40
            packet.stream = stream
            target.mux_one(packet)


def cut_short(name: str, source: str, part: float) -> None:
    def build(media: Media, path: Path) -> None:
        data = media[source].read_bytes()
        path.write_bytes(data[: int(len(data) * part)])

    RECIPES[name] = build


copied("index_first.mp4", "cfr.mp4", (), ("-movflags", "+faststart"))
cut_short("cut_short.mp4", "index_first.mp4", 0.6)
cut_short("cut_short.mkv", "closed.mkv", 0.6)
cut_short("cut_short.ts", "ts_late.ts", 0.6)


@made("flipped.mp4")
def flipped(media: Media, path: Path) -> None:
    """Thirty damaged bytes in the coded pictures."""
    data = bytearray(media["index_first.mp4"].read_bytes())
    start = data.index(b"mdat") + 1500
    for at in np.random.default_rng(7).integers(start, len(data), 30):
        data[at] ^= 0x55
    path.write_bytes(data)


# Clips that a reader should get through without a fault, by what is special about them.
PLAIN = (
    "cfr.mp4",
    "ntsc.mkv",
    "film.mp4",
    "open_gop.mp4",
    "open_gop.mkv",
    "closed.mkv",
    "hevc.mp4",
    "vp9.webm",
    "altref.webm",
    "av1.mkv",
    "mjpeg.avi",
    "raw.y4m",
    "sorenson.flv",
    "annexb.h264",
    "program.mpg",
    "one.mp4",
    "one_short.mp4",
    "two.mkv",
    "vfr.mp4",
    "vfr.webm",
    "slows_down.mp4",
    "odd_444.mp4",
    "odd_420.webm",
    "sar_wide.mp4",
    "sar_tall.mp4",
    "deep.mp4",
    "deep_422.mkv",
    "twelve.mkv",
    "grey.mp4",
    "grey16.mkv",
    "rgb.mkv",
    "palette.gif",
    "ts_late.ts",
    "two_streams.mp4",
    "with_sound.mkv",
    "turned_90.mp4",
    "turned_180.mp4",
    "turned_270.mp4",
    "mirrored.mp4",
    "upside_down.mp4",
    "turned_90_mirrored.mp4",
    "turned_270_mirrored.mp4",
    "turned_90_sar.mp4",
    "edit_list.mp4",
    "edit_list_late.mp4",
    "colour_709.mp4",
    "colour_601.mp4",
    "colour_pal.mp4",
    "colour_full.mp4",
    "colour_untagged.mp4",
    "colour_deep.mp4",
    "colour_2020.mp4",
    "colour_240.mp4",
    "colour_limited.avi",
    "colour_444_full.mp4",
    "pq.mp4",
    "hlg.mp4",
    "alpha.webm",
    "alpha.mov",
    "alpha.gif",
)
INTERLACED_CLIPS = (
    "interlaced_top.mkv",
    "interlaced_bottom.mkv",
    "interlaced_h264.mp4",
    "mixed.ts",
    "mixed_interlaced_first.ts",
)
DAMAGED = ("cut_short.mp4", "cut_short.mkv", "cut_short.ts", "flipped.mp4")
