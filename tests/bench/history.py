"""The ratios of `make bench`, kept where BENCH_KEEP=1 asks for it: one line each in history.csv, with commit and versions.

BENCH_KEEP=1 make bench
python tests/bench/history.py       the newest figure of each name, and the one before it; `make generated` puts it into README.md
"""

from __future__ import annotations

import csv
import datetime
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

FILE = Path(__file__).with_name("history.csv")
COLUMNS = ("date", "commit", "cores", "processor", "python", "pyav", "name", "value")


def keep(name: str, value: float) -> None:
    if os.environ.get("BENCH_KEEP") != "1":
        return
    is_new = not FILE.exists()
    with FILE.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        writer.writerow([*_here(), name, f"{value:.4g}"])


@cache
def _here() -> tuple[str, ...]:
    """A tree that differs from its commit, in more than this history, says so."""
    root = FILE.resolve().parents[2]
    git, others = ["git", "-C", str(root)], f":!{FILE.resolve().relative_to(root)}"
    commit = subprocess.run([*git, "describe", "--always"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", others], check=False).returncode
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        today,
        commit.stdout.strip() + "+" * changed,
        str(cores),
        _processor(),
        platform.python_version(),
        version("av"),
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def table() -> str:
    """The newest figure of each name, the one before it, and where the newest was measured."""
    with FILE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = ["| figure | newest | before | commit |", "| --- | --- | --- | --- |"]
    for name in dict.fromkeys(row["name"] for row in rows):
        *before, newest = [row for row in rows if row["name"] == name]
        was = f"{float(before[-1]['value']):.2f}" if before else ""
        lines.append(f"| {name} | {float(newest['value']):.2f} | {was} | {newest['commit']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
