"""Seeds to mutants, mutants to batches, one way of making for each batch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.mutants import mutant
from tests.fuzz.oracle import WAYS, Batch, Finding
from tests.witness import Ffmpeg

BATCH = 100


@dataclass(slots=True)
class Done:
    conversions: int = 0
    ok: int = 0
    seconds: float = 0.0
    found: list[Finding] = field(default_factory=list)

    def of(self, *kinds: str) -> list[str]:
        return [str(finding) for finding in self.found if finding.kind in kinds]

    def __str__(self) -> str:
        rate = self.conversions / max(self.seconds, 1e-9)
        return f"{self.conversions} conversions, {self.ok} ok, {len(self.found)} findings, {rate:.1f} conversions/s"


def fuzz(
    clips: Mapping[str, bytes],
    seeds: Sequence[int],
    cli: Ffmpeg,
    folder: Path,
    *,
    batch: int = BATCH,
    ways: Sequence[str] | None = None,
    options: Sequence[object] = (),
    show: Callable[[str], object] = lambda _line: None,
) -> Done:
    """The seed chooses the clip, the number of the batch the way. show: gets a line for each finding and each batch."""
    names, ways, done = sorted(clips), ways or list(WAYS), Done()
    for number, first in enumerate(range(0, len(seeds), batch)):
        mutants = [mutant(name := names[seed % len(names)], clips[name], seed) for seed in seeds[first : first + batch]]
        way = ways[(seeds[first] // batch) % len(ways)]
        place = folder / f"batch{number}"
        begun = time.monotonic()
        made = Batch(place, mutants, way, cli, *options)
        made.run()
        done.conversions += len(mutants)
        done.ok += made.num_ok
        done.seconds += time.monotonic() - begun
        done.found += made.found
        shutil.rmtree(place)
        for finding in made.found:
            show(str(finding))
        show(f"seeds {seeds[first]}-{mutants[-1].seed}: {way}: {made.num_ok} of {len(mutants)} ok; {done}")
    return done
