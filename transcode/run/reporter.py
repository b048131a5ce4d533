"""Who is told what happens in a run. Nobody, unless somebody asks."""

from __future__ import annotations

from vidprep.formats.manifest.table import ManifestRow
from vidprep.transcode.destination.array_plan import Share
from vidprep.transcode.destination.partition import Part
from vidprep.transcode.run.plan import Plan
from vidprep.transcode.run.run import Summary
from vidprep.transcode.unit.job import Job


class Reporter:
    """Hears of everything, and keeps it to itself."""

    def message(self, text: str) -> None:
        """A sentence for people."""

    def found(self, count: int) -> None:
        """So many entries or rows of the source were looked at so far."""

    def share(self, part: Part, share: Share) -> None:
        """What this task of an array run takes, and in what its sources differ from the plan."""

    def start(self, plan: Plan, destination: str, backend: str) -> None:
        """Work begins."""

    def job(self, job: Job) -> None:
        """It was handed to a worker."""

    def segment(self, job: Job, made: int, count: int) -> None:
        """So many segments of a video are made, of so many."""

    def row(self, row: ManifestRow) -> None:
        """A video is done, well or not, and its row is safe on disk."""

    def finish(self, summary: Summary) -> None:
        """Work has ended."""
