"""Which sources a run takes, and how it works. Nothing here changes an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from vidprep.formats.errors import SettingsError
from vidprep.formats.files.remote import is_url

BAD_ROWS = ("fail", "skip")
BACKENDS = ("local", "dask", "ray")
CLUSTER_PROTOCOLS = ("tcp", "tls", "ucx", "ucxx", "ws", "wss", "inproc", "ray")


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
    """backend: where videos are worked on. scheduler: Dask's; address: Ray's. shard: `I/N`, or `auto` in a Slurm array. jobs: videos
    at a time, None for one per core. events: a file that gets what happens as lines of JSON. ffmpeg: of --engine ffmpeg.
    """

    backend: str = "local"
    scheduler: str | None = None
    address: str | None = None
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
        for backend, option in (("dask", "scheduler"), ("ray", "address")):
            if getattr(self, option) and self.backend != backend:
                raise SettingsError(
                    f"<{option}> goes with <backend>", **{option: getattr(self, option), "backend": backend}
                )
        if self.backend == "dask" and not self.scheduler:
            raise SettingsError(
                "<backend> needs <scheduler>, or the scheduler's file", backend="dask", scheduler="tcp://host:8786"
            )
        address = self.cluster_address
        if address and is_url(address) and address.partition("://")[0] not in CLUSTER_PROTOCOLS:
            option = "scheduler" if self.backend == "dask" else "address"
            raise SettingsError(f"<{option}>: no cluster has such an address", **{option: address})

    @property
    def cluster_address(self) -> str | None:
        return {"dask": self.scheduler, "ray": self.address}.get(self.backend)
