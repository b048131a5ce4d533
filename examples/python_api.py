"""Make a dataset, check it, report on it, and read it back: `python examples/python_api.py raw/ out/`."""

import sys
from pathlib import Path

from vidprep.formats import open_store
from vidprep.transcode import report, transcode, validate


def main(raw: Path, out: Path) -> None:
    made = transcode(raw, out / "ready", short_side=128, gop=5, on_row=lambda row: print(row.id, row.status))
    print(f"{made.ok} ok, {made.failed} failed, {made.bytes_before} -> {made.bytes_after} bytes")

    checked = validate(out / "ready", source=raw)
    print(f"{checked.checked} read again, {len(checked.faults)} faults")
    print("report:", report(out / "ready", out=out).html)

    store = open_store(out / "ready")
    for id_ in store.ids:
        frames = store[id_].frames(range(0, len(store[id_]), 5))
        print(id_, frames.shape, frames.dtype)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(print(__doc__))
    main(Path(sys.argv[1]), Path(sys.argv[2]))
