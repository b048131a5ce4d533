"""The workers of a PrefetchLoader: processes or threads, their shared memory, and messages in both directions."""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import SettingsError
from vidprep.formats.processes import Answer, DiedError, Process
from vidprep.formats.training._joined_datasets import JoinedDatasets
from vidprep.formats.training._worker import (
    Ahead,
    ItemResult,
    Load,
    Reset,
    Worker,
    WorkerSetup,
    serve,
    serve_from_process,
    worker_of,
)
from vidprep.formats.training.dataset import VideoDataset

SHARED_MEMORY = Path("/dev/shm")
END_SECONDS = 5.0
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A worker ended unexpectedly.

    Attributes:
        code: Exit code of its process; negative for a signal
        error: The error that ended it, if it could report one
    """

    code: int
    error: Exception | None = None


Inbox = queue.SimpleQueue[tuple[int, ItemResult | Reset | Load | WorkerExit]]
Line = queue.SimpleQueue[Any]


class WorkerPool:
    """Workers of a loader, started at their first message.

    Attributes:
        inbox: Results, each with the number of its worker

    Raises:
        SettingsError: There is not enough memory to share.
    """

    def __init__(
        self,
        dataset: VideoDataset | JoinedDatasets,
        workers: int,
        memory_bytes: int,
        frame_bytes: int,
        ahead: Ahead,
        *,
        processes: bool,
        late: bool,
    ) -> None:
        self.inbox: Inbox = queue.SimpleQueue()
        self._dataset, self._frame_bytes, self._ahead, self._workers = dataset, frame_bytes, ahead, workers
        self._about = WorkerSetup.build(dataset, late=late) if processes else None
        self._file = _reserve(memory_bytes) if processes else None
        self._memory = mmap.mmap(-1 if self._file is None else self._file.fileno(), memory_bytes)
        self._size = memory_bytes
        self._processes: dict[int, Process] = {}
        self._lines: dict[int, Line] = {}
        self._threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, _end, self._processes, self._lines, self._threads, self._file)

    @property
    def loads_late(self) -> bool:
        """Whether workers decode before they have imported their transforms; see `Load`."""
        return self._about is not None and bool(self._about.late)

    def view(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Return (size,) bytes of the shared memory."""
        return np.frombuffer(self._memory, np.uint8, size, offset)

    def send(self, worker: int, message: object) -> None:
        """Send a message without waiting. If the worker has ended, the inbox reports it, and its successor must be sent
        everything again.
        """
        if not self._lines:
            for number in range(self._workers):
                self.start(number, late=True)
        self._lines[worker].put(message)

    def tell_all(self, message: object) -> None:
        for worker in range(self._workers):
            self.send(worker, message)

    def start(self, worker: int, *, late: bool) -> None:
        """Start a worker under this number. Raises OSError.

        Args:
            worker: Its number.
            late: Whether it may import transforms later.
        """
        line = self._lines[worker] = Line()
        if self._file is None or self._about is None:
            made = worker_of(self._dataset, self._memory, self._frame_bytes, self._ahead)
            self._start_thread(_serve, made, line, _Reply(self.inbox, worker))
            return
        memory = self._file.fileno()
        process = self._processes[worker] = Process(share=(memory, *self._about.files), environment=ONE_THREAD)
        arguments = self._about, memory, self._size, self._frame_bytes, self._ahead, self._workers, late
        speaker = self._start_thread(_pass_on, line, process, (serve_from_process, *arguments))
        self._start_thread(_listen, worker, process, line, speaker, self.inbox)

    def _start_thread(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def close(self) -> None:
        """End the workers, and wait for them."""
        self._finalizer()


@dataclass(frozen=True, slots=True)
class _Reply:
    """Callback of a thread that puts its results into the inbox."""

    inbox: Inbox
    worker: int

    def __call__(self, message: ItemResult | Reset | Load) -> None:
        self.inbox.put((self.worker, message))


def _serve(made: Worker, line: Line, reply: _Reply) -> None:
    """Run a worker in a thread, and report its end."""
    try:
        serve(made, line, reply, lambda: None)
    except BaseException:
        reply.inbox.put((reply.worker, WorkerExit(1)))
        raise


def _listen(worker: int, process: Process, line: Line, speaker: threading.Thread, inbox: Inbox) -> None:
    """Read all messages of a worker process, so that it never waits for the loader.

    The process is closed after the thread that sends to it has ended: a closed descriptor may be reused for the next
    worker, which would then receive messages meant for this one.
    """
    gone = WorkerExit(0)
    try:
        while not isinstance(message := process.receive(), Answer):
            inbox.put((worker, message))
        gone = WorkerExit(0, message.error)
    except DiedError as died:
        gone = WorkerExit(died.exit_code)
    process.kill()  # otherwise it would interpret remaining messages as calls
    line.put(None)
    speaker.join()
    process.close()
    inbox.put((worker, gone))


def _pass_on(line: Line, process: Process, call: tuple[Any, ...]) -> None:
    """Send messages to a worker process, so that the loader never waits for it."""
    with contextlib.suppress(DiedError):  # the worker has ended, which the listening thread reports
        process.begin(*call)
        while (message := line.get()) is not None:
            process.send(message)
        process.send(None)


def _end(
    processes: dict[int, Process], lines: dict[int, Line], threads: list[threading.Thread], file: IO[bytes] | None
) -> None:
    """End all threads. A thread inside a decoder when Python exits would be killed, and C++ aborts the program then."""
    for line in lines.values():
        line.put(None)
    for process in processes.values():
        process.kill()  # nothing is lost; waiting for the current item, or for torch to exit, could take seconds
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(END_SECONDS)
    processes.clear()
    lines.clear()
    if file is not None:
        file.close()


def _find_shared_folder() -> Path:
    """Return where memory to share is taken from."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


def free_shared_memory() -> int:
    """Return how many bytes of memory can be shared with workers."""
    return shutil.disk_usage(_find_shared_folder()).free


def _reserve(size: int) -> IO[bytes]:
    """Return a nameless file with reserved space, in memory if possible."""
    folder = _find_shared_folder()
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as the crew)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
    except OSError as error:
        file.close()
        raise SettingsError(
            f"no {size:,} bytes of shared memory in {folder} ({error.strerror}); give a smaller batch_size or processes=False "
            "(or more to the container: docker run --shm-size)"
        ) from error
    return file
