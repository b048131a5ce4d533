"""Find the videos in a folder for `bench`, the loaders that can read them, and the frames to request.

The requested frames and their order are the same for every loader of a folder.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from vidprep.formats import open_store
from vidprep.formats.errors import MissingError, StoreError, VidprepError
from vidprep.formats.manifest.table import read_rows
from vidprep.formats.model import VideoFacts
from vidprep.formats.stores.base import FrameStore
from vidprep.formats.stores.encoded import VideoStore
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.stores.registry import layout_of
from vidprep.formats.stores.webdataset import TarStore
from vidprep.formats.video.rgb import HD_LINES, UNSPECIFIED
from vidprep.formats.video.source import open_video
from vidprep.transcode.check.other_readers import LOADERS, STREAM_LOADERS
from vidprep.transcode.sources.tables import VIDEO_EXTENSIONS

PATTERNS = ("whole", "consecutive", "strided", "single")


Request: TypeAlias = "tuple[Video, range]"


@dataclass(frozen=True, slots=True)
class Access:
    """Access pattern.

    Attributes:
        frames: Frames of a sequence, except for whole videos
        stride: Distance of frames in strided sequences
    """

    pattern: str
    frames: int
    stride: int

    @property
    def step(self) -> int:
        return self.stride if self.pattern == "strided" else 1

    @property
    def length(self) -> int:
        """Frames of a sequence that is not a whole video."""
        return 1 if self.pattern == "single" else self.frames

    @property
    def span(self) -> int:
        """Number of frames from the first frame of a sequence to its last, both included."""
        return (self.length - 1) * self.step + 1

    def numbers(self, video: Video, rng: random.Random) -> range:
        """Return the frame numbers of a sequence."""
        start = rng.randrange(max(1, video.num_frames - self.span + 1))
        return range(start, min(start + self.span, video.num_frames), self.step)

    def __str__(self) -> str:
        named = {"whole": "whole video", "single": "1 random", "consecutive": f"{self.frames} consecutive"}
        return named.get(self.pattern, f"{self.frames} strided by {self.stride}")


def rounds(
    videos: Sequence[Video], access: Access, seed: int, worker: int, workers: int
) -> Iterator[Sequence[Request]]:
    """Yield endless rounds; each requests something from every video once.

    Whole videos come in stored order, each worker from another start. Otherwise videos come in random order with a
    random start in each; a video that is too short is read from start to end.
    """
    if access.pattern == "whole":
        first = len(videos) * worker // workers
        yield from repeat([(video, range(video.num_frames)) for video in (*videos[first:], *videos[:first])])
    rng = random.Random(f"{seed} {worker}")
    while True:
        yield [(video, access.numbers(video, rng)) for video in rng.sample(videos, len(videos))]


def packets_needed(video: Video, numbers: Sequence[int]) -> int:
    """Return how many packets a decoder needs: in each GOP with wanted frames, from the keyframe to the last of them,
    apart from reordering.

    Args:
        video: The video.
        numbers: Wanted frames, ascending.
    """
    if video.keyframes is None:
        return len(numbers)
    last_of_gop = {bisect_right(video.keyframes, number): number for number in numbers}
    return sum(last - video.keyframes[gop - 1] + 1 for gop, last in last_of_gop.items())


OURS = "vidprep"
PICTURE_SUFFIXES = {".jpg": "jpg", ".jpeg": "jpg", ".png": "png"}
FILE_LOADERS = (OURS, *LOADERS, *STREAM_LOADERS)
# The first that is installed is what the others are compared with.
READ_BY = {
    "raw": FILE_LOADERS,
    "encoded": FILE_LOADERS,
    "shards": (OURS,),
    "gulp": (OURS, "GulpIO2"),
    "webdataset": (OURS, "webdataset"),
    "jpg": ("Pillow", "OpenCV"),
    "png": ("Pillow", "OpenCV"),
}
PACKAGES = {name: loader.package for name, loader in (*LOADERS.items(), *STREAM_LOADERS.items())} | {
    OURS: "vidprep",
    "GulpIO2": "gulpio2",
    "webdataset": "webdataset",
    "Pillow": "PIL",
}
# They always begin with the first frame or the first video.
ONLY_IN_ORDER = {*STREAM_LOADERS, "webdataset"}


@dataclass(frozen=True, slots=True)
class Video:
    """One video of a folder.

    Attributes:
        keyframes: Numbers of keyframes; None if every frame is decoded alone
        files: Files that are read; in a folder of pictures, one per frame
        ambiguous: Why correct loaders may show different pixels; None if they may not
    """

    id: str
    num_frames: int
    height: int
    width: int
    keyframes: tuple[int, ...] | None
    files: tuple[str, ...]
    ambiguous: str | None = None


def readers_of(kind: str) -> tuple[str, ...]:
    return READ_BY.get(kind, (OURS,))


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with videos of one kind. It can be pickled.

    Attributes:
        path: The folder, or its URL
        store: Reads it; None for folders of pictures
        ids: Ids of all videos, in stored order
        holds: Codec and keyframe interval, if known
        videos: Videos to read, after `survey_videos`
    """

    path: Path | str
    kind: str
    store: FrameStore | None
    ids: tuple[str, ...]
    holds: str
    videos: tuple[Video, ...] = ()

    @property
    def loaders(self) -> list[str]:
        """Return the installed loaders that can read it."""
        return [name for name in readers_of(self.kind) if is_installed(name)]

    @property
    def frame_size(self) -> str:
        """WxH, or the smallest and the largest size."""
        sizes = sorted({(video.width, video.height) for video in self.videos}, key=lambda size: size[0] * size[1])
        return "–".join(f"{width}x{height}" for width, height in (sizes[:1] + sizes[1:][-1:]))


