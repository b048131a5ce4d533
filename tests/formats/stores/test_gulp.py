"""Gulp folders put together by hand: what their JSON may claim."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from vidprep.formats import open_store
from vidprep.formats.errors import StoreError

PICTURES = np.random.default_rng(0).integers(0, 255, (3, 6, 8, 3), np.uint8).repeat(8, 1).repeat(8, 2)
JPEGS = [bytes(simplejpeg.encode_jpeg(picture, 95)) for picture in PICTURES]


def write_gulp(folder: Path, frame_info: object = None, meta_data: object = None) -> Path:
    """One video, `v`; what is not given is as it should be."""
    places, data = [], b""
    for jpeg in JPEGS:
        pad = -len(jpeg) % 4
        places.append([len(data), pad, len(jpeg) + pad])
        data += jpeg + bytes(pad)
    (folder / "data_0.gulp").write_bytes(data)
    entry = {"frame_info": places if frame_info is None else frame_info, "meta_data": meta_data or [{"label": "walk"}]}
    (folder / "meta_0.gmeta").write_text(json.dumps({"v": entry}))
    return folder


def test_frames_labels_and_sizes(tmp_path):
    store = open_store(write_gulp(tmp_path))
    assert store.labels("v") == {"label": "walk"}
    video = store["v"]
    assert (len(video), video.height, video.width, video.frame_rate) == (3, 48, 64, None)
    for number, jpeg in enumerate(JPEGS):
        assert np.array_equal(video.frames([number])[0], simplejpeg.decode_jpeg(jpeg))
    with pytest.raises(StoreError, match="has no times of v"):
        video.timestamps  # noqa: B018


@pytest.mark.parametrize(
    "place",
    [
        [-4, 0, 800],
        [0, 0, -5],
        [0, 0, 2**40],
        [0, 0, 2**62],
        [2**70, 0, 800],
        ["a", 0, 800],
        [0, 0],
        [0.0, 0, 800],
        [0, 805, 800],
        [0, -3, 800],
        [0, 0, 0],
        None,
        [0, 0, float("nan")],
        [float("inf"), 0, 800],
    ],
)
def test_a_place_outside_the_data_is_refused_before_anything_is_read(place, tmp_path):
    store = open_store(write_gulp(tmp_path, [place] * 3))
    with pytest.raises(StoreError, match=r"data_0\.gulp: frame 0 of v: "):
        store["v"]


@pytest.mark.parametrize(
    "entry", [{}, {"v": []}, {"v": {"frame_info": 3, "meta_data": []}}, {"v": {"meta_data": [{}]}}, []]
)
def test_json_of_another_shape_is_refused(entry, tmp_path):
    write_gulp(tmp_path)
    (tmp_path / "meta_0.gmeta").write_text(json.dumps(entry))
    if entry == {}:
        assert len(open_store(tmp_path)) == 0
        return
    with pytest.raises(StoreError, match=r"meta_0\.gmeta"):
        open_store(tmp_path)


def test_a_rate_that_is_none_is_refused(tmp_path):
    store = open_store(write_gulp(tmp_path, meta_data=[{"frame_rate": [25, 0]}]))
    with pytest.raises(StoreError, match=r"\[25, 0\] is not a frame rate"):
        store["v"]
