"""`doctor`: try everything that a run needs. A rotated clip with audio goes through each engine and into a burst store.

It uses the same functions as a run, `validate` and `open_store`. No library that might be broken is imported before it
is tried.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vidprep.formats.errors import VerifyError, VidprepError
from vidprep.formats.processes import DiedError, Process
from vidprep.formats.profiles import CODECS, CONTAINERS, ENCODERS
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.media.ffmpeg_program import ffmpeg_version, find_ffmpeg, has_encoder
from vidprep.transcode.settings.output import FrameOutput, VideoOutput
from vidprep.transcode.settings.run import RunSettings

PYAV_MAJORS = ("18", "19")
# Distribution, and the module that fails where it is broken.
LIBRARIES = {
    "av": "av",
    "click": "click",
    "ffmpeg-python": "ffmpeg",
    "imageio-ffmpeg": "imageio_ffmpeg",
    "joblib": "joblib",
    "numpy": "numpy",
    "pyarrow": "pyarrow.parquet",
    "simplejpeg": "simplejpeg",
    "tqdm": "tqdm",
}
EXTRAS = {
    "report": ("itables", "jinja2", "PIL", "plotly"),
    "monitor": ("rich",),
    "dask": ("distributed",),
    "ray": ("ray",),
    "s3": ("s3fs",),
    "bench": ("torchcodec", "decord", "cv2", "webdataset"),
}
FREE_BYTES = 1 << 30
GOP = 5
WIDTH, HEIGHT, NUM_FRAMES = 128, 96, 12
# Lossy codecs keep these apart: the corner that is bright, and the other three.
BRIGHT, DARK = 160, 90


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one test of `doctor`.

    Attributes:
        what: Name of the test
        ok: Whether it passed
        detail: What was measured, or the error
        advice: What to do if it failed
        needed: Whether a run cannot work without it
    """

    what: str
    ok: bool
    detail: str
    advice: str = ""
    needed: bool = True


def examine(asked_ffmpeg: str | Path | None) -> Iterator[Finding]:
    """Yield the result of each test of this machine. Ends early if a library that all of them need is broken."""
    yield _system()
    broken = False
    for library, module in LIBRARIES.items():
        finding = _library(library, module)
        broken |= not finding.ok
        if not finding.ok or library == "av":
            yield finding
    if broken:
        return
    yield Finding("libraries", True, ", ".join(f"{name} {version(name)}" for name in LIBRARIES if name != "av"))
    with tempfile.TemporaryDirectory(prefix="vidprep-doctor-") as name:
        yield from trials(Path(name), asked_ffmpeg)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    yield Finding(
        "temporary folder",
        free > FREE_BYTES,
        f"{free / 1e9:.1f} GB free in {tempfile.gettempdir()}",
        "make room there, or set TMPDIR to a folder with more",
        needed=False,
    )
    for extra, modules in EXTRAS.items():
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        yield Finding(
            f"vidprep[{extra}]",
            not absent,
            "installed" if not absent else f"{', '.join(absent)} not installed",
            f"pip install 'vidprep[{extra}]' if you need it",
            needed=False,
        )
    if importlib.util.find_spec("torchcodec") is not None:
        yield _torchcodec()


def _system() -> Finding:
    system = platform.system()
    detail = f"{system} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    if system == "Darwin":
        detail += "; macOS is best effort"
    return Finding("system", system in ("Linux", "Darwin"), detail, "run vidprep in WSL, or on Linux")


