"""What `vidprep pack` leaves: a whole output or the one before; and what other commands make of frames that it made."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers import make_clips, transcode
from vidprep.formats import open_store
from vidprep.formats.errors import DestinationError, StoreError
from vidprep.transcode import burst, label, pack, validate
from vidprep.transcode.export.pack import building


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make_clips(tmp_path / "src", 2, 6)
    assert transcode(tmp_path / "src", tmp_path / "ready", "--gop", 3, "--fps", 10, "--preset", "ultrafast").code == 0
    return tmp_path / "ready"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("to", ["files", "shards", "hf", "lerobot"])
def test_a_damaged_video_is_not_packed_and_the_pack_before_stays(made: Path, tmp_path: Path, to: str) -> None:
    label(made, pa.table({"id": ["c00", "c01"], "episode_index": [0, 1]}))
    out = tmp_path / "out"
    pack(made, out, to=to)
    before = content(out)
    data = bytearray((made / "c01.mp4").read_bytes())
    data[-20] ^= 0xFF
    (made / "c01.mp4").write_bytes(data)
    for place, overwrite in ((out, True), (tmp_path / "new", False)):
        with pytest.raises(StoreError, match=r"c01: its SHA-256 does not match|c01: .*not those that were written"):
            pack(made, place, to=to, overwrite=overwrite)
    assert content(out) == before
    assert not (tmp_path / "new").exists()


def test_what_a_killed_pack_left_is_no_hindrance(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(made, tmp_path / "other", to="burst")
    (out / ".vidprep-pack-partial" / "half").mkdir(parents=True)
    pack(made, out, to="burst")
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "other").iterdir()}


def test_one_pack_at_a_time_writes_a_folder(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    store = open_store(made)
    with building(out, store) as partial:
        (partial / "one.txt").touch()
        for overwrite in (False, True):
            with pytest.raises(DestinationError, match="another `pack` is writing here"):
                pack(made, out, to="frames", overwrite=overwrite)
    assert {path.name for path in out.iterdir()} == {".vidprep-pack", "one.txt"}


def test_what_cannot_be_replaced_can_be_packed_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pack(made, out, to="files")
    before = content(out)

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("vidprep.transcode.export.pack.shutil.rmtree", refused)
        with pytest.raises(DestinationError, match=r"holds parts: Permission denied: .*pack again with overwrite=True"):
            pack(made, out, to="files", overwrite=True)
    pack(made, out, to="files", overwrite=True)
    assert content(out) == before


@pytest.mark.parametrize("to", ["burst", "tensor"])
def test_packed_frames_have_no_sources(made: Path, tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    pack(made, out, to=to)
    assert not validate(out).faults
    with pytest.raises(StoreError, match=f"was made by `pack` from {made}.*without source"):
        validate(out, source=tmp_path / "src")
    before = content(out)
    (tmp_path / "t.csv").write_text("path,id\nsrc/c00.mp4,c00\n")
    options = {} if to == "burst" else {"format": "tensor", "size": "64x64"}
    for source in (tmp_path / "src", tmp_path / "t.csv"):
        with pytest.raises(DestinationError, match=r"was made by `pack`|different settings"):
            burst(source, out, **options)
    assert {name: data for name, data in content(out).items() if "lease" not in name} == before
    assert len(open_store(out)) == 2
    ran = transcode(out, "--out", tmp_path / "page", verb="report")
    assert ran.code == 0, ran.err


def test_splits_are_named_where_one_store_is_due(made: Path, tmp_path: Path) -> None:
    label(made, pa.table({"id": ["c00", "c01"], "split": ["train", "val"]}))
    pack(made, tmp_path / "out", to="shards")
    with pytest.raises(StoreError, match="its folders train, val were: give one"):
        validate(tmp_path / "out", source=tmp_path / "src")


def test_an_output_whose_source_no_longer_has_its_name_is_validated(made: Path, tmp_path: Path) -> None:
    (tmp_path / "src" / "c00.mkv").write_bytes((tmp_path / "src" / "c00.mp4").read_bytes())
    assert transcode(tmp_path / "src", made, "--gop", 3, "--fps", 10, "--preset", "ultrafast").code == 1
    data = bytearray((made / "c00.mp4").read_bytes())
    data[-20] ^= 0xFF
    (made / "c00.mp4").write_bytes(data)
    faults = validate(made, source=tmp_path / "src").faults
    assert not any("its source is not among those given" in fault for fault in faults), faults
    assert any("c00.mp4: c00: its SHA-256 does not match" in fault for fault in faults), faults
    (tmp_path / "src" / "c00.mkv").unlink()
    (made / "c00.mp4").unlink()
    assert transcode(tmp_path / "src", made, "--gop", 3, "--fps", 10, "--preset", "ultrafast").code == 0
    assert not validate(made, source=tmp_path / "src").faults
