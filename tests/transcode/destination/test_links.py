"""A destination that came from elsewhere: links in it lead nowhere. Nothing outside is written, removed or packed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers import make_clip, manifest, transcode
from vidprep.formats.manifest.table import read_manifest, write_rows

QUICK = ("--gop", 4, "--preset", "ultrafast", "--jobs", 1, "--quiet")
PLACES = {
    "house": ".vidprep",
    "lock": ".vidprep/lock",
    "journal": ".vidprep/journal.jsonl",
    "partials": ".vidprep/partial",
    "run.json.partial": ".vidprep/.run.json.partial",
    "merged": ".vidprep/merged.json",
    "probes": ".vidprep/probes",
    "stale": ".vidprep/index-stale",
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("links") / "raw"
    make_clip(folder / "a" / "b.mp4", 3, (32, 32))
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that no command may touch."""
    folder = tmp_path / "outside"
    (folder / "below").mkdir(parents=True)
    (folder / "secret.txt").write_text("not yours\n" * 100)
    (folder / "below" / "b.mp4").write_bytes(b"older" * 1000)
    return folder


def state(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("verb", ["transcode", "burst"])
@pytest.mark.parametrize("place", PLACES)
def test_a_link_in_the_state_folder_is_refused_and_its_target_kept(
    clips: Path, outside: Path, tmp_path: Path, verb: str, place: str
) -> None:
    destination = tmp_path / "out"
    target = destination / PLACES[place]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(outside if place in ("house", "partials", "probes") else outside / "secret.txt")
    before = state(outside)
    done = transcode(clips, destination, *(QUICK if verb == "transcode" else ("--jobs", 1, "--quiet")), verb=verb)
    assert state(outside) == before
    assert done.code == 2
    assert "symbolic link" in done.err
    assert str(target) in done.err
    assert target.is_symlink()


def test_a_dangling_link_is_no_way_out_either(clips: Path, tmp_path: Path) -> None:
    for name in ("lock", "journal.jsonl"):
        destination = tmp_path / name
        (destination / ".vidprep").mkdir(parents=True)
        (destination / ".vidprep" / name).symlink_to(tmp_path / "made")
        assert transcode(clips, destination, *QUICK).code == 2
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", [".vidprep/journal.jsonl", "data-00000.bin"])
def test_nothing_is_written_into_a_file_that_has_another_name_elsewhere(
    name: str, clips: Path, outside: Path, tmp_path: Path
) -> None:
    destination = tmp_path / "out"
    assert transcode(clips, destination, "--quiet", verb="burst").code == 0
    (destination / name).unlink(missing_ok=True)
    (destination / name).hardlink_to(outside / "secret.txt")
    (destination / "manifest.parquet").unlink()
    before = state(outside)
    done = transcode(clips, destination, "--quiet", verb="burst")
    assert state(outside) == before
    assert done.code in (0, 2, 3)  # what no row knows is removed, under this name alone


def test_a_shard_that_is_a_link_is_neither_cut_nor_appended_to(clips: Path, outside: Path, tmp_path: Path) -> None:
    destination = tmp_path / "out"
    assert transcode(clips, destination, "--jobs", 1, verb="burst").code == 0
    shard = destination / "data-00001-00000.bin"
    kept = outside / "shard"
    shard.rename(kept)
    kept.write_bytes(kept.read_bytes() + b"more")
    shard.symlink_to(kept)
    make_clip(tmp_path / "two" / "a" / "b.mp4", 3, (32, 32))
    make_clip(tmp_path / "two" / "c.mp4", 3, (32, 32), seed=1)
    before = state(outside)
    for source, more in (
        (clips, ()),
        (tmp_path / "two", ("--overwrite",)),
        (clips, ("--overwrite", "--format", "gulp")),
    ):
        done = transcode(source, destination, "--jobs", 1, *more, verb="burst")
        assert state(outside) == before
        assert done.code == 2
        assert f"{shard}: is a symbolic link" in done.err


def test_an_output_whose_folder_is_a_link_costs_its_row(clips: Path, outside: Path, tmp_path: Path) -> None:
    make_clip(tmp_path / "more" / "a" / "b.mp4", 3, (32, 32))
    make_clip(tmp_path / "more" / "fine.mp4", 3, (32, 32), seed=1)
    destination = tmp_path / "out"
    destination.mkdir()
    (destination / "a").symlink_to(outside / "below")
    before = state(outside)
    done = transcode(tmp_path / "more", destination, *QUICK)
    assert state(outside) == before
    rows = manifest(destination)
    assert done.code == 1
    assert rows["fine"]["status"] == "ok"
    assert (rows["a/b"]["error"], rows["a/b"]["status"]) == ("DestinationError", "failed")
    assert "symbolic link" in rows["a/b"]["message"]


def test_an_old_output_is_not_removed_through_a_link(clips: Path, outside: Path, tmp_path: Path) -> None:
    destination = tmp_path / "out"
    assert transcode(clips, destination, *QUICK).code == 0
    rows = list(read_manifest(destination))
    rows[0].file_name = "elsewhere/b.mp4"
    write_rows(destination / "manifest.parquet", None, rows)
    (destination / "elsewhere").symlink_to(outside / "below")
    before = state(outside)
    transcode(clips, destination, *QUICK, "--overwrite")
    assert state(outside) == before


def test_an_output_that_is_a_link_is_replaced_itself(clips: Path, outside: Path, tmp_path: Path) -> None:
    destination = tmp_path / "out"
    (destination / "a").mkdir(parents=True)
    (destination / "a" / "b.mp4").symlink_to(outside / "secret.txt")
    before = state(outside)
    assert transcode(clips, destination, *QUICK).code == 0
    assert state(outside) == before
    assert not (destination / "a" / "b.mp4").is_symlink()


def test_reports_and_validations_are_not_written_through_links(clips: Path, outside: Path, tmp_path: Path) -> None:
    destination = tmp_path / "out"
    assert transcode(clips, destination, *QUICK).code == 0
    names = (".report.html.partial", ".report.md.partial", ".validation.parquet.partial", ".manifest.parquet.partial")
    for name in (*names, "report.json", "validation.parquet"):
        (destination / name).symlink_to(outside / "secret.txt")
    before = state(outside)
    assert transcode(destination, "--quiet", verb="validate").code == 0
    assert transcode(destination, "--quiet", verb="report").code == 0
    assert state(outside) == before
    shutil.move(destination / ".vidprep", outside / "state")
    (destination / ".vidprep").symlink_to(outside / "state")
    before = state(outside)
    done = transcode(destination, "--quiet", verb="validate")
    assert state(outside) == before
    assert done.code == 2 and "symbolic link" in done.err


def test_parts_and_merge_follow_no_link(clips: Path, outside: Path, tmp_path: Path) -> None:
    make_clip(tmp_path / "two" / "c.mp4", 3, (32, 32), seed=1)
    make_clip(tmp_path / "two" / "d.mp4", 3, (32, 32), seed=2)
    destination = tmp_path / "out"
    assert transcode(tmp_path / "two", destination, *QUICK, "--partition", "0/2").code == 0
    part = destination / ".vidprep" / "part-00001-of-00002"
    part.symlink_to(outside)
    (outside / "partial").mkdir()
    (outside / "partial" / "mine").touch()
    before = state(outside)
    assert transcode(tmp_path / "two", destination, *QUICK, "--partition", "1/2").code == 2
    assert transcode(destination, verb="merge").code == 2
    part.unlink()
    part.mkdir()
    (part / "partial").symlink_to(outside / "partial")
    assert transcode(tmp_path / "two", destination, *QUICK, "--partition", "1/2").code == 2
    merged = transcode(destination, verb="merge")
    assert merged.code == 1 and "1 of 2 partitions did not finish (1)" in merged.err
    assert state(outside) == before


@pytest.mark.parametrize("kind", ["webdataset", "hf", "frames"])
def test_an_output_that_is_a_link_is_not_packed(clips: Path, outside: Path, tmp_path: Path, kind: str) -> None:
    destination = tmp_path / "out"
    assert transcode(clips, destination, *QUICK).code == 0
    output = destination / "a" / "b.mp4"
    shutil.move(output, outside / "private.mp4")
    output.symlink_to(outside / "private.mp4")
    done = transcode(destination, tmp_path / "packed", "--to", kind, verb="pack")
    assert done.code == 2 and "symbolic link" in done.err
    assert not (tmp_path / "packed").exists()


def test_a_shard_that_is_a_link_is_not_packed(clips: Path, outside: Path, tmp_path: Path) -> None:
    destination = tmp_path / "out"
    assert transcode(clips, destination, "--jobs", 1, verb="burst").code == 0
    shutil.move(destination / "data-00001-00000.bin", outside / "private")
    (destination / "data-00001-00000.bin").symlink_to(outside / "private")
    done = transcode(destination, tmp_path / "packed", "--to", "gulp", verb="pack")
    assert done.code == 2 and "symbolic link" in done.err
    assert not (tmp_path / "packed").exists()


def test_a_destination_that_is_a_link_that_the_user_gave_stays_fine(clips: Path, tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "big")
    assert transcode(clips, tmp_path / "out", *QUICK).code == 0
    assert transcode(clips, tmp_path / "out", *QUICK).code == 0
    assert transcode(tmp_path / "out", "--quiet", verb="validate").code == 0
    assert transcode(tmp_path / "out", tmp_path / "packed", "--to", "webdataset", verb="pack").code == 0


def test_only_regular_files_are_removed_as_leftovers(clips: Path, tmp_path: Path) -> None:
    destination = tmp_path / "out"
    (destination / ".manifest.parquet.partial").mkdir(parents=True)
    (destination / ".vidprep" / "partial" / "mine").mkdir(parents=True)
    (destination / ".manifest.parquet.partial" / "mine").touch()
    done = transcode(clips, destination, *QUICK)
    assert (destination / ".manifest.parquet.partial" / "mine").exists()
    assert done.code == 2 and "not a regular file" in done.err