def _library(library: str, module: str) -> Finding:
    try:
        importlib.import_module(module)
        installed = version(library)
    except Exception as error:  # noqa: BLE001 (whatever a broken library raises is the finding)
        installed = "not installed" if isinstance(error, PackageNotFoundError) else _first_line(error)
        return Finding(library, False, installed, f"pip install --force-reinstall {library}")
    if library != "av":
        return Finding(library, True, installed)
    import av

    numbers = ", ".join(f"{name} {'.'.join(map(str, parts))}" for name, parts in sorted(av.library_versions.items()))
    is_known = installed.split(".")[0] in PYAV_MAJORS
    return Finding("PyAV", is_known, f"{installed} ({numbers})", "pip install 'av>=18.1,<20'")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def trials(folder: Path, asked_ffmpeg: str | Path | None) -> Iterator[Finding]:
    """Yield a test for every codec, for burst and for ffmpeg. Each runs when it is requested.

    Args:
        folder: An empty folder.
        asked_ffmpeg: The ffmpeg program; None searches for one.
    """
    reinstall = "pip install --force-reinstall"
    sources = folder / "sources"
    sources.mkdir()
    try:
        _write_clip(sources / "clip.mp4")
    except Exception as error:  # noqa: BLE001 (the same)
        yield Finding("PyAV writes a clip", False, _first_line(error), f"{reinstall} 'av>=18.1,<20'")
        return
    for codec, encoder in ((name, row.encoder) for name, row in CODECS.items()):
        options = EncoderOptions(codec=codec, gop=GOP)
        settings = RunSettings(VideoOutput(options, audio=CONTAINERS[options.container_name].audio[1]))
        advice = f"{reinstall} 'av>=18.1,<20', or take another --codec"
        yield _try_settings(codec, folder, settings, f"{encoder} makes it with audio", advice)
    yield _try_settings("burst", folder, RunSettings(FrameOutput()), "JPEGs", f"{reinstall} simplejpeg")
    engine = "--engine ffmpeg"
    try:
        binary = find_ffmpeg(asked_ffmpeg)
        built = [row.name for row in ENCODERS.values() if has_encoder(binary, row.name)]
        yield Finding("ffmpeg", True, f"{ffmpeg_version(binary)} at {binary}, built with {', '.join(built)}")
    except VidprepError as error:
        advice = (
            "correct --ffmpeg, or leave it out"
            if asked_ffmpeg
            else f"{reinstall} imageio-ffmpeg, or give --ffmpeg the path of one"
        )
        yield Finding("ffmpeg", False, error.message, advice, needed=asked_ffmpeg is not None)
        return
    if CODECS["h264"].encoder in built:
        settings = RunSettings(VideoOutput(EncoderOptions(gop=GOP), engine="ffmpeg"))
        advice = "give --ffmpeg the path of another ffmpeg, or take --engine av"
        yield _try_settings(engine, folder, settings, "libx264 makes it", advice, ffmpeg=binary, needed=False)
    else:
        advice = "give --ffmpeg the path of an ffmpeg with libx264, or name an --encoder that it has"
        yield Finding(engine, False, f"{binary} was built without libx264", advice, needed=False)


def _try_settings(
    what: str, folder: Path, settings: RunSettings, done: str, advice: str, *, ffmpeg: str = "", needed: bool = True
) -> Finding:
    """Encode the clip with these settings, validate it against its source, and read frames by number; return the result."""
    destination = folder / what.lstrip("-").replace(" ", "-")
    try:
        db = _make_and_verify(folder / "sources", destination, settings, ffmpeg)
    except Exception as error:  # noqa: BLE001 (the same)
        detail = error.message if isinstance(error, VidprepError) else _first_line(error)
        return Finding(what, False, f"does not work: {detail}", advice, needed=needed)
    return Finding(what, True, f"{done}, validated and read back upright ({db:.1f} dB)", needed=needed)


def _make_and_verify(sources: Path, destination: Path, settings: RunSettings, ffmpeg: str) -> float:
    """Encode the clip, read it back and return its PSNR-Y in dB. Raises VerifyError for a wrong result."""
    from vidprep.formats.stores.registry import open_store
    from vidprep.formats.video.source import open_video
    from vidprep.transcode.check.validate import ValidateOptions, check_destination
    from vidprep.transcode.run.target import run_trial
    from vidprep.transcode.settings.run import SourceOptions
    from vidprep.transcode.sources.listing import find_sources
    from vidprep.transcode.workers.local import workers_of

    sources_found = find_sources(sources, destination, SourceOptions(), extension=settings.output.extension)
    with workers_of("local", None, 1, lambda _text: None) as workers:
        (row,) = run_trial(settings, sources_found.units, destination, workers, ffmpeg=ffmpeg)
    if not row.ok:
        raise VerifyError(f"{row.stage}: {row.message}")
    faults: list[str] = []
    units = {unit.id: unit for unit in sources_found.units}
    check_destination(destination, units, ValidateOptions(), jobs=1, on_fault=faults.append)
    if faults:
        raise VerifyError(f"validate: {faults[0]}")
    store = open_store(destination)
    _check_pictures(lambda numbers: store["clip"].frames(numbers))
    if settings.output.audio != "drop":
        with open_video(destination / row.file_name) as container:
            if not container.streams.audio:
                raise VerifyError(f"its audio is lost ({'; '.join(row.warnings)})")
    assert row.psnr_y_db is not None
    return row.psnr_y_db


