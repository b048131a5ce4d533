"""Commands on a store on a web server that lists no folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers import transcode
from tests.web import Web, web_of
from vidprep.formats import read_manifest


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "root").mkdir()
    with web_of(tmp_path / "root", tmp_path / "web") as found:
        yield found


@pytest.mark.parametrize("kind", ["h264", "shards", "gulp"])
def test_a_store_is_shown_and_validated(kind: str, web: Web, store_of: Callable[[str], Path], tmp_path: Path) -> None:
    here, there = tmp_path / "root" / kind, f"{web.url}/{kind}"
    shutil.copytree(store_of(kind), here)
    web.behave(every=9)
    shown, local = transcode(there, verb="show"), transcode(here, verb="show")
    assert (shown.code, shown.out) == (0, local.out)
    assert transcode(there, verb="validate").code == 0
    row = max((row for row in read_manifest(here) if row.ok), key=lambda row: row.id)
    path = here / row.file_name
    data = bytearray(path.read_bytes())
    data[(row.offset or 0) + row.size_bytes // 2] ^= 1
    path.write_bytes(data)
    ran = transcode(there, verb="validate")
    assert ran.code == 1 and there in ran.out and row.id in ran.out and str(here) not in ran.out, ran
    path.unlink()
    ran = transcode(there, verb="validate")
    assert ran.code == 1 and row.file_name in ran.out, ran


def test_where_no_store_is_a_command_says_so(web: Web) -> None:
    ran = transcode(f"{web.url}/none", verb="show")
    assert ran.code == 2 and "is not a store" in ran.err and f"{web.url}/none" in ran.err
