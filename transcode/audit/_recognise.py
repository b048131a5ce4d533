"""Recognise datasets of other tools in a folder: LeRobot's, webdataset's tars, videofolders, tables and plain videos."""

from __future__ import annotations

import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from vidprep.formats.errors import SourceError, StoreError, count_of
from vidprep.transcode.audit.dataset import ERROR, WARNING, Clip, Dataset, Finding, VideoFile
from vidprep.transcode.audit.robot import robot_dataset
from vidprep.transcode.settings.run import SourceOptions
from vidprep.transcode.sources.listing import find_sources
from vidprep.transcode.sources.robot import is_robot_dataset
from vidprep.transcode.sources.tables import READERS, VIDEO_EXTENSIONS, read_source_table
from vidprep.transcode.sources.unit import SourceList

METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # of a videofolder of Hugging Face


def recognise(place: Path) -> Dataset:
    """Return the dataset in a folder, or that of a table.

    Raises:
        StoreError: The dataset is of no known kind.
        OSError: The folder cannot be read.
    """
    try:
        if place.is_file():
            return _read_sources(
                "table" if place.suffix.lower() in READERS else "video", place, _list_videos(place, place)
            )
        if is_robot_dataset(place):
            return robot_dataset(place)
        if (tars := sorted(place.rglob("*.tar"))) and (dataset := _read_tars(place, tars)).videos:
            return dataset
        if tables := sorted(path for name in METADATA_NAMES for path in place.rglob(name)):
            return _read_tables("videofolder", place, tables)
        tables = sorted(path for path in place.iterdir() if path.suffix.lower() in READERS)
        if len(tables) == 1 and "path" in read_source_table(str(tables[0])).columns:
            return _read_tables("folder with a table", place, tables)
        return _read_sources("folder of videos", place, _list_videos(place, place))
    except SourceError as error:
        raise StoreError(
            "is neither a destination of vidprep nor a dataset that is known here (LeRobot, webdataset, videofolder, a table, "
            f"videos): {error.message}",
            path=place,
        ) from error


def _list_videos(source: Path | pa.Table, place: Path) -> SourceList:
    """Return the videos of a source. Nothing is written, so their names may differ in the suffix alone."""
    return find_sources(source, _find_unused_destination(place), SourceOptions(keep_source_suffix=True))


def _find_unused_destination(place: Path) -> Path:
    """Return a destination that holds no source."""
    return place.resolve().parent / f".{place.name}.nowhere"


def _read_sources(kind: str, root: Path, found: SourceList) -> Dataset:
    folder = root if root.is_dir() else root.parent
    clips = defaultdict[str, list[Clip]](list)
    for unit in found.units:
        cut = unit.cut
        clips[unit.path].append(
            Clip(
                unit.id if cut else "",
                cut.start_seconds or 0.0,
                cut.end_seconds,
                first_frame=cut.start_frame if cut.end_frame is None else cut.start_frame or 0,
                end_frame=cut.end_frame,
            )
        )
    videos = [
        VideoFile(Path(path), _relative_name(path, folder), tuple(sorted(own, key=lambda clip: clip.start)))
        for path, own in sorted(clips.items())
    ]
    findings = [
        Finding(ERROR, "source", _relative_name(path, folder), "", None, reason) for path, reason in found.problems
    ]
    return Dataset(kind, count_of(len(found.units), "video"), folder, videos, findings)


def _read_tables(kind: str, root: Path, tables: list[Path]) -> Dataset:
    """Return the videos of tables, and name those in the folder that no table has."""
    made = Dataset(kind, "", root, [])
    videos = dict[tuple[Path, tuple[Clip, ...]], VideoFile]()  # metadata.csv and metadata.jsonl may list the same
    for table in tables:
        one = _read_sources(kind, table, _list_videos(_resolve_source(table), root))
        for video in one.videos:
            name = _relative_name(str(video.path), root)
            videos.setdefault((video.path.resolve(), video.clips), VideoFile(video.path, name, video.clips))
        made.findings += [each._replace(path=_relative_name(str(one.root / each.path), root)) for each in one.findings]
    made.videos = [*videos.values()]
    known = {path for path, _ in videos}
    for path in _videos_below(root):
        if path.resolve() not in known:
            made.findings.append(
                Finding(WARNING, "unlisted", _relative_name(str(path), root), "", None, "no row of the table names it")
            )
    made.about = f"{count_of(len(made.videos), 'video')}, {count_of(len(tables), 'table')}"
    return made


def _resolve_source(table: Path) -> Path | pa.Table:
    """Return a table, or that of a videofolder with the paths that its column `file_name` means. Raises SourceError."""
    if table.name not in METADATA_NAMES:
        return table
    readers = {".csv": pa.csv.read_csv, ".jsonl": pa.json.read_json, ".parquet": pq.read_table}
    try:
        rows = readers[table.suffix](table)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(f"cannot be read: {error}", path=table) from error
    columns = [name for name in rows.column_names if name == "file_name" or name.endswith("_file_name")]
    if not columns:
        raise SourceError("has no column `file_name`", path=table)
    cells = chain.from_iterable(rows[name].to_pylist() for name in columns)
    names = chain.from_iterable(cell if isinstance(cell, list) else [cell] for cell in cells)
    return pa.table({"path": [str(table.parent / str(name)) for name in names if name]})


def _videos_below(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.suffix.lower().removeprefix(".") in VIDEO_EXTENSIONS and path.is_file():
            yield path


def _read_tars(root: Path, tars: list[Path]) -> Dataset:
    """Return the videos in the tars of webdataset, whose samples are members of one name without extensions."""
    made, num_samples = Dataset("webdataset", "", root, []), 0
    for tar in tars:
        samples, name_of_tar = dict[str, Counter[str]](), _relative_name(str(tar), root)
        try:
            size = tar.stat().st_size
            with tarfile.open(tar, "r:") as file:
                for member in file:
                    if not member.isfile():
                        continue
                    folder, slash, name = member.name.rpartition("/")
                    base, _, extension = name.partition(".")
                    samples.setdefault(folder + slash + base, Counter())[extension] += 1
                    if PurePosixPath(name).suffix.lower().removeprefix(".") in VIDEO_EXTENSIONS:
                        place = member.offset_data, member.size
                        made.videos.append(VideoFile(tar, f"{name_of_tar}/{member.name}", (Clip(""),), None, place))
                    if member.offset_data + member.size > size:
                        raise tarfile.ReadError("ends inside its last member")
        except (tarfile.TarError, OSError, ValueError) as error:
            made.findings.append(Finding(ERROR, "damaged", name_of_tar, "", None, f"is no whole tar: {error}"))
        made.findings += _faults_of_samples(name_of_tar, samples)
        num_samples += len(samples)
    made.about = f"{count_of(num_samples, 'sample')} in {count_of(len(tars), 'tar')}"
    return made


def _faults_of_samples(tar: str, samples: dict[str, Counter[str]]) -> Iterator[Finding]:
    """Yield samples that lack a member that most have, or have one twice."""
    usual = {
        extension
        for extension, count in Counter(ext for has in samples.values() for ext in has).items()
        if 2 * count > len(samples)
    }
    for name, has in samples.items():
        for extension in sorted(usual - has.keys()):
            yield Finding(ERROR, "missing", tar, name, None, f"has no .{extension}, as most samples have")
        for extension in sorted(ext for ext, count in has.items() if count > 1):
            yield Finding(ERROR, "repeated", tar, name, None, f"has .{extension} twice")


def _relative_name(path: str, root: Path) -> str:
    try:
        return str(Path(path).relative_to(root))
    except ValueError:
        return path
