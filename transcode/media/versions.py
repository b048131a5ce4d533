"""Which libraries made an output: in every row, and in the run's settings file."""

from __future__ import annotations

import platform

from vidprep.transcode.media.ffmpeg_program import ffmpeg_version
from vidprep.transcode.settings.output import FrameOutput
from vidprep.transcode.settings.run import RunSettings


def encoder_version(settings: RunSettings, ffmpeg: str) -> str:
    """What the bytes of an output depend on beside its settings."""
    import av

    output = settings.output
    if isinstance(output, FrameOutput):
        from importlib.metadata import version  # late, as children that encode never need what it loads

        return f"PyAV {av.__version__}, " + (f"simplejpeg {version('simplejpeg')}" if output.is_coded else "raw")
    if output.engine == "ffmpeg":
        return f"ffmpeg {ffmpeg_version(ffmpeg)}, measured by PyAV {av.__version__}"
    numbers = ".".join(str(number) for number in av.library_versions["libavcodec"])
    return f"PyAV {av.__version__}, libavcodec {numbers}"


def is_of_this_pyav(encoder_version: str | None) -> bool:
    """Whether the frames of an output were made by the libraries that are here, and so are the same to the bit."""
    import av

    return encoder_version is None or f"PyAV {av.__version__}" in encoder_version.replace("measured by ", "").split(
        ", "
    )


def used_versions(settings: RunSettings, ffmpeg: str) -> dict[str, str]:
    from importlib.metadata import version

    return {
        "vidprep": version("vidprep"),
        "encoder": encoder_version(settings, ffmpeg),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
