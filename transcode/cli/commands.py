"""The commands: the file of each, and what it does. All but `show` and `monitor` are functions of `vidprep.transcode` too."""

from __future__ import annotations

COMMANDS = {
    "transcode": ("make", "Re-encode videos into a verified dataset."),
    "burst": ("make", "Store frames as JPEGs in large shards."),
    "show": ("check", "Print what was made, warned about and failed."),
    "validate": ("check", "Check a finished dataset again, from its bytes."),
    "report": ("check", "Make a page about one or more datasets."),
    "bench": ("bench", "Time loaders on datasets, side by side."),
    "sweep": ("choose", "Measure many settings on a sample of videos."),
    "tune": ("choose", "Recommend settings for how a network reads."),
    "label": ("manage", "Add, change and remove labels."),
    "pack": ("manage", "Convert a dataset for another tool."),
    "merge": ("manage", "Join the parts of an array run."),
    "compact": ("manage", "Free dead bytes in shards."),
    "monitor": ("check", "Watch runs and loaders live."),
    "doctor": ("check", "Try what a run needs on this machine."),
}
FUNCTIONS = tuple(name for name in COMMANDS if name not in ("show", "monitor"))
