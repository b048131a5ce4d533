"""One vidprep run over many mutants, and what is wrong with what it says and leaves behind.

The witnesses are the ffmpeg program (what a mutant and an output decode to, and what it warns about), OpenCV for stored
frames, and psutil for processes. Of vidprep only `open_store` is called, to be judged.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq

from tests.fuzz.mutants import Mutant
from tests.helpers import command, environment, leftovers, no_processes_left
from tests.witness import Ffmpeg
from vidprep.formats import errors, open_store

# Way of making -> arguments. Names end up in what is found.
WAYS: dict[str, tuple[object, ...]] = {
    "transcode": ("transcode", "--preset", "ultrafast"),
    "fps": ("transcode", "--preset", "ultrafast", "--fps", 15, "--gop", 5),
    "mkv": ("transcode", "--preset", "ultrafast", "--container", "mkv", "--audio", "aac"),
    "vp9": ("transcode", "--codec", "vp9", "--preset", "8", "--gop", 4),
    "burst": ("burst",),
    "tensor": ("burst", "--format", "tensor", "--fps", 12),
    "webdataset": ("burst", "--format", "webdataset"),
    "ffmpeg": ("transcode", "--engine", "ffmpeg", "--preset", "ultrafast"),
    "split": ("transcode", "--preset", "ultrafast", "--segment", 1, "--gop", 2),
}
RUN_SECONDS = 900
LARGEST_FILE = 300_000_000
# What ffmpeg says of files that are whole, or of its own output.
HARMLESS = re.compile(
    r"deprecated pixel format|\[(null|vost|out|vf|auto_scale|swscaler|scale|format)|Could not find codec parameters|"
    r"Consider increasing|Guessed Channel Layout|Last message repeated|non monoton|Application provided|Output file|"
    r"video:\d|analyzeduration|Unknown cover|creation time before 1970|Odd rotation angle|keyframe not correctly marked|broken or empty index|upload a sample|unsupported stream type|Ignoring attempt to set invalid timebase|"
    r"Something went wrong during header parsing|refer to a non-existent track|ELST atom of|timescale not set|^\s*$"
)
# What the row says of times that were mended, and what ffmpeg says of the same times.
TIMES_MENDED = re.compile(r"timestamp|time jumped back")
TIMES = re.compile(
    r"out of order|[Ii]nvalid timestamps|DTS discontinuity in stream|invalid dropping|timestamp discontinuity"
)
OURS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.VidprepError)}
# From where numbers are read: a store is asked for the first, the last, some between, and neighbours.
READ_NUMBERS = (0, 1, -1, 0.5, 0.7)
EXACT = "bilinear+accurate_rnd+full_chroma_int+full_chroma_inp+bitexact"
NEIGHBOURS = 16


@dataclass(frozen=True, slots=True)
class Finding:
    """kind: run, row, internal, crash, leftover, orphan, output, number, silent. seed and clip make the mutant again."""

    kind: str
    way: str
    text: str
    clip: str = ""
    seed: int = -1
    done: str = ""

    def __str__(self) -> str:
        where = f"{self.clip} {self.seed} ({self.done})" if self.clip else "the run"
        return f"{self.kind}: {self.way}: {where}: {self.text}"


class Batch:
    """folder: empty, for sources and destination."""

    def __init__(self, folder: Path, mutants: Sequence[Mutant], way: str, ffmpeg: Ffmpeg, *options: object) -> None:
        self.way, self.ffmpeg = way, ffmpeg
        self.source, self.destination = folder / "src", folder / "dst"
        self.mutants = {mutant.id: mutant for mutant in mutants}
        self.source.mkdir(parents=True)
        for mutant in mutants:
            (self.source / mutant.name).write_bytes(mutant.data)
        self.options = [*WAYS[way], *options]
        if way == "ffmpeg":
            self.options += ["--ffmpeg", ffmpeg.exe]
        self.found: list[Finding] = []
        self.num_ok = 0

    def find(self, kind: str, text: str, id_: str = "") -> None:
        mutant = self.mutants.get(id_)
        if mutant is None:
            self.found.append(Finding(kind, self.way, f"{id_} {text}".strip()))
        else:
            self.found.append(Finding(kind, self.way, text, mutant.clip, mutant.seed, mutant.done))

    def run(self) -> list[Finding]:
        verb, *options = self.options
        process = subprocess.Popen(
            command(self.source, self.destination, *options, "--quiet", "--timeout", 300, verb=str(verb)),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_limit_files,
        )
        try:
            _, said = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            self.find("run", f"not finished after {RUN_SECONDS} s")
            return self.found
        if process.returncode not in (0, 1) or "Traceback" in said:
            self.find("run", f"exit code {process.returncode}: {said[-1500:]}")
        try:
            no_processes_left(process.pid)
        except AssertionError as error:
            self.find("orphan", str(error))
        if left_files := leftovers(self.destination):
            self.find("leftover", str(left_files))
        try:
            rows = pq.read_table(self.destination / "manifest.parquet").to_pylist()
        except (OSError, ValueError) as error:
            self.find("run", f"its manifest cannot be read: {error}; {said[-1500:]}")
            return self.found
        self._judge(rows)
        return self.found

    def _judge(self, rows: list[dict[str, Any]]) -> None:
        ids = [row["id"] for row in rows]
        for id_ in {*self.mutants} ^ {*ids} | {id_ for id_ in ids if ids.count(id_) > 1}:
            self.find("row", f"{ids.count(id_)} rows", id_)
        good = [row for row in rows if row["status"] == "ok"]
        self.num_ok = len(good)
        for row in rows:
            if row["status"] != "ok":
                self._judge_failure(row)
        if not good:
            return
        try:
            store = open_store(self.destination)
        except (errors.VidprepError, OSError) as error:
            self.find("run", f"open_store: {error}")
            return
        stored = "frame_sizes" in good[0] and self.options[0] == "burst"
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda row: self._judge_output(row, store, stored=stored), good))
            list(threads.map(self._judge_silence, good))

    def _judge_failure(self, row: dict[str, Any]) -> None:
        message = row["message"] or ""
        if row["error"] not in OURS or ".py:" in message or not message:
            self.find("internal", f"{row['error']}: {message}", row["id"])
        elif row["error"] in ("CrashedError", "DeadlineError"):
            self.find("crash", f"{row['error']}: {message}", row["id"])

    def _judge_output(self, row: dict[str, Any], store: Any, *, stored: bool) -> None:
        id_, count = row["id"], row["num_frames"]
        try:
            witness = self._stored_frames(row) if stored else self._decoded_frames(row)
        except (AssertionError, OSError, ValueError) as error:
            self.find("output", f"does not decode: {error}", id_)
            return
        if witness is not None and len(witness) != count:
            self.find("output", f"{len(witness)} frames decode, the row says {count}", id_)
            return
        numbers = sorted(
            {int(at * count) if isinstance(at, float) else at % count for at in READ_NUMBERS} | _closest(row)
        )
        try:
            frames = store[id_].frames(numbers)
            if len(store[id_]) != count:
                self.find("number", f"the store has {len(store[id_])} frames, the row says {count}", id_)
        except (errors.VidprepError, OSError, ValueError, KeyError) as error:
            self.find("number", f"{type(error).__name__}: {error}", id_)
            return
        if frames.shape[1:] != (row["height"], row["width"], 3):
            self.find("number", f"frames of {frames.shape}", id_)
        elif witness is not None:
            for number, frame in zip(numbers, frames, strict=True):
                first = max(0, number - NEIGHBOURS)
                around = witness[first : number + NEIGHBOURS + 1].astype(np.int16)
                distances = np.abs(around - frame).mean(axis=(1, 2, 3))
                distance, best = distances[number - first], int(distances.argmin())
                if distance > distances[best] + 0.5 or distance > 12:
                    text = f"frame {number} is {distance:.1f} away, frame {first + best} {distances[best]:.1f}"
                    self.find("number", text, id_)
                    return

    def _decoded_frames(self, row: dict[str, Any]) -> np.ndarray:
        """All frames of an output (T, H, W, 3) by the ffmpeg program; what it says of keyframes is judged."""
        path = self.destination / row["file_name"]
        done = subprocess.run(
            [
                self.ffmpeg.exe,
                "-hide_banner",
                "-nostdin",
                "-threads",
                "1",
                "-i",
                str(path),
                "-map",
                "0:v",
                "-vf",
                f"showinfo=checksum=0,scale=flags={EXACT}",
                "-fps_mode",
                "passthrough",
                "-pix_fmt",
                "rgb24",
                "-f",
                "rawvideo",
                "-",
            ],
            capture_output=True,
            check=False,
            timeout=300,
        )
        told = done.stderr.decode(errors="replace")
        assert done.returncode == 0, told[-500:]
        if wrong := [line for line in told.splitlines() if " error" in line.lower()]:
            self.find("output", f"ffmpeg says {wrong[0]}", row["id"])
        keyframes = [n for n, flag in enumerate(re.findall(r"iskey:(\d)", told)) if flag == "1"]
        if keyframes != row["keyframes"]:
            self.find("output", f"keyframes {keyframes[:9]}, the row says {row['keyframes'][:9]}", row["id"])
        size = (row["height"], row["width"], 3)
        if f" s:{row['width']}x{row['height']} " not in told:
            self.find("output", f"is not {row['width']}x{row['height']}", row["id"])
        return np.frombuffer(done.stdout, np.uint8).reshape(-1, *size)

    def _stored_frames(self, row: dict[str, Any]) -> np.ndarray | None:
        """All frames of a burst or tensor by OpenCV and numpy; None of what holds more than frames back to back."""
        if row["container"] not in ("burst", "tensor"):
            return None
        data = (self.destination / row["file_name"]).read_bytes()
        at, frames = row["offset"], []
        for size in row["frame_sizes"]:
            piece = np.frombuffer(data[at : at + size], np.uint8)
            if row["container"] == "tensor":
                frames.append(piece.reshape(row["height"], row["width"], 3))
            else:
                picture = cv2.imdecode(piece, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
                assert picture is not None, f"frame {len(frames)} does not decode"
                frames.append(picture[..., ::-1])
            at += size
        return np.stack(frames)

    def _judge_silence(self, row: dict[str, Any]) -> None:
        """What ffmpeg warns about when it decodes the mutant must be damage in the row."""
        if any(text.startswith("damaged") for text in row["warnings"] or ()):
            return
        path = self.source / self.mutants[row["id"]].name
        try:
            done = subprocess.run(
                [
                    self.ffmpeg.exe,
                    "-hide_banner",
                    "-nostdin",
                    "-v",
                    "warning",
                    "-threads",
                    "1",
                    "-i",
                    str(path),
                    "-an",
                    "-sn",
                    "-dn",
                    "-fps_mode",
                    "passthrough",
                    "-f",
                    "null",
                    "-",
                ],
                capture_output=True,
                check=False,
                timeout=300,
            )
        except subprocess.TimeoutExpired:
            return
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if not HARMLESS.search(line)]
        if any(TIMES_MENDED.search(text) for text in row["warnings"] or ()):
            lines = [line for line in lines if not TIMES.search(line)]
        if lines:
            self.find("silent", f"ffmpeg says {lines[0].strip()}", row["id"])


def _closest(row: dict[str, Any]) -> set[int]:
    """The two neighbours that are nearest in time."""
    pts = row.get("pts")
    if not pts or len(pts) < 2:
        return set()
    first = int(np.diff(pts).argmin())
    return {first, first + 1}


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
