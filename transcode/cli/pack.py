"""`vidprep pack`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vidprep.formats.option import options_of
from vidprep.formats.text import count_of
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import LocalPath, options
from vidprep.transcode.export.api import pack as make


@click.command(cls=Command)
@click.argument("store", metavar="STORE", type=LocalPath())
@click.argument("out", metavar="OUT", type=LocalPath())
@options(options_of(make))
def pack(store: Path, out: Path, **given: Any) -> None:
    """Convert STORE (what transcode or burst made, or a GulpIO or WebDataset folder) into what another tool reads.

    \b
    burst, gulp, webdataset, tensor   another store; JPEGs are copied as they are, videos go into tar shards as they are
    frames                            a folder of img_00001.jpg … for each video
    hf                                a folder for load_dataset("videofolder"), labels included
    torchcodec                        custom_frame_mappings of each video
    dali, mmaction                    their lists of files and numbered labels
    """
    packed = make(store, out, **given)
    click.echo(f"vidprep: {count_of(packed.num_videos, 'video')} packed into {out}", err=True)
    if "labels" in given:
        where = out / "labels.csv"
        click.echo(
            f"vidprep: {count_of(packed.labels, 'label')} in {where}; {packed.labels_unseen} lie where no output has a frame",
            err=True,
        )
