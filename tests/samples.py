"""Sample outputs of the documents: `make samples` runs their commands on the clips of the demo, and writes what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md",)
SAMPLE = re.compile(r"(?ms)^```text\n((?:# [^\n]*\n)?\$ .*?)^```")
LEFT_OUT = ("vidprep: warning:", "vidprep: note:")


def sampled(text: str, clips: Path) -> str:
    """Return a document with its samples printed again, by the vidprep of this Python, in a folder where raw/ has the clips."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "raw").symlink_to(clips.resolve())
        return SAMPLE.sub(lambda block: f"```text\n{_printed(block[1], folder)}```", text)


def _printed(sample: str, folder: str) -> str:
    lines = []
    for line in sample.splitlines():
        if line.startswith("# "):
            lines.append(line)
        elif line.startswith("$ "):
            env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            ran = subprocess.run(line[2:], shell=True, cwd=folder, env=env, check=True, stdout=-1, stderr=-2, text=True)
            lines += [line, *(each for each in ran.stdout.splitlines() if not each.startswith(LEFT_OUT))]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(sampled(document.read_text(), Path(sys.argv[1])))
