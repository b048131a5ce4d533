"""What a training run would read of a finished destination: validate reads through `open_store`, by number."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import make_clips, transcode
from vidprep.formats import open_store
from vidprep.formats.manifest.table import ManifestRow, read_manifest
from vidprep.transcode.check._reading import differing_ids, open_ids, sample_of
from vidprep.transcode.check._unit import Check, check_unit
from vidprep.transcode.destination.run_file import settings_of

KINDS = ("mp4", "burst", "gulp")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kinds")
    make_clips(folder / "src", 1, frames=20)
    for kind in KINDS:
        asked = ("--preset", "ultrafast", "--gop", 5) if kind == "mp4" else ("--format", kind)
        ran = transcode(folder / "src", folder / kind, *asked, verb="transcode" if kind == "mp4" else "burst")
        assert ran.code == 0, ran.err
    return {kind: folder / kind for kind in KINDS}


def faults_of(folder: Path) -> list[str]:
    return [
        fault for row in read_manifest(folder) for fault in check_unit(Check(folder, row, settings_of(folder))).faults
    ]


@pytest.mark.parametrize(("kind", "beside"), [("gulp", "burst"), ("mp4", "burst"), ("mp4", "gulp")])
def test_another_store_beside_the_one_that_was_made_is_named_and_not_read(made, kind, beside, tmp_path):
    """The first layout that was known used to be opened: its frames were read, whatever the manifest spoke of."""
    folder = shutil.copytree(made[kind], tmp_path / "dst")
    for path in made[beside].iterdir():
        if path.is_file() and "manifest" not in path.name:
            shutil.copy(path, folder)
    assert type(open_store(folder)) is type(open_store(made[kind]))
    ran = transcode(folder, "--quiet", verb="validate")
    assert ran.code == 1
    assert f"belongs to a {beside} store" in ran.out


def test_a_store_that_opens_as_another_than_was_made_is_found(made):
    found, why = open_ids(made["gulp"], "burst")
    assert found is None
    assert "another store hides it" in why


@pytest.mark.parametrize("kind", KINDS)
def test_frames_that_open_store_gives_in_the_place_of_others_are_found(made, kind, monkeypatch):
    folder = made[kind]
    assert not faults_of(folder)
    reader = type(open_store(folder))
    fill = reader.fill

    def fill_wrongly(self, id_, numbers, rows):
        fill(self, id_, numbers, rows)
        for number, row in zip(numbers, rows, strict=True):
            if number == 7:
                row[0, 0] ^= 1

    monkeypatch.setattr(reader, "fill", fill_wrongly)
    (fault,) = faults_of(folder)
    assert "open_store returns another picture for frame 7" in fault


def test_a_time_that_two_frames_have_in_the_manifest_is_found(made, tmp_path):
    folder = shutil.copytree(made["mp4"], tmp_path / "dst")
    path = next(folder.glob("manifest*.parquet"))
    table = pq.read_table(path)
    column = table.schema.get_field_index("pts")
    times = [number + (number == 9) for number in range(20)]
    table = table.set_column(column, table.schema.field(column), pa.array([times], table.schema.field(column).type))
    pq.write_table(table, path)
    assert faults_of(folder)


def test_a_label_that_does_not_come_back_is_found(made):
    folder = made["gulp"]
    (row,) = read_manifest(folder)
    row.labels["width"] = 7
    (fault,) = check_unit(Check(folder, row, settings_of(folder))).faults
    assert "for the label width" in fault


def test_videos_that_open_store_does_not_have_are_found(made):
    found, why = open_ids(made["burst"], "burst")
    assert found is not None and not why
    assert differing_ids(pa.chunked_array([["c00", "gone"]]), found) == (["gone"], [])
    assert differing_ids(pa.chunked_array([[]], pa.string()), found) == ([], ["c00"])


def test_the_sample_of_a_long_video_has_its_ends_and_its_closest_neighbours():
    times = [number * 3000 - (number == 700) * 2999 for number in range(1000)]
    chosen = sample_of(ManifestRow(id="long", source="", file_name="long.mp4", num_frames=1000, pts=times))
    assert {0, 699, 700, 999} <= set(chosen)
    assert len(chosen) <= 64
