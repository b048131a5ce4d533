"""`make compat`: vidprep from a wheel and from its sources, in fresh environments, on every other Python here and with the lowest versions.

Each environment runs session.py, and reads what the one before it made. VIDPREP_REQUIRE=1: fewer than three Pythons fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import imageio_ffmpeg

MINORS = (11, 12, 13, 14)
NEEDED_PYTHONS = 3
SECONDS_ALLOWED = 90
EXTRAS = "report,monitor,dask"
ROOT = Path(__file__).parents[2]
CLIPS = {
    "moving.mp4": [
        "-f",
        "lavfi",
        "-i",
        "testsrc2=size=192x144:rate=30:duration=1.4",
        "-f",
        "lavfi",
        "-i",
        "sine=duration=1.4:sample_rate=44100",
        "-c:v",
        "libx264",
        "-c:a",
        "aac",
    ],
    "a/wide.mkv": [
        "-f",
        "lavfi",
        "-i",
        "mandelbrot=size=240x128:rate=25",
        "-t",
        "1.2",
        "-c:v",
        "libx265",
        "-x265-params",
        "log-level=error",
    ],
}


def pythons() -> dict[int, str]:
    """A working interpreter of each version, by its minor number: on PATH, or under pyenv's folder."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for minor in MINORS:
        candidates = [shutil.which(f"python3.{minor}"), *sorted(map(str, pyenv.glob(f"3.{minor}.*/bin/python")))]
        for candidate in filter(None, candidates):
            told = subprocess.run(
                [candidate, "-c", "import sys, venv; print(sys.version_info[1])"],
                capture_output=True,
                text=True,
                check=False,
            )
            if told.stdout.strip() == str(minor):
                found[minor] = candidate
    return found


def uv(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "uv", *map(str, words)], check=True, cwd=ROOT)


def write_clips(folder: Path) -> None:
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-loglevel", "error", "-nostdin"]
    for name, words in CLIPS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*ffmpeg, *words, folder / name], check=True)
    turned = ["-display_rotation", "90", "-i", folder / "moving.mp4", "-c", "copy", folder / "rotated.mp4"]
    subprocess.run([*ffmpeg, *turned], check=True)


def build(folder: Path) -> dict[str, Path]:
    """A wheel and a source distribution, from a copy: a build leaves its own folders in the tree."""
    copy = folder / "tree"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "tests", "*-out"))
    uv("build", "--quiet", "--out-dir", folder, copy)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def check_installed(python: Path) -> None:
    """What is installed is found in the root of a clone, too, where folders have names of packages; and so is the command."""
    script = "import vidprep.formats, vidprep.transcode; print(vidprep.__file__, vidprep.formats.__file__)"
    ran = subprocess.run([python, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all("site-packages" in path for path in ran.stdout.split()), ran.stdout
    subprocess.run([python.with_name("vidprep"), "--version"], cwd=ROOT, check=True)


def main() -> None:
    found = pythons()
    print("compat: Pythons here:", ", ".join(f"3.{minor} ({path})" for minor, path in found.items()), flush=True)
    if os.environ.get("VIDPREP_REQUIRE") and len(found) < NEEDED_PYTHONS:
        sys.exit(f"compat: {NEEDED_PYTHONS} Pythons of 3.{MINORS[0]} to 3.{MINORS[-1]} are needed, {len(found)} found")
    own = sys.version_info[1]  # the whole suite runs there
    lowest = min(found)
    environments = [(f"3.{minor}-newest", path, ()) for minor, path in found.items() if minor != own]
    environments.insert(0, (f"3.{lowest}-lowest", found[lowest], ("--resolution", "lowest-direct")))
    with tempfile.TemporaryDirectory(prefix="vidprep-compat-") as name:
        folder = Path(name)
        built = build(folder)
        write_clips(folder / "clips")
        before: Path | None = None
        for number, (label, python, how) in enumerate(environments):
            place, out = folder / f"venv-{label}", folder / label
            uv("venv", "--quiet", "--python", python, place)
            kind = "sdist" if number == len(environments) - 1 else "wheel"
            package = f"vidprep[{EXTRAS}] @ {built[kind].as_uri()}"
            uv("pip", "install", "--quiet", "--python", place / "bin" / "python", *how, package)
            check_installed(place / "bin" / "python")
            out.mkdir()
            started = time.monotonic()
            others = [before] if before else []
            command = [place / "bin" / "python", Path(__file__).with_name("session.py"), folder / "clips", out, *others]
            done = subprocess.run(command, cwd=folder, check=False)
            seconds = time.monotonic() - started
            print(f"compat: {label}: {'ok' if done.returncode == 0 else 'FAILED'} in {seconds:.0f} s", flush=True)
            if done.returncode:
                sys.exit(1)
            if seconds > SECONDS_ALLOWED:
                print(f"compat: {label} took more than {SECONDS_ALLOWED} s; make session.py shorter", flush=True)
            before = out


if __name__ == "__main__":
    main()