def _write_clip(path: Path) -> None:
    """Write moving pictures rotated by a quarter turn, with a display matrix that turns them upright, and a tone.

    It uses libavcodec's own encoders, which work even if others are broken.
    """
    from fractions import Fraction

    import numpy as np
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

    from vidprep.formats.video.pyav import open_output
    from vidprep.formats.video.source import file_url

    rate, samples = 25, 1024
    with open_output(file_url(path), format="mp4", options={}) as container:
        video, audio = container.add_stream("mpeg4", rate=rate), container.add_stream("aac", rate=48_000)
        assert isinstance(video, VideoStream)
        assert isinstance(audio, AudioStream)
        video.width, video.height, video.pix_fmt, video.bit_rate = WIDTH, HEIGHT, "yuv420p", 2_000_000
        audio.layout = "mono"
        for number in range(NUM_FRAMES):
            picture = np.full((HEIGHT * 3 // 2, WIDTH), 128, np.uint8)
            picture[:HEIGHT] = 40 + (np.arange(WIDTH) + 3 * number) % 32
            picture[: HEIGHT // 2, : WIDTH // 2] += 140
            frame = VideoFrame.from_ndarray(picture, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        for number in range(48_000 * NUM_FRAMES // rate // samples):
            wave = 0.2 * np.sin(np.arange(number * samples, (number + 1) * samples) * 0.05)
            block = AudioFrame.from_ndarray(wave.astype(np.float32)[None], format="fltp", layout="mono")
            block.sample_rate, block.pts, block.time_base = 48_000, number * samples, Fraction(1, 48_000)
            container.mux(audio.encode(block))
        container.mux(audio.encode(None))
    _rotate(path)


def _rotate(path: Path) -> None:
    """Set the display matrix of the first track to a quarter turn clockwise: ISO/IEC 14496-12, 8.3.2, version 0."""
    import struct

    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 40
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, HEIGHT << 16, 0, 1 << 30)
    path.write_bytes(data)


def _check_pictures(read: Callable[[list[int]], object]) -> None:
    """Check that the bright corner is the upper right one, as in the upright picture. Raises VerifyError."""
    import numpy as np

    pictures = np.asarray(read([0, NUM_FRAMES // 2, -1]))
    if pictures.shape != (3, WIDTH, HEIGHT, 3):
        raise VerifyError(f"frames come back as {pictures.shape}, not {(3, WIDTH, HEIGHT, 3)}")
    half, middle = WIDTH // 2, HEIGHT // 2
    for picture in pictures.mean(-1):
        bright, rest = picture[:half, middle:].mean(), (picture[half:], picture[:half, :middle])
        if bright < BRIGHT or any(part.mean() > DARK for part in rest):
            raise VerifyError("frames come back turned, or in other colours")


def _torchcodec() -> Finding:
    """Try torchcodec in a child process: torch may crash a process in which it cannot load, and prints warnings at exit."""
    from vidprep.transcode.check.other_readers import TORCHCODEC_ADVICE

    with tempfile.TemporaryFile() as output, closing(Process(output=output)) as process:
        try:
            process.begin(_import_torchcodec).result()
        except Exception as error:  # noqa: BLE001 (the same)
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            if isinstance(error, DiedError):
                output.seek(0)
                lines = output.read().decode(errors="replace").splitlines() or [f"exit code {error.exit_code}"]
                why = lines[-1]
            return Finding("torchcodec", False, f"does not load: {why}", TORCHCODEC_ADVICE, needed=False)
    return Finding("torchcodec", True, version("torchcodec"), needed=False)


def _import_torchcodec() -> None:
    import torchcodec.decoders  # noqa: F401
