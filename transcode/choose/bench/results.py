"""Every row of `vidprep bench`: cells, simulated training, advice."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence

import av

from vidprep.transcode.choose.bench.bench import BenchOptions, Row, Say, bench
from vidprep.transcode.choose.bench.places import Place
from vidprep.transcode.choose.bench.train import advice, simulations


def results(
    places: Sequence[Place], options: BenchOptions, step_ms: float | None, batch_size: int, advise: bool, say: Say
) -> Iterator[tuple[str, Row]]:
    """Rows as they are measured, each with its kind: cell, training, advice."""
    for row in bench(places, options, say):
        yield "cell", row
    if step_ms is not None:
        for row in simulations(places, options, step_ms / 1e3, batch_size, say):
            yield "training", row
    if advise:
        for row in advice(places, options, say):
            yield "advice", row


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, PyAV {av.__version__}"
