"""Which sources a run takes, and how it works. Nothing here changes an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, ClassVar

from vidprep.formats.errors import SettingsError
from vidprep.formats.option import Option, check_options
from vidprep.formats.storage.base import is_url
from vidprep.transcode.settings.parse import parse_names, parse_shares

BAD_ROWS = ("fail", "skip")
CLUSTER_PROTOCOLS = ("tcp", "tls", "ucx", "ucxx", "ws", "wss", "inproc", "ray")


@dataclass(frozen=True, slots=True)
class Backend:
    """Where videos can be worked on. workers: `module:class` under `vidprep.transcode.workers`, imported when it is chosen; empty for this
    machine. package: what it needs, which an extra of the backend's name brings. address: where the cluster is looked for when nothing is
    given; None: it must be. address_example: for the message.
    """

    workers: str = ""
    package: str = ""
    address: str | None = None
    address_example: str = ""


BACKENDS = {
    "local": Backend(),
    "dask": Backend("dask:DaskPool", "distributed", None, "tcp://host:8786"),
    "ray": Backend("ray:RayPool", "ray", "auto", "host:6379"),
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """include, exclude: globs on relative paths and names. limit: the first so many, by their ids. labels: the columns of a table that
    are labels, None for all. split_by: (name, share) of splits, whose shares make 1; split_group: the label that is never in two.
    """

    HEADING: ClassVar[str] = "Sources"

    include: Annotated[tuple[str, ...], Option("Take only files that match; may be repeated.", "GLOB")] = ()
    exclude: Annotated[tuple[str, ...], Option("Leave out files and folders that match; may be repeated.", "GLOB")] = ()
    limit: Annotated[int | None, Option("Take only the first N, in the order of their names.", "N", least=1)] = None
    label_from_folder: Annotated[bool, Option("Fill the column `label` with the name of the parent folder.")] = False
    labels: Annotated[
        tuple[str, ...] | None, Option("Take only these columns of a table as labels.", "A,B", parse=parse_names)
    ] = None
    on_bad_row: Annotated[
        str,
        Option(
            "What to do with rows of a table that cannot mean anything. A missing file is a failed video all the same.",
            choices=BAD_ROWS,
        ),
    ] = "fail"
    split_by: Annotated[
        Mapping[str, Fraction] | None,
        Option(
            "Fill the column `split`, such as train=0.8,val=0.1,test=0.1: by source, of each class its share.",
            "NAME=SHARE,…",
            parse=parse_shares,
        ),
    ] = None
    split_group: Annotated[str | None, Option("Keep videos of one value of this label in one split.", "COLUMN")] = None
    split_seed: Annotated[int, Option("Draw other splits.", "N")] = 0
    keep_source_suffix: Annotated[bool, Option("Name outputs x.avi.mp4, where x.avi and x.mov would collide.")] = False

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            globs = getattr(self, name)
            object.__setattr__(self, name, (globs,) if isinstance(globs, str) else tuple(globs))
        check_options(self)
        if self.split_group is not None and self.split_by is None:
            raise SettingsError("<split_group> needs <split_by>", split_group=self.split_group, split_by="train=0.8,…")
        if self.split_seed and self.split_by is None:
            raise SettingsError("<split_seed> needs <split_by>", split_seed=self.split_seed, split_by="train=0.8,…")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the work is done, apart from what is made. ffmpeg: of the second engine."""

    HEADING: ClassVar[str] = "Run"

    backend: Annotated[
        str, Option("Work on this machine, or on the workers of a cluster that see the same paths.", choices=BACKENDS)
    ] = "local"
    cluster_address: Annotated[
        str | None,
        Option(
            "Of the dask scheduler (tcp://host:8786), or its file; of the ray head (host:6379), by default the one that this machine "
            "belongs to.",
            "ADDRESS",
        ),
    ] = None
    partition: Annotated[
        str | None,
        Option("Make part I (from 0) of N, as one task of an array; auto: the part of this Slurm array task.", "I/N"),
    ] = None
    jobs: Annotated[
        int | None,
        Option(
            "Videos at a time. Default: one per core that this process may use (CPU affinity, container quota).",
            "N",
            least=1,
        ),
    ] = None
    overwrite: Annotated[
        bool,
        Option(
            "Make again what is listed; if that is all sources, start over, also with other settings, and keep nothing older."
        ),
    ] = False
    skip_failed: Annotated[bool, Option("Do not retry videos that failed before.")] = False
    prune: Annotated[
        bool, Option("Remove rows and outputs whose source or cut is gone; never where only some sources are listed.")
    ] = False
    events: Annotated[
        str | Path | None, Option("Append events as JSON lines, for vidprep monitor; - is stdout.", "FILE", path="file")
    ] = None
    ffmpeg: Annotated[
        str | Path | None,
        Option(
            "The ffmpeg for --engine ffmpeg. Default: VIDPREP_FFMPEG, PATH, imageio-ffmpeg.",
            "PATH",
            path="file",
            only="transcode",
            heading="Encoding",
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.prune and self.partition is not None:
            raise SettingsError(
                "<prune>: a task of an array sees a part; prune by a run of all", prune=True, partition=self.partition
            )
        address = self.cluster_address
        if address and self.backend == "local":
            clusters = " or ".join(name for name, each in BACKENDS.items() if each.workers)
            raise SettingsError("<cluster_address> needs <backend>", cluster_address=address, backend=clusters)
        chosen = BACKENDS[self.backend]
        if chosen.workers and not address and chosen.address is None:
            raise SettingsError(
                "<backend> needs <cluster_address>", backend=self.backend, cluster_address=chosen.address_example
            )
        if address and is_url(address) and address.partition("://")[0] not in CLUSTER_PROTOCOLS:
            raise SettingsError("<cluster_address>: no cluster has such an address", cluster_address=address)
