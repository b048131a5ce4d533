"""Each argument of the Python functions is of the type that it declares, or is refused with its name."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.helpers import make_clips
from vidprep.formats.errors import SettingsError
from vidprep.transcode import burst, compact, merge, report, transcode, validate

WRONG = [
    ({"overwrite": "false"}, "overwrite='false': give True or False"),
    ({"gop": 2.0}, "gop=2.0: give a whole number"),
    ({"gop": True}, "gop=True: give a whole number"),
    ({"jobs": "2"}, "jobs='2': give a whole number or None"),
    ({"crf": "20"}, "crf='20': give a number or None"),
    ({"codec": 264}, "codec=264: give text, one of h264, hevc, vp9, av1"),
    ({"include": 3}, "include=3: give a list of text"),
    ({"size": (1, 2, 3)}, r"size=\(1, 2, 3\): give text or \(a whole number, a whole number\) or None"),
    ({"fps": [25]}, r"fps=\[25\]: give text or a number or a Fraction or None"),
    ({"progress": 1}, "progress=1: give True or False"),
]


@pytest.mark.parametrize(("keywords", "said"), WRONG)
def test_a_keyword_of_another_type_is_refused_by_its_name(keywords, said, tmp_path):
    """They ended in exceptions of others, and `overwrite="false"` overwrote."""
    with pytest.raises(SettingsError, match=f"^{said}$"):
        transcode(tmp_path, tmp_path / "made", **keywords)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("place", [None, b"/x", 3])
def test_an_invalid_path_creates_no_folder(place, tmp_path, monkeypatch):
    """`./None`, `./b'` and `./3` were made."""
    monkeypatch.chdir(tmp_path)
    source = make_clips(tmp_path / "src", 1)
    for function in (
        lambda: transcode(source, place),
        lambda: merge(place),
        lambda: validate(place),
        lambda: compact(place),
        lambda: report([place]),
    ):
        with pytest.raises(SettingsError, match=r"destinations?=.*: give text or a path"):
            function()
    with pytest.raises(SettingsError, match=r"quality=80\.5: give a whole number"):
        burst(source, "made", quality=80.5)
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_equivalent_types_are_accepted(tmp_path):
    source = make_clips(tmp_path / "src", 1)
    summary = transcode(
        source,
        str(tmp_path / "made"),
        gop=4,
        fps=Fraction(25, 2),
        crf=30,
        size=[32, 32],
        fit="crop",
        include=["*.mp4"],
        events=tmp_path / "events",
        limit=1,
    )
    assert summary.ok == 1 and (tmp_path / "events").exists()
