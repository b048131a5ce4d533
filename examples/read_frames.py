"""Read the same random frames from each store: python examples/read_frames.py STORE…"""

from __future__ import annotations

import random
import sys
import time

from vidprep.formats import open_store


def main() -> None:
    for path in sys.argv[1:]:
        store = open_store(path)
        rng, count, started = random.Random(0), 0, time.perf_counter()
        for _ in range(50):
            video = store[rng.choice(store.ids)]
            start = rng.randrange(max(1, len(video) - 7))
            count += len(video.frames(slice(start, start + 8)))
        seconds = time.perf_counter() - started
        print(f"{path}: 50 random sequences, {count} frames, {seconds / 50 * 1000:.1f} ms a sequence")


if __name__ == "__main__":
    if set(sys.argv[1:]) <= {"-h", "--help"}:
        sys.exit(print(__doc__))
    main()