def is_installed(loader: str) -> bool:
    return importlib.util.find_spec(PACKAGES[loader]) is not None


def find_place(path: Path | str) -> Place:
    """Examine a folder, or a store behind a URL.

    Raises:
        StoreError: It contains nothing readable.
        MissingError: It contains pictures, and Pillow is not installed.
    """
    if isinstance(path, str):
        return _open_url(path)
    if not path.is_dir():
        raise StoreError(
            "is not a folder; give a store, a folder of videos, or a folder with pictures of each video", path=path
        )
    try:
        store = open_store(path)
    except StoreError as error:
        if not error.message.startswith("is not a store"):
            raise
        return _open_loose_files(path)
    if not store.ids:
        raise StoreError("holds no video", path=path)
    kind = _kind_of(store)
    ids = _sort_by_tar(store) if isinstance(store, TarStore) else store.ids
    return Place(
        path, kind, store, tuple(ids), _describe_encoding(path) or kind if isinstance(store, VideoStore) else kind
    )


def _open_url(url: str) -> Place:
    """Return a store behind a URL, which only our reader reads by ranges. Raises StoreError."""
    store = open_store(url)
    if not store.ids:
        raise StoreError("holds no video", path=url)
    kind = _kind_of(store)
    holds = _describe_encoding(store.folder) or kind if isinstance(store, VideoStore) else kind
    return Place(url, f"{kind} behind a URL", store, tuple(store.ids), holds)


def _kind_of(store: FrameStore) -> str:
    if isinstance(store, VideoStore) and store.entry(store.ids[0]).offset:
        return "shards"
    holds_videos = isinstance(store, TarStore) and store.facts(store.ids[0]).keyframes is not None
    return "webdataset of videos" if holds_videos else store.kind


class _Encoded(NamedTuple):
    """Columns of a row that describe the encoding."""

    status: str
    codec: str | None
    keyframe_interval_max: int | None


def _describe_encoding(path: Path) -> str:
    """Return codec and GOP from the manifest, such as `h264 GOP 5`; several if they differ."""
    rows = [row for row in read_rows(path, _Encoded) if row.status == "ok" and row.codec is not None]
    longest = {
        codec: max(row.keyframe_interval_max or 0 for row in rows if row.codec == codec)
        for codec in sorted({row.codec for row in rows if row.codec is not None})
    }
    return ", ".join(f"{codec} GOP {interval}" for codec, interval in longest.items())


def _sort_by_tar(store: TarStore) -> list[str]:
    """Return videos in the order in which a stream of shards is read."""
    return sorted(store.ids, key=store.place)


def _open_loose_files(path: Path) -> Place:
    videos: list[Path] = []
    folders: dict[str, dict[str, int]] = {}
    for file in _files_below(path):
        suffix = file.suffix.lower()
        if suffix in PICTURE_SUFFIXES:
            kinds = folders.setdefault(file.parent.relative_to(path).as_posix(), {})
            kinds[PICTURE_SUFFIXES[suffix]] = kinds.get(PICTURE_SUFFIXES[suffix], 0) + 1
        elif suffix[1:] in VIDEO_EXTENSIONS:
            videos.append(file)
    if videos and folders:
        raise StoreError(f"holds videos ({videos[0].name} …) and pictures; give a folder of one kind", path=path)
    if videos:
        have_twins = len({video.with_suffix("") for video in videos}) < len(videos)
        return _open_videos(path, sorted(videos), keep_source_suffix=have_twins)
    kinds_there = {kind for kinds in folders.values() for kind in kinds}
    if len(kinds_there) == 1 and "." not in folders:
        kind = kinds_there.pop()
        if not is_installed("Pillow"):
            raise MissingError("folders of pictures need Pillow: pip install 'vidprep[report]'", path=path)
        return Place(path, kind, None, tuple(sorted(folders)), f"folder of .{kind}")
    raise StoreError(
        "holds nothing that can be read: no store, no videos, and no folder of .jpg or of .png for each video",
        path=path,
    )


