"""What a user types first: the names of README on `vidprep` itself, imported on first use."""

from __future__ import annotations

import subprocess
import sys

import vidprep
import vidprep.formats
import vidprep.transcode
from tests.helpers import make_clips


def test_the_names_of_the_readme_are_there_and_are_the_same_objects():
    for name in vidprep.__all__:
        package = vidprep.formats if hasattr(vidprep.formats, name) else vidprep.transcode
        assert getattr(vidprep, name) is getattr(package, name)
    assert {*vidprep.__all__, "formats", "transcode"} <= {*dir(vidprep)}
    assert vidprep.transcode.transcode.__name__ == "transcode"


def test_a_dataset_is_made_and_read_by_them(tmp_path):
    make_clips(tmp_path / "raw", 2, 10)
    assert vidprep.transcode(tmp_path / "raw", tmp_path / "ready", gop=5, preset="ultrafast").ok == 2
    assert vidprep.validate(tmp_path / "ready").checked == 2
    dataset = vidprep.VideoDataset(tmp_path / "ready", sequence_length=4)
    with vidprep.PrefetchLoader(dataset, batch_size=2, num_workers=0) as loader:
        assert sum(len(batch["id"]) for batch in loader) == len(dataset)


def test_nothing_is_imported_before_it_is_used():
    told = "import sys, vidprep; dir(vidprep); print([name for name in sys.modules if name.startswith(('vidprep.', 'numpy', 'av'))])"
    assert (
        subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
