"""Messages for files that contain something else: text, a picture, a playlist; with what to do."""

from __future__ import annotations

import re
from contextlib import suppress

from vidprep.formats.storage.untrusted import open_regular

LINE_BYTES = 4096
ARCHIVES = {b"PK\x03\x04": "a ZIP archive", b"\x1f\x8b": "compressed by gzip", b"7z\xbc\xaf\x27\x1c": "a 7z archive"}
PLAYLISTS = {"concat", "hls", "dash", "imf", "sdp", "rtsp", "applehttp", "ffmetadata"}
LISTS = "a list of videos is a .csv, .tsv, .parquet or .jsonl with a column `path`"
NUMBERED_PICTURES = "--source-fps R takes a folder of numbered pictures as a video"


def why_refused(path: str, demuxer: str) -> str:
    """Return why a file is rejected that libavformat would open with a demuxer for something else than video.

    Args:
        path: The file.
        demuxer: libavformat's name of the demuxer; "" if unknown.
    """
    names = set(demuxer.split(","))
    if names & PLAYLISTS:
        return f"refused: its content is a playlist or a script, which could name other files ({demuxer})"
    if demuxer == "webp_pipe":
        return f"is a WebP picture, and animated ones are read with FFmpeg 9 and newer; {NUMBERED_PICTURES}"
    if demuxer.endswith("_pipe") or names & {"image2", "ico"}:
        return f"is a picture ({demuxer.removesuffix('_pipe')}), not a video; {NUMBERED_PICTURES}"
    if text := text_in_place(path):
        return f"is not a video: {text}"
    return f"is not a video: by its content it is {demuxer or 'something else'}"


def text_in_place(path: str) -> str:
    """Return what a file is instead of a video: an archive, a Git LFS pointer, a web page or other text; "" if it is none
    of these.

    The text itself is not shown: the file may be a link to private data.
    """
    line = ""
    with suppress(OSError, UnicodeDecodeError), open_regular(path) as file:
        head = file.readline(LINE_BYTES)
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            return f"it is text in UTF-16; {LISTS}, in UTF-8"
        if archive := next((name for begin, name in ARCHIVES.items() if head.startswith(begin)), ""):
            return f"it is {archive}; unpack it"
        line = head.decode("utf-8-sig").strip()
    if not line.isprintable() or not line:
        return ""
    if line.startswith("version https://git-lfs"):
        return "it is a Git LFS pointer; `git lfs pull` fetches the video"
    if line.lower().startswith(("<!doctype html", "<html")):
        return "it is a web page; fetch the video again"
    return f"it is text; {LISTS}"


def undecodable_tag(log: list[tuple[int, str, str]]) -> str:
    """Return the codec tag that libavformat does not know, from its log; "" without one."""
    match = re.search(r"Video: none \((.{4}) / 0x", "\n".join(text for _, _, text in log))
    return match[1] if match else ""