def _open_videos(path: Path, videos: Sequence[Path], *, keep_source_suffix: bool) -> Place:
    store = VideoFiles(videos, keep_source_suffix=keep_source_suffix)
    return Place(path, "raw", store, tuple(store.ids), "raw")


def add_source_suffix(place: Place) -> Place:
    """Return a folder of raw videos with ids as `transcode --keep-source-suffix` names them; any other folder unchanged."""
    if not isinstance(place.store, VideoFiles):
        return place
    return _open_videos(Path(place.path), [place.store.file(id_) for id_ in place.ids], keep_source_suffix=True)


def _files_below(root: Path) -> Iterator[Path]:
    """Yield files that are not hidden. Links are followed, but each folder is visited once because links may form circles."""
    waiting, seen = [str(root)], set()
    while waiting:
        folder = waiting.pop()
        status = os.stat(folder)  # noqa: PTH116
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with suppress(PermissionError), os.scandir(folder) as entries:
            for entry in sorted(entries, key=attrgetter("name")):
                if entry.is_dir():
                    waiting.append(entry.path)
                elif not entry.name.startswith(".") and entry.is_file():
                    yield Path(entry.path)


def survey_videos(place: Place, ids: Sequence[str]) -> tuple[Place, dict[str, str]]:
    """Return the folder with facts about these videos, and why others cannot be read. Opens every video."""
    videos, unread = [], {}
    for id_ in ids:
        try:
            videos.append(_video(place, id_))
        except (VidprepError, OSError) as error:
            unread[id_] = str(error)
    return replace(place, videos=tuple(videos)), unread


def _video(place: Place, id_: str) -> Video:
    store = place.store
    if store is None:
        from PIL import Image

        pictures = list_pictures(Path(place.path, id_))
        with Image.open(pictures[0]) as first:
            return Video(id_, len(pictures), first.height, first.width, None, tuple(pictures))
    facts = store.facts(id_)
    if facts.num_frames == 0:
        raise StoreError(f"{id_} has no frames", path=place.path)
    store[id_].frames([facts.num_frames - 1])
    files = list[Path | str]()
    if store.is_remote or isinstance(place.path, str):
        pass  # no page cache to fill or to empty
    elif isinstance(store, VideoFiles | VideoStore):
        files = [store.file(id_)]
    else:
        files += sorted(path for path in place.path.iterdir() if path.suffix == layout_of(store.kind).suffix)
    keyframes = None if facts.keyframes is None else tuple(facts.keyframes)
    ambiguous = _why_ambiguous(store.file(id_), facts) if isinstance(store, VideoFiles) else None
    return Video(id_, facts.num_frames, facts.height, facts.width, keyframes, tuple(map(str, files)), ambiguous)


def _why_ambiguous(video: Path, facts: VideoFacts) -> str | None:
    """Return why loaders may differ on a raw video: chroma of odd sizes is repeated or interpolated; colours without tags
    are guessed.
    """
    if facts.width % 2 or facts.height % 2:
        return f"{facts.width}x{facts.height} is an odd size"
    with open_video(video) as container:
        context = container.streams.video[0].codec_context
        untagged = context.colorspace == UNSPECIFIED and context.height >= HD_LINES
    return "its colour matrix is not tagged, and loaders take it for BT.601 or for BT.709" if untagged else None


def list_pictures(folder: Path) -> list[str]:
    """Return the pictures of one video, sorted by the last number in their names. Raises StoreError if a name has none."""
    pictures = []
    for path in folder.iterdir():
        if path.suffix.lower() not in PICTURE_SUFFIXES or path.name.startswith("."):
            continue
        numbers = re.findall(r"\d+", path.stem)
        if not numbers:
            raise StoreError("has no number in its name, so its position is not known", path=path)
        pictures.append((int(numbers[-1]), str(path)))
    return [path for _, path in sorted(pictures)]


def place_name(row: dict[str, Any]) -> str:
    """Return the name of a store in tables: its folder and what it holds."""
    name = Path(row["store"]).name
    return name if name == row["holds"] else f"{name} ({row['holds']})"
