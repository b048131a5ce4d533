"""Tables of what differs between codecs, encoders and containers, one row each. Options are checked against a row.

To add an encoder, add a row to ENCODERS; a container, a row to CONTAINERS; a codec, a row to CODECS and one for its
encoder. Nothing here opens or runs anything.

The defaults (`--tune psnr`) were chosen by BD-rate of PSNR over all planes (6:1:1), SSIM and VMAF against each encoder's
own defaults at the same preset and GOP: none of the three may lose more than 1 %, and CPU time may not rise.
`python tests/bench/defaults.py` prints the figures; docs/comparison.md has them. Networks see RGB:
the chroma offsets of h264 and hevc save 2 to 5 % of the bytes at equal PSNR of RGB (measured on six other clips).

Tried and rejected, GOP 5 and 16: libx265 with rdoq-level=2, 3 % less by PSNR and 9 % by VMAF for half as much CPU again;
cutree=0, qg-size=16 or stronger adaptive quantisation, which lose 2 to 6 % by PSNR or SSIM. libvpx-vp9 with any aq-mode, 2
to 17 % more by PSNR; tune=ssim, 3 to 4 % more; qmin from a GOP of 9 on, 7 % more by SSIM. SVT-AV1 with tune=2, variance
boost or enable-tf=0 at longer GOPs, 2 to 7 % more by PSNR; its chroma offsets per plane changed no byte.

CRF defaults: the median PSNR-Y over 17 real clips was 42.70 dB for libx264 at 20, 42.46 for libx265 at 18, 42.39 for
svt-av1 at 22, 42.38 for vp9 at 20, with earlier defaults. Over other sets of clips the medians differ by up to 1.7 dB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vidprep.formats.model import HdrMetadata

# Other names of codecs and containers.
OTHER_NAMES = {
    "libx264": "h264",
    "libx265": "hevc",
    "libvpx-vp9": "vp9",
    "libsvtav1": "av1",
    "libaom-av1": "av1",
    "h265": "hevc",
    "h.265": "hevc",
    "x265": "hevc",
    "avc": "h264",
    "h.264": "h264",
    "x264": "h264",
    "matroska": "mkv",
}
TUNES = ("psnr", "visual", "fastdecode")
JPEG_SUBSAMPLINGS = {"420": "yuvj420p", "444": "yuvj444p", "gray": "gray"}


@dataclass(frozen=True, slots=True)
class CodecProfile:
    """One codec.

    Attributes:
        check_decoder: libavcodec's decoder that verifies what was encoded
        matroska_id: CodecID of RFC 9559
        db_of_crf_range: Fall of the 1st percentile of PSNR-Y from the finest CRF to the coarsest, in dB; median over
            the clips on which the defaults were chosen. A search for a CRF starts with it
        has_units: Whether packets are NAL units: with start codes after the encoder, with lengths in containers
        tags: Codec tag per container, if players know another one than libavformat writes
    """

    encoder: str
    container: str
    check_decoder: str
    matroska_id: str
    db_of_crf_range: float
    has_units: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)


CODECS = {
    "h264": CodecProfile("libx264", "mp4", "h264", "V_MPEG4/ISO/AVC", 31.6, has_units=True),
    "hevc": CodecProfile("libx265", "mp4", "hevc", "V_MPEGH/ISO/HEVC", 31.6, has_units=True, tags={"mp4": "hvc1"}),
    "vp9": CodecProfile("libvpx-vp9", "webm", "vp9", "V_VP9", 19.5),
    # libavcodec's own decoder needs hardware.
    "av1": CodecProfile("libsvtav1", "mp4", "libdav1d", "V_AV1", 18.0),
}


@dataclass(frozen=True, slots=True)
class ContainerProfile:
    """One container.

    Attributes:
        muxer: libavformat's muxer
        codecs: Codecs that it can hold; empty means any
        audio: Values of `--audio` that it supports
        copied_audio: Audio codecs that can be copied into it; empty means any
        milliseconds: Whether its timestamps are whole milliseconds. Others have a clock of any rate, and are seeked by
            DTS
        has_codec_delay: Whether it stores how many audio samples to discard at the start (CodecDelay of RFC 9559). In
            others, audio is cut at packets
    """

    name: str
    muxer: str
    codecs: tuple[str, ...]
    audio: tuple[str, ...]
    copied_audio: tuple[str, ...]
    options: Mapping[str, str]
    milliseconds: bool
    has_codec_delay: bool


CONTAINERS = {
    row.name: row
    for row in (
        ContainerProfile(
            "mp4",
            "mp4",
            (),
            ("copy", "aac", "opus"),
            ("aac", "mp3", "mp2", "ac3", "eac3", "dts", "opus", "flac", "alac"),
            # The index in front; B-frames as negative offsets, so that the first PTS is 0 without an edit list.
            {"movflags": "+faststart+negative_cts_offsets", "use_editlist": "0"},
            milliseconds=False,
            has_codec_delay=False,
        ),
        ContainerProfile(
            "mkv",
            "matroska",
            (),
            ("copy", "aac", "opus"),
            (),
            # bitexact: otherwise every run writes another segment UID.
            {"cues_to_front": "1", "fflags": "+bitexact"},
            milliseconds=True,
            has_codec_delay=True,
        ),
        ContainerProfile(
            "webm",
            "webm",
            ("vp9", "av1"),
            ("copy", "opus"),
            ("opus", "vorbis"),
            {"cues_to_front": "1", "fflags": "+bitexact"},
            milliseconds=True,
            has_codec_delay=True,
        ),
    )
}


SHORT_GOP = 8


@dataclass(frozen=True, slots=True)
class EncoderProfile:
    """One encoder.

    Values of `options` and `params` may contain {gop}, {qmin} (13 below the CRF up to SHORT_GOP, else 0), {threads},
    {short} and {long} (1 up to SHORT_GOP, else 0, and the reverse), and for large pictures {rows} (1: rows of blocks in
    parallel) and {pools} (threads for them, which do not change the bytes).

    Attributes:
        name: libavcodec's name
        pixel_formats: Pixel formats that it takes; the first one is the default
        crf_range: Finest and coarsest value of that option
        crf_is_whole: Whether only whole numbers are allowed
        presets: Allowed presets: names, slowest last (p1 to p7 for NVENC); or numbers, slowest first
        smallest: Smallest (width, height) that survives encoding and decoding
        params_option: Its option that takes `key=value:…`, with the entries of `params`
        params: Entries of `params_option`
        tune_params: Entries of `params_option` per tune
        ticks_per_second: Clock to which it rounds times; 0 means that it keeps any. An encoder that rounds returns
            packets in display order
        in_process: Whether PyAV includes it; else it needs `--engine ffmpeg`
        only_ffmpeg: Pixel formats that PyAV's build of it lacks
        light_params: Names of the entries of `params_option` for the mastering display and the content light level;
            None if the encoder cannot store them
        threads_when_large: libavcodec's threads for large pictures. They change the bytes, so they do not depend on the
            machine
        light_in_decimals: Whether the mastering display is written in decimals instead of integer units
    """

    name: str
    codec: str
    pixel_formats: tuple[str, ...]
    crf_option: str
    crf_range: tuple[float, float]
    crf_default: float
    crf_is_whole: bool
    preset_option: str
    presets: tuple[str, ...]
    preset_default: str
    smallest: tuple[int, int]
    options: Mapping[str, str]
    params_option: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tune_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tune_params: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    ticks_per_second: int = 0
    in_process: bool = True
    only_ffmpeg: tuple[str, ...] = ()
    light_params: tuple[str, str] | None = None
    threads_when_large: int = 1
    light_in_decimals: bool = False

    def params_of_light(self, light: HdrMetadata) -> dict[str, str]:
        """Return the entries of `params` that carry HDR metadata in the stream; empty if the encoder cannot."""
        if self.light_params is None:
            return {}
        mastering, content = self.light_params
        params = {}
        if light.mastering is not None:
            params[mastering] = light.mastering.in_decimals if self.light_in_decimals else light.mastering.in_units
        return params | ({content: str(light.content)} if light.content is not None else {})


X26X_PRESETS = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow")
NVENC_PRESETS = tuple(f"p{n}" for n in range(1, 8))
QSV_PRESETS = ("veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow")


def _nvenc(codec: str, pixel_formats: tuple[str, ...]) -> EncoderProfile:
    return EncoderProfile(
        name=f"{codec}_nvenc",
        codec=codec,
        pixel_formats=pixel_formats,
        crf_option="cq",
        crf_range=(1, 51),
        crf_default=23,
        crf_is_whole=False,
        preset_option="preset",
        presets=NVENC_PRESETS,
        preset_default="p5",
        smallest=(160, 64),
        options={"rc": "vbr", "b:v": "0", "g": "{gop}", "no-scenecut": "1", "strict_gop": "1", "forced-idr": "1"},
        in_process=False,
    )


def _qsv(codec: str, pixel_formats: tuple[str, ...]) -> EncoderProfile:
    return EncoderProfile(
        name=f"{codec}_qsv",
        codec=codec,
        pixel_formats=pixel_formats,
        crf_option="global_quality",
        crf_range=(1, 51),
        crf_default=23,
        crf_is_whole=True,
        preset_option="preset",
        presets=QSV_PRESETS,
        preset_default="medium",
        smallest=(128, 96),
        options={"g": "{gop}", "adaptive_i": "0", "idr_interval": "0"},
        in_process=False,
    )


def _videotoolbox(codec: str, pixel_formats: tuple[str, ...]) -> EncoderProfile:
    return EncoderProfile(
        name=f"{codec}_videotoolbox",
        codec=codec,
        pixel_formats=pixel_formats,
        crf_option="q:v",
        crf_range=(100, 1),
        crf_default=65,
        crf_is_whole=True,
        preset_option="",
        presets=(),
        preset_default="",
        smallest=(64, 64),
        options={"g": "{gop}"},
        in_process=False,
    )


ENCODERS = {
    row.name: row
    for row in (
        EncoderProfile(
            name="libx264",
            codec="h264",
            pixel_formats=("yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p10le"),
            crf_option="crf",
            crf_range=(0, 51),
            crf_default=20,
            crf_is_whole=False,
            preset_option="preset",
            presets=X26X_PRESETS,
            preset_default="medium",
            smallest=(2, 2),
            options={"g": "{gop}", "keyint_min": "{gop}", "sc_threshold": "0", "a53cc": "0"},
            params_option="x264-params",
            # cpu-independent: without it AVX2 and AVX-512 machines write different bytes (+0.06 % size).
            params={"open-gop": "0", "cpu-independent": "1"},
            threads_when_large=2,
            light_params=("mastering-display", "cll"),
            tune_options={"fastdecode": {"tune": "fastdecode"}},
            # x264's own `-tune psnr` turns adaptive quantisation off, which gains 1 % more by PSNR-Y and loses 3 % by SSIM. The offset is
            # what x264 subtracts only with psy.
            tune_params={
                "psnr": {
                    "psy": "0",
                    "chroma-qp-offset": "-2",
                    "aq-strength": "0.25",
                    "ipratio": "1.1",
                    "b-adapt": "0",
                    "rc-lookahead": "12",
                    "direct": "auto",
                }
            },
        ),
        EncoderProfile(
            name="libx265",
            codec="hevc",
            pixel_formats=("yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p10le"),
            crf_option="crf",
            crf_range=(0, 51),
            crf_default=18,
            crf_is_whole=False,
            preset_option="preset",
            presets=X26X_PRESETS,
            preset_default="fast",
            # Below 64 it was seen to damage the heap and to give other bytes on every run.
            smallest=(64, 64),
            options={},
            params_option="x265-params",
            params={
                "keyint": "{gop}",
                "min-keyint": "{gop}",
                "scenecut": "0",
                "open-gop": "0",
                "info": "0",
                "log-level": "error",
                "pools": "{pools}",
                "frame-threads": "{threads}",
                "wpp": "{rows}",
            },
            light_params=("master-display", "max-cll"),
            tune_options={"fastdecode": {"tune": "fastdecode"}},
            # x265's own `-tune psnr` turns adaptive quantisation off, which loses by SSIM at longer GOPs.
            tune_params={
                "psnr": {
                    "psy-rd": "0",
                    "psy-rdoq": "0",
                    "cbqpoffs": "-3",
                    "crqpoffs": "-3",
                    "aq-mode": "2",
                    "aq-strength": "0.5",
                    "ipratio": "1.15",
                    "b-adapt": "0",
                    "bframes": "3",
                    "rc-lookahead": "15",
                    "ctu": "32",
                    "rd": "3",
                    "ref": "1",
                }
            },
        ),
        EncoderProfile(
            name="libvpx-vp9",
            codec="vp9",
            pixel_formats=("yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p10le"),
            crf_option="crf",
            crf_range=(0, 63),
            crf_default=20,
            crf_is_whole=True,
            preset_option="cpu-used",
            presets=tuple(str(n) for n in range(9)),
            preset_default="4",
            smallest=(2, 2),
            only_ffmpeg=("yuv420p10le", "yuv422p10le", "yuv444p10le"),
            ticks_per_second=10_000_000,
            # One pass makes no use of look-ahead: the bytes are the same without, and the memory half.
            options={
                "g": "{gop}",
                "keyint_min": "{gop}",
                "b": "0",
                "deadline": "good",
                "row-mt": "0",
                "tile-columns": "0",
                "lag-in-frames": "0",
                "frame-parallel": "0",
            },
            tune_options={"psnr": {"qmin": "{qmin}"}},
        ),
        EncoderProfile(
            name="libsvtav1",
            codec="av1",
            pixel_formats=("yuv420p", "yuv420p10le"),
            crf_option="crf",
            crf_range=(1, 63),
            crf_default=20,
            crf_is_whole=True,
            preset_option="preset",
            presets=tuple(str(n) for n in range(14)),
            preset_default="8",
            # SVT-AV1 4.2 aborts at 8x8 and below.
            smallest=(16, 16),
            options={"g": "{gop}"},
            params_option="svtav1-params",
            light_params=("mastering-display", "content-light"),
            light_in_decimals=True,
            # With less look-ahead the bytes differ from one run to the next, in one of five for some clips. With lp=2 on a busy machine
            # SVT-AV1 4.2 hangs in one of some thousand encodes, or breaks a packet or its time.
            params={"scd": "0", "lp": "{threads}", "lookahead": "8", "hierarchical-levels": "3"},
            tune_params={
                # Temporal filtering pays where many frames refer to a keyframe, quantisation matrices where few do.
                "psnr": {"tune": "1", "enable-tf": "{long}", "enable-dlf": "2", "enable-qm": "{short}"},
                "visual": {"tune": "0"},
                "fastdecode": {"tune": "1", "fast-decode": "1"},
            },
        ),
        _nvenc("h264", ("yuv420p", "yuv444p")),
        _nvenc("hevc", ("yuv420p", "p010le", "yuv444p")),
        _nvenc("av1", ("yuv420p", "p010le")),
        _qsv("h264", ("nv12",)),
        _qsv("hevc", ("nv12", "p010le")),
        _qsv("vp9", ("nv12", "p010le")),
        _qsv("av1", ("nv12", "p010le")),
        _videotoolbox("h264", ("yuv420p", "nv12")),
        _videotoolbox("hevc", ("yuv420p", "nv12", "p010le")),
    )
}
