"""Which sources a run takes, and how it works. Nothing here changes an output."""

from __future__ import annotations

from dataclasses import dataclass

from vidprep.formats.errors import SettingsError
from vidprep.formats.files.remote import is_url

BACKENDS = ("local", "dask", "ray")
CLUSTER_PROTOCOLS = ("tcp", "tls", "ucx", "ucxx", "ws", "wss", "inproc", "ray")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """include, exclude: globs on relative paths and names. limit: the first so many, by their ids."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    limit: int | None = None
    label_from_folder: bool = False
    keep_source_suffix: bool = False

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            globs = getattr(self, name)
            object.__setattr__(self, name, (globs,) if isinstance(globs, str) else tuple(globs))
        if self.limit is not None and self.limit < 1:
            raise SettingsError("<limit>: give 1 or more", limit=self.limit)


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
    events: str | None = None
    ffmpeg: str | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise SettingsError(f"<backend>: not one of {', '.join(BACKENDS)}", backend=self.backend)
        if self.jobs is not None and self.jobs < 1:
            raise SettingsError("<jobs>: give 1 or more", jobs=self.jobs)
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
