"""A backend is a class and a row of BACKENDS: options, command and runs know it then."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.helpers import make_clips
from vidprep.formats.errors import SettingsError
from vidprep.transcode import transcode
from vidprep.transcode.settings.run import BACKENDS, Backend
from vidprep.transcode.workers.child import make, stops_the_run
from vidprep.transcode.workers.local import LocalPool


class ToyPool(LocalPool):
    """Two threads of this process."""

    def __init__(self, address, say, expected):
        super().__init__(2, make, stops_the_run)
        assert expected is not None
        say(f"toys at {address}")


def test_a_row_makes_a_backend(monkeypatch, tmp_path):
    module = ModuleType("vidprep.transcode.workers.toy")
    module.ToyPool = ToyPool
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(BACKENDS, "toy", Backend("toy:ToyPool", "toys", None, "box:1"))
    src = make_clips(tmp_path / "src", 2)
    with pytest.raises(SettingsError, match="backend='toy' needs cluster_address='box:1'"):
        transcode(src, tmp_path / "dst", backend="toy")
    summary = transcode(src, tmp_path / "dst", backend="toy", cluster_address="box:7")
    assert (summary.ok, summary.failed) == (2, 0)
    with pytest.raises(SettingsError, match="backend='toys': not one of local, dask, ray, toy"):
        transcode(src, tmp_path / "dst", backend="toys")
