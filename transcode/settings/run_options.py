"""Which sources a run takes, and how it works. Nothing here changes an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from vidprep.formats.errors import SettingsError
from vidprep.formats.files.remote import is_url

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
    "dask": Backend("dask:DaskWorkers", "distributed", None, "tcp://host:8786"),
    "ray": Backend("ray:RayWorkers", "ray", "auto", "host:6379"),
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """include, exclude: globs on relative paths and names. limit: the first so many, by their ids. labels: the columns of a table that
    are labels, None for all. split_by: (name, share) of splits, whose shares make 1; split_group: the label that is never in two.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    limit: int | None = None
    label_from_folder: bool = False
    labels: tuple[str, ...] | None = None
    on_bad_row: str = "fail"
    split_by: Mapping[str, Fraction] | None = None
    split_group: str | None = None
    split_seed: int = 0
    keep_source_suffix: bool = False

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            globs = getattr(self, name)
            object.__setattr__(self, name, (globs,) if isinstance(globs, str) else tuple(globs))
        if self.limit is not None and self.limit < 1:
            raise SettingsError("<limit>: give 1 or more", limit=self.limit)
        if self.on_bad_row not in BAD_ROWS:
            raise SettingsError(f"<on_bad_row>: not one of {', '.join(BAD_ROWS)}", on_bad_row=self.on_bad_row)
        if self.split_group is not None and self.split_by is None:
            raise SettingsError(
                "<split_group> goes with <split_by>", split_group=self.split_group, split_by="train=0.8,…"
            )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """backend: where videos are worked on. cluster_address: of Dask's scheduler, or its file; of Ray's head. shard: `I/N`, or `auto` in a
    Slurm array. jobs: videos at a time, None for one per core. events: a file that gets what happens as lines of JSON. ffmpeg: of
    --engine ffmpeg.
    """

    backend: str = "local"
    cluster_address: str | None = None
    shard: str | None = None
    jobs: int | None = None
    overwrite: bool = False
    skip_failed: bool = False
    prune: bool = False
    events: str | None = None
    ffmpeg: str | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise SettingsError(f"<backend>: not one of {', '.join(BACKENDS)}", backend=self.backend)
        if self.jobs is not None and self.jobs < 1:
            raise SettingsError("<jobs>: give 1 or more", jobs=self.jobs)
        if self.prune and self.shard is not None:
            raise SettingsError(
                "<prune>: a task of an array sees a part; prune by a run of all", prune=True, shard=self.shard
            )
        address = self.cluster_address
        if address and self.backend == "local":
            clusters = " or ".join(name for name, each in BACKENDS.items() if each.workers)
            raise SettingsError("<cluster_address> goes with <backend>", cluster_address=address, backend=clusters)
        chosen = BACKENDS[self.backend]
        if chosen.workers and not address and chosen.address is None:
            raise SettingsError(
                "<backend> needs <cluster_address>", backend=self.backend, cluster_address=chosen.address_example
            )
        if address and is_url(address) and address.partition("://")[0] not in CLUSTER_PROTOCOLS:
            raise SettingsError("<cluster_address>: no cluster has such an address", cluster_address=address)
