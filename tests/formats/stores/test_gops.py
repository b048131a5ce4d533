"""The index of every GOP, and videos in shards: the same frames by number, damage located, other readers."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from av.error import FFmpegError

from tests.helpers import make_clip, make_clips, transcode
from tests.real_media import SHARED_MEDIA
from vidprep.formats import open_store
from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.table import manifest_rows
from vidprep.formats.stores.encoded import VideoReader, VideoStore
from vidprep.formats.stores.gops import GOPS_NAME, read_known
from vidprep.formats.video import packets

CODECS = ("h264", "hevc", "vp9", "av1")
GOP = ("--gop", 5)


def indexed(store: VideoStore) -> list[bool]:
    return [store.entry(id_).packets is not None for id_ in store.ids]


def by_container(store: VideoStore, id_: str) -> np.ndarray:
    """All frames of a video by seeks in its container."""
    reader, facts = store._open(id_), store.facts(id_)
    rows = np.empty((facts.num_frames, facts.height, facts.width, 3), np.uint8)
    reader.fill(range(len(rows)), rows)
    reader.close()
    return rows


def same_everywhere(src: Path, work: Path, codec: str) -> None:
    files, shards = work / "files", work / "shards"
    assert transcode(src, files, *GOP, "--codec", codec).code == 0
    assert transcode(src, shards, *GOP, "--codec", codec, "--format", "shards", "--shard-size", "1MiB").code == 0
    one, other = open_store(files), open_store(shards)
    assert isinstance(one, VideoStore) and isinstance(other, VideoStore) and list(one.ids) == list(other.ids)
    assert all(indexed(one)) and all(indexed(other))
    for id_ in one.ids:
        frames = by_container(one, id_)
        for store in (one, other):
            backwards = range(len(frames) - 1, -1, -3)
            assert np.array_equal(store[id_].frames(backwards), frames[backwards])
            assert np.array_equal(store[id_].frames(), frames), (id_, store)
        assert one[id_].timestamps.tolist() == other[id_].timestamps.tolist()
        assert one[id_].source_frames.tolist() == other[id_].source_frames.tolist()


@pytest.mark.parametrize("codec", CODECS)
def test_frames_by_number_are_the_same_from_files_from_shards_and_by_the_container(codec, tmp_path):
    same_everywhere(make_clips(tmp_path / "src", 3, 23, size=(96, 64)), tmp_path, codec)


@pytest.mark.long
@pytest.mark.media
@pytest.mark.skipif(not SHARED_MEDIA.exists(), reason="no real clips")
@pytest.mark.parametrize("codec", CODECS)
def test_real_clips_are_the_same_from_files_from_shards_and_by_the_container(codec, tmp_path):
    src = tmp_path / "src"
    src.mkdir()
    for clip in SHARED_MEDIA.glob("*.*"):
        (src / clip.name).symlink_to(clip)
    args = ("--short-side", 96, "--fps", 7, "--max-frames", 3000)
    for form in ("files", "shards"):
        assert transcode(src, tmp_path / form, *GOP, *args, "--codec", codec, "--format", form).code in (0, 1)
    one, other = open_store(tmp_path / "files"), open_store(tmp_path / "shards")
    assert list(one.ids) == list(other.ids) and len(one) > 30 and all(indexed(one)) and all(indexed(other))
    for id_ in one.ids:
        frames = by_container(one, id_)
        assert np.array_equal(one[id_].frames(), frames) and np.array_equal(other[id_].frames(), frames), id_


def test_a_sequence_is_one_read_and_no_container_is_opened(store_of, monkeypatch):
    store = open_store(store_of("shards"))
    id_ = store.ids[1]
    due, reads = by_container(store, id_)[3:11], []
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: (reads.append(args[1:]), read(*args))[1])
    monkeypatch.setattr(VideoReader, "__init__", lambda *_args, **_more: pytest.fail("a container was opened"))
    assert np.array_equal(store[id_].frames(range(3, 11)), due)
    assert len(reads) == 1
    assert len(pickle.loads(pickle.dumps(store))[id_].frames([0])) == 1


@pytest.mark.parametrize("kind", ["h264", "shards", "h264 own times"])
def test_one_flipped_byte_is_found_and_located(kind, store_of, tmp_path):
    folder = Path(shutil.copytree(store_of(kind), tmp_path / "made"))
    store = open_store(folder)
    id_, entry = store.ids[2], store.entry(store.ids[2])
    _, offset, size = entry.packets.span(1)
    file = folder / entry.file_name
    with file.open("r+b") as data:
        data.seek(entry.offset + offset + size // 2)
        byte = data.read(1)[0]
        data.seek(-1, os.SEEK_CUR)
        data.write(bytes([byte ^ 8]))
    first, end = entry.packets.keyframes[1], entry.packets.gop_end(1)
    with pytest.raises(StoreError, match=f"from {entry.offset + offset} on .frames {first} to {end - 1}.") as raised:
        open_store(folder)[id_].frames([first])
    assert str(raised.value.path) == str(file)
    assert len(open_store(folder)[id_].frames(range(first))) == first, "the GOP before it is whole"
    assert open_store(folder)[store.ids[1]].frames().any(), "and so is every other video"
    ran = transcode(folder, verb="validate")
    named = [line for line in ran.out.splitlines() if id_ in line]
    assert ran.code == 1 and f"from {entry.offset + offset} on" in ran.out and len(named) == len(ran.out.splitlines())
    try:  # without its checksum, it decodes to something, or says that it does not
        open_store(folder, checksum=False)[id_].frames([first])
    except StoreError as error:
        assert "does not decode" in str(error) or "do not come out" in str(error)


def test_every_flipped_byte_of_the_index_is_refused_or_changes_nothing(store_of, tmp_path):
    folder = Path(shutil.copytree(store_of("shards"), tmp_path / "made"))
    path = folder / GOPS_NAME
    whole, due = path.read_bytes(), {id_: video.frames([7])[0] for id_, video in _videos(folder)}
    refused = 0
    for at in range(0, len(whole), max(1, len(whole) // 400)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            found = {id_: video.frames([7])[0] for id_, video in _videos(folder)}
        except (StoreError, FFmpegError):
            refused += 1
            continue
        assert found.keys() == due.keys() and all(np.array_equal(found[id_], due[id_]) for id_ in due), at
    assert refused > 200
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=r"gops\.parquet"):
        open_store(folder)
    assert transcode(folder, verb="validate").code == 1
    assert transcode(folder, verb="index").code == 0
    assert path.read_bytes() == whole and transcode(folder, verb="validate").code == 0


def _videos(folder):
    store = open_store(folder)
    return [(id_, store[id_]) for id_ in store.ids]


def test_a_destination_of_an_earlier_version_is_read_by_containers_until_it_is_indexed(tmp_path):
    src, made = make_clips(tmp_path / "src", 3, 12), tmp_path / "made"
    assert transcode(src, made, *GOP).code == 0
    whole = (made / GOPS_NAME).read_bytes()
    (made / GOPS_NAME).unlink()
    assert indexed(open_store(made)) == [False] * 3
    due = {id_: video.frames() for id_, video in _videos(made)}
    assert transcode(made, verb="validate").code == 0
    make_clip(src / "new.mp4", 9)
    assert transcode(src, made, *GOP).code == 0, "a run indexes what it makes"
    assert indexed(open_store(made)) == [False] * 3 + [True]
    ran = transcode(made, verb="index")
    assert ran.code == 0 and not ran.out, ran
    store = open_store(made)
    assert indexed(store) == [True] * 4 and all(np.array_equal(store[id_].frames(), due[id_]) for id_ in due)
    (src / "new.mp4").unlink()
    assert transcode(src, made, *GOP, "--prune").code == 0
    assert (made / GOPS_NAME).read_bytes() == whole


def test_files_become_shards_and_files_again_byte_by_byte(store_of, tmp_path):
    whole = store_of("h264")
    assert transcode(whole, tmp_path / "shards", "--to", "shards", "--shards", 3, verb="pack").code == 0
    assert transcode(tmp_path / "shards", tmp_path / "files", "--to", "files", verb="pack").code == 0
    for folder in ("shards", "files"):
        assert transcode(tmp_path / folder, verb="validate").code == 0
        assert all(indexed(open_store(tmp_path / folder)))
    for row in manifest_rows(whole):
        assert (tmp_path / "files" / row.file_name).read_bytes() == (whole / row.file_name).read_bytes()
    assert read_known(tmp_path / "files" / GOPS_NAME).equals(read_known(whole / GOPS_NAME))
    before = {id_: (video.frames(), video.store.labels(id_)) for id_, video in _videos(whole)}
    for folder in ("shards", "files"):
        for id_, video in _videos(tmp_path / folder):
            assert np.array_equal(video.frames(), before[id_][0]) and video.store.labels(id_) == before[id_][1]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("file_name", "../secret.txt"),
        ("file_name", "/etc/hostname"),
        ("file_name", None),
        ("container", "/../../victim.txt"),
        ("codec", "mjpeg"),
        ("codec", None),
        ("offset", 2**63 - 1),
        ("offset", -5),
        ("size_bytes", 7),
        ("num_frames", 2**50),
        ("width", 0),
        ("frame_rate_num", -25),
        ("time_base_den", 0),
        ("packets", b"\1nonsense"),
    ],
)
def test_an_index_with_values_that_no_run_wrote_is_refused(column, value, store_of, tmp_path):
    """A store that came from elsewhere read files beside it, and wrote outside of the folder of `pack`."""
    folder = Path(shutil.copytree(store_of("h264 own times" if column == "num_frames" else "h264"), tmp_path / "made"))
    table = pq.read_table(folder / GOPS_NAME)
    kind = table.schema.field(column).type
    changed = {column: value} | (
        {"pts": None, "packets": None} if column == "num_frames" else {"pts": None} if "rate" in column else {}
    )
    for name, each in changed.items():
        kind = table.schema.field(name).type
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(name), pa.array([each] * len(table), kind))
    with pq.ParquetWriter(folder / GOPS_NAME, table.schema) as writer:
        writer.write_table(table)
    id_ = pq.read_table(folder / GOPS_NAME)["id"][0].as_py()
    with pytest.raises(StoreError, match=r"gops\.parquet|of [0-9]+ bytes|neither a frame rate"):
        open_store(folder)[id_].frames([0])
    for to in ("hf", "files", "shards"):
        assert transcode(folder, tmp_path / to, "--to", to, verb="pack").code != 0
    assert {path.name for path in tmp_path.iterdir()} <= {"made", "hf", "files", "shards"}


def test_two_videos_that_are_decoded_in_turns_do_not_share_a_decoder(store_of):
    store = open_store(store_of("h264"))
    one, other = store.ids[:2]
    assert store.entry(one).config == store.entry(other).config
    pairs = zip(store.decode(one, range(20)), store.decode(other, range(20)), strict=True)
    found = [(first[1].to_ndarray(), second[1].to_ndarray()) for first, second in pairs]
    for place, id_ in enumerate((one, other)):
        due = [frame.to_ndarray() for _, frame in store.decode(id_, range(20))]
        assert all(np.array_equal(pair[place], each) for pair, each in zip(found, due, strict=True))


def test_a_long_span_is_read_in_parts(store_of, monkeypatch):
    store = open_store(store_of("h264"))
    due, reads, read = store[store.ids[0]].frames(), [], os.pread
    monkeypatch.setattr(packets, "SPAN_BYTES", 1)
    monkeypatch.setattr(os, "pread", lambda *args: (reads.append(args[1]), read(*args))[1])
    assert np.array_equal(store[store.ids[0]].frames(), due)
    assert len(reads) == len(store[store.ids[0]].keyframes)


def test_a_lost_manifest_is_not_hidden_by_the_index(store_of, tmp_path):
    for kind in ("h264", "shards"):
        folder = Path(shutil.copytree(store_of(kind), tmp_path / kind))
        (folder / "manifest.parquet").unlink()
        with pytest.raises(StoreError, match=r"no manifest\.parquet"):
            open_store(folder)
        assert transcode(folder, verb="index").code == 2


def test_packets_that_are_known_outlive_an_array_over_an_old_destination(tmp_path):
    """The index of before said nothing of a video that a partition had indexed, and `merge` believed it."""
    src, made = make_clips(tmp_path / "src", 4, 12), tmp_path / "made"
    assert transcode(src, made, *GOP).code == 0
    (made / GOPS_NAME).unlink()
    make_clip(src / "new.mp4", 9)
    assert transcode(src, made, *GOP).code == 0
    assert indexed(open_store(made)).count(True) == 1
    for part in range(2):
        assert transcode(src, made, *GOP, "--overwrite", "--partition", f"{part}/2").code == 0
    assert transcode(made, verb="merge").code == 0
    assert all(indexed(open_store(made))) and not list(made.glob("gops-*"))


def test_what_cannot_be_indexed_is_named_and_nothing_is_hidden(tmp_path):
    src, made = make_clips(tmp_path / "src", 3, 12), tmp_path / "made"
    assert (ran := transcode(src, verb="index")).code == 2 and "has no manifest.parquet" in ran.err
    (made / GOPS_NAME).mkdir(parents=True)
    assert (ran := transcode(src, made, *GOP)).code == 2 and "is a folder" in ran.err
    (made / GOPS_NAME).rmdir()
    (made / GOPS_NAME).write_bytes(b"of others")
    assert (ran := transcode(src, made, *GOP)).code == 2 and "no run of vidprep wrote" in ran.err
    (made / GOPS_NAME).unlink()
    assert transcode(src, made, *GOP).code == 0
    (made / GOPS_NAME).unlink()
    shutil.copy(made / "c01.mp4", made / "c00.mp4")
    (made / "c02.mp4").unlink()
    ran = transcode(made, verb="index")
    assert ran.code == 1 and "c00: cannot be read: is not the file" in ran.out and "c02: cannot be read" in ran.out
    assert transcode(src, made, *GOP).code == 0 and transcode(src, made, *GOP, "--overwrite").code == 0
    assert all(indexed(open_store(made)))
    (made / GOPS_NAME).unlink()
    (src / "c03.mp4").write_bytes((src / "c01.mp4").read_bytes())
    ran = transcode(src, made, *GOP)
    assert "2 videos of an earlier version" in ran.err or "3 videos of an earlier version" in ran.err, ran.err
    assert "indexes them" in transcode(made, verb="validate").err
