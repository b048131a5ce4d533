"""Run frames through the filters of their picture, and react to changes in the middle of a source."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import av
from av.error import FFmpegError as AvError
from av.video.frame import VideoFrame

from vidprep.formats.errors import PictureError
from vidprep.formats.model import FrameSize, Orientation, VideoInfo
from vidprep.formats.video.midway import FrameProperties, properties_of
from vidprep.formats.video.picture_facts import turn_of
from vidprep.formats.video.pyav import light_side_data
from vidprep.transcode.media._source_picture import (
    SourcePicture,
    alpha_of,
    describe,
    holds_alpha,
    is_hdr,
    is_invisible,
    is_refused,
    tags_of,
)
from vidprep.transcode.media.frames import buffer_arguments
from vidprep.transcode.media.picture import TOLD_AT_KEYFRAMES, Picture, plan_picture
from vidprep.transcode.settings.run import RunSettings

NAMED_CHANGES, OPAQUE = 5, 255
TURN_EACH = {"mjpeg"}  # codecs whose frames carry EXIF orientation; a mirrored one has the same rotation as another


class PictureFilter:
    """Filters frames as planned from the first one. Not thread-safe.

    A frame that needs no change is returned unchanged. Filtering the same frame twice returns the same result twice.

    Attributes:
        shows_through: Whether a pixel of any frame was not opaque
        ignored_alpha: Whether alpha was ignored because it would make all frames black
        changed: Properties that changed in the middle, as `_Key.differences_from` names them
    """

    def __init__(
        self,
        first: VideoFrame,
        info: VideoInfo,
        settings: RunSettings,
        pixel_format: str,
        hides_all: Callable[[], bool] = lambda: False,
    ) -> None:
        """Plan the picture from the first frame.

        Args:
            first: First frame of the source.
            info: Header of the source.
            settings: Settings of the run.
            pixel_format: Pixel format of the output.
            hides_all: Returns whether alpha would make every frame black; called only if it would make one black.
        """
        self._info, self._settings, self._pixel_format = info, settings, pixel_format
        self._hides_all, self.ignored_alpha = hides_all, False
        self._ignores_alpha: bool | None = True if info.has_unused_byte else None
        self.source = self._describe(first)
        self.picture = plan_picture(self.source, settings, pixel_format)
        self.changes: list[str] = []
        self.changed: set[str] = set()
        self.num_changes = self._num_filtered = 0
        self.shows_through = False
        self._has_alpha = self.source.has_alpha
        self._turned: tuple[tuple[int, bytes | None], Orientation] | None = None
        self._graph: _Graph | None = None
        self._last: tuple[VideoFrame, VideoFrame] | None = None
        self._key: _Key | None = None
        self._key = self._key_of(first)
        self._build(first, self.picture)

    def _describe(self, frame: VideoFrame) -> SourcePicture:
        if self._ignores_alpha is None and holds_alpha(frame.format.name):
            self._ignores_alpha = self.ignored_alpha = is_invisible(frame) and self._hides_all()
        return describe(frame, self._info, ignores_alpha=self._ignores_alpha is True)

    def _build(self, frame: VideoFrame, picture: Picture) -> None:
        if not picture.filters:
            self._graph = None
        elif picture.tone_mapped:
            self._graph = _get_graph(buffer_arguments(frame), picture.filters)
        else:
            self._graph = _Graph(buffer_arguments(frame), picture.filters)

    def apply(self, frame: VideoFrame) -> VideoFrame:
        self._num_filtered += 1
        if self._last is not None and self._last[0] is frame:
            return self._last[1]
        key = self._key_of(frame)
        if key != self._key:
            source = self._describe(frame)
            changed = plan_picture(source, self._settings, self._pixel_format, like=self.picture)
            self._note_change(key)
            self._key, self._has_alpha = key, source.has_alpha
            self._build(frame, changed)
        if self._has_alpha and not self.shows_through:
            self.shows_through = bool((alpha_of(frame) < OPAQUE).any())
        filtered = frame if self._graph is None else self._graph.run(frame)
        self._last = (frame, filtered)
        return filtered

    def _key_of(self, frame: VideoFrame) -> _Key:
        properties = properties_of(frame)
        light = light_side_data(frame) if is_hdr(frame) else None
        if self._info.codec in TOLD_AT_KEYFRAMES and light == (None, None) and self._key is not None:
            light = self._key.light
        return _Key(
            FrameSize(frame.width, frame.height),
            properties.shape,
            self._orientation_of(frame, properties),
            frame.format.name,
            light,
            int(frame.colorspace),
            int(frame.color_range),
            int(frame.color_trc),
            is_refused(tags_of(frame)),
        )

    def _orientation_of(self, frame: VideoFrame, told: FrameProperties) -> Orientation:
        """Return the orientation of a frame. It is read again only if the frame hints at a new one, because reading side
        data takes as long as decoding a small frame.
        """
        hint = frame.rotation, told.matrix
        if self._turned is None or hint != self._turned[0] or self._info.codec in TURN_EACH:
            self._turned = hint, turn_of(frame).orientation
        return self._turned[1]

    def _note_change(self, key: _Key) -> None:
        self.num_changes += 1
        assert self._key is not None
        what = key.differences_from(self._key)
        self.changed |= what.keys()
        if self.num_changes <= NAMED_CHANGES:
            self.changes.append(f"to {next(iter(what.values()))} at output frame {self._num_filtered - 1}")


class _Key(NamedTuple):
    """Properties of a frame that require another chain of filters when they change."""

    size: FrameSize
    shape: Fraction | None
    orientation: Orientation
    pixel_format: str
    light: tuple[bytes | None, bytes | None] | None
    matrix: int
    range: int
    transfer: int
    is_refused: bool

    def differences_from(self, other: _Key) -> dict[str, str]:
        """Return the changed properties, most visible first: for each name, a text that describes the change."""
        differences = {
            "size": str(self.size) if self.size != other.size else "",
            "pixel shape": f"pixels of {self.shape or 'the first shape'}" if self.shape != other.shape else "",
            "orientation": "another orientation" if self.orientation != other.orientation else "",
            "pixel format": self.pixel_format if self.pixel_format != other.pixel_format else "",
            "HDR metadata": "other HDR metadata" if self.light != other.light else "",
            "colour": "other colours" if self[5:] != other[5:] else "",
        }
        return {name: text for name, text in differences.items() if text}


class _Graph:
    """A chain of filters that returns one frame per frame, in the pixel format of its last filter."""

    def __init__(self, arguments: str, filters: tuple[tuple[str, str], ...]) -> None:
        assert filters[-1][0] == "format"
        # The graph must outlive its contexts: without this reference the process crashes.
        self._graph = av.filter.Graph()
        self._graph.threads = 1
        self._source = last = self._graph.add("buffer", arguments)
        for name, args in filters:
            added = self._graph.add(name, args or None)
            last.link_to(added)
            last = added
        self._sink = self._graph.add("buffersink")
        last.link_to(self._sink)
        try:
            self._graph.configure()
        except (AvError, ValueError) as error:
            pixel_format = arguments.partition("pix_fmt=")[2].partition(":")[0]
            chain = ",".join(f"{name}={args}" for name, args in filters)
            raise PictureError(
                f"pictures of the format {pixel_format} cannot be converted here; convert the source to another, such as rgb24, with "
                f"the program that wrote it (libavfilter does not take {chain}: {error})"
            ) from error

    def run(self, frame: VideoFrame) -> VideoFrame:
        try:
            self._source.push(frame)
            filtered = self._sink.pull()
        except (AvError, OSError, ValueError) as error:
            _get_graph.cache_clear()
            raise PictureError(f"filtering a frame failed: {error}") from error
        assert isinstance(filtered, VideoFrame)
        return filtered


@lru_cache(maxsize=2)
def _get_graph(arguments: str, filters: tuple[tuple[str, str], ...]) -> _Graph:
    """Return a filter graph, cached: a tone map takes three seconds to set up. Frames leave no state in it."""
    return _Graph(arguments, filters)
