"""The coarsest setting at which one video still reaches a PSNR or VMAF, in few encodes: interpolated, as ab-av1 does."""

from __future__ import annotations

from dataclasses import dataclass, field

from vidprep.formats.manifest.row import ManifestRow
from vidprep.transcode.settings.options import Target
from vidprep.transcode.settings.output import QualityScale

CLOSE_DB = 0.25
CLOSE_ENOUGH_DB = 2.0  # where only those below the target are made again
LOSSLESS_DB = 100.0
TRUSTED_LINES = 4


def score_of_target(row: ManifestRow, target: Target) -> float | None:
    """Return the 1st percentile that a target is about; None if the output has no score."""
    return row.psnr_y_p1_db if target.vmaf is None else row.vmaf_p1


def why_unscored(row: ManifestRow) -> str:
    """Return why an output lacks scores that were asked for; empty if it has them all."""
    return "; ".join(text for text, code in zip(row.warnings, row.warning_codes, strict=False) if code == "not_scored")


@dataclass(slots=True)
class Search:
    """State of the search for one video's setting.

    Attributes:
        scale: Values of the setting
        known: Measured 1st percentile by step
    """

    scale: QualityScale
    target: Target
    known: dict[int, float] = field(default_factory=dict)

    def record(self, step: int, reached: float) -> None:
        self.known[step] = min(reached, LOSSLESS_DB)

    @property
    def best(self) -> int | None:
        """The coarsest step that reached the target."""
        return max((step for step, db in self.known.items() if db >= self.target.floor), default=None)

    @property
    def first_miss(self) -> int | None:
        """The finest step, coarser than `best`, that missed the target."""
        best = -1 if self.best is None else self.best
        return min((step for step in self.known if step > best), default=None)

    def crossing(self) -> float:
        """Return the position where the line through the two closest trials crosses the target; after repeated misses, the
        middle between a hit and a miss.
        """
        at = self.scale.positions
        best, miss = self.best, self.first_miss
        if best is not None and miss is not None:
            one, other = best, miss
        else:
            one, *others = sorted(self.known, key=lambda step: (abs(self.known[step] - self.target.floor), -step))
            other = others[0] if others else one
        if best is not None and miss is not None and len(self.known) > TRUSTED_LINES:
            return (at[best] + at[miss]) / 2
        slope = self.scale.slope * self.target.per_db
        if LOSSLESS_DB in (self.known[one], self.known[other]):  # no point of a line
            one = other if self.known[one] == LOSSLESS_DB else one
        elif one != other:
            slope = max(slope / 4, (self.known[one] - self.known[other]) / (at[other] - at[one]))
        return min(at[-1], at[one] + (self.known[one] - self.target.floor) / slope)

    def next(self, close: float = CLOSE_DB) -> int | None:
        """Return the next step; None if `best` is good enough, or the finest step misses.

        Args:
            close: Stop at a step that exceeds the target by less, or at the coarsest that reaches it.
        """
        best, miss = self.best, self.first_miss
        low = 0 if best is None else best + 1
        high = len(self.scale.values) - 1 if miss is None else miss - 1
        if low > high or (best is not None and self.known[best] - self.target.floor < close):
            return None
        if len(self.known) == 1 and best is None:
            low = high // 2  # the usual slope may be far off, as that of VMAF is in coarse pictures
        return min(high, max(low, self.scale.step_at(self.crossing())))
