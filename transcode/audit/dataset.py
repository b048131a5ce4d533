"""Types of the audit: declared videos, and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from vidprep.formats.lerobot import Episode, LeRobotDataset

Level = Literal["error", "warning"]
ERROR: Level = "error"
WARNING: Level = "warning"


class Finding(NamedTuple):
    """Something that is wrong with a dataset, or may be.

    Attributes:
        level: `error` or `warning`
        kind: What it is, in one word
        path: The file, relative to the dataset; "" for the dataset
        part: Episode and camera, or name of the sample; "" for the whole file
        seconds: Where in the file; None for no place
        text: The finding
    """

    level: Level
    kind: str
    path: str
    part: str
    seconds: float | None
    text: str

    @property
    def line(self) -> str:
        """The finding on one line."""
        level = "warning: " if self.level == WARNING else ""
        return level + ": ".join(filter(None, (self.path, self.part, self.text)))


@dataclass(frozen=True, slots=True)
class Clip:
    """A part of a video that a dataset declares.

    Attributes:
        name: Its name in messages, such as `episode 3`; "" for the whole file
        end: End in seconds; None for the end of the file
        num_frames: Declared number of frames; None if there is none
        end_frame: Number of the frame after its last one; None for the end of the file
        times: (L,) seconds from `start` at which rows need a frame; None without rows
        episode: The episode, whose states tell whether a frozen picture is a fault
    """

    name: str
    start: float = 0.0
    end: float | None = None
    num_frames: int | None = None
    first_frame: int | None = None
    end_frame: int | None = None
    times: npt.NDArray[np.float64] | None = None
    episode: Episode | None = None


@dataclass(frozen=True, slots=True)
class VideoFile:
    """A video file, or a member of a tar.

    Attributes:
        name: Path relative to the dataset, for messages
        clips: Its declared parts, by start
        rate: Declared frames per second; None if there is none
        member: Position and size of a member of a tar; None for a file of its own
        size: Declared (width, height) in pixels; None if there is none
    """

    path: Path
    name: str
    clips: tuple[Clip, ...] = (Clip(""),)
    rate: float | None = None
    member: tuple[int, int] | None = None
    size: tuple[int, int] | None = None


@dataclass(slots=True)
class Dataset:
    """A dataset that was recognised.

    Attributes:
        about: Its size, for messages
        findings: What is known to be wrong before a video is opened
        robot: The metadata of a LeRobot dataset
        motion: (L,) how far the states of each of its episodes move from row to row
    """

    kind: str
    about: str
    root: Path
    videos: list[VideoFile]
    findings: list[Finding] = field(default_factory=list)
    robot: LeRobotDataset | None = None
    motion: Mapping[int, npt.NDArray[np.float64]] = field(default_factory=dict)
