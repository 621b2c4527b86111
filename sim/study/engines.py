"""Where runs are carried out: in this process, in worker processes, or on a dask.distributed cluster.

Each engine gives a `concurrent.futures.Executor`, says how many runs it takes at once and which exceptions mean that a
worker died under a run.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sim.errors import InputError, RunError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Runs are the parallel part: threads inside a worker's matrix products would only fight for the same cores.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_CONNECT_TIMEOUT = 10.0  # seconds


class Engine(Protocol):
    """What the loop over jobs needs to know of the place where they run."""

    @property
    def num_workers(self) -> int: ...

    @property
    def writes_here(self) -> bool:
        """Whether workers write into the study's folder themselves."""
        ...

    @property
    def died(self) -> tuple[type[BaseException], ...]:
        """Exceptions of a future that mean that its worker died."""
        ...

    def open(self) -> AbstractContextManager[Executor]:
        """A context manager that gives the executor."""
        ...


class _Inline(Executor):
    """Runs a task at once, in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@dataclass(frozen=True)
class InProcess:
    """One run after the other in this process: nothing to start, nothing to lose."""

    num_workers: int = 1
    writes_here: bool = True
    died: tuple[type[BaseException], ...] = ()

    @contextmanager
    def open(self) -> Iterator[Executor]:
        yield _Inline()


@dataclass(frozen=True)
class Processes:
    """Worker processes on this machine."""

    num_workers: int
    writes_here: bool = True
    died: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    @contextmanager
    def open(self) -> Iterator[Executor]:
        """A pool that ends with this process, however it ends: its workers watch a pipe that only we keep open."""
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        reader, writer = context.Pipe(duplex=False)
        with reader, writer, _environment(dict.fromkeys(ONE_THREAD, "1")):
            pool = ProcessPoolExecutor(self.num_workers, context, _start_worker, (reader,))
            try:
                yield pool
            except BaseException:
                writer.close()  # workers leave at once, in the middle of their runs
                raise
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Cluster:
    """Workers of a dask.distributed cluster that is running already.

    They need the same version of servesim, and every file that the experiments name (traces, profiles) under the same
    path. Results travel back through the scheduler and are written here.
    """

    client: Any
    num_workers: int
    writes_here: bool = False
    died: tuple[type[BaseException], ...] = ()

    @contextmanager
    def open(self) -> Iterator[Executor]:
        # The cluster repeats a run on another worker when one dies; what is left for us is a run that kills them all.
        executor = self.client.get_executor(pure=False, retries=2)
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)


class Kept:
    """An engine whose workers stay between rounds; new ones are started when they died."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.num_workers = engine.num_workers
        self.writes_here = engine.writes_here
        self.died = engine.died
        self._stack = ExitStack()
        self._executor: Executor | None = None

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *leaving: Any) -> None:
        self._stack.__exit__(*leaving)

    @contextmanager
    def open(self) -> Iterator[Executor]:
        if self._executor is None or not self._lives(self._executor):
            self._stack.close()
            self._executor = self._stack.enter_context(self.engine.open())
        yield self._executor

    def _lives(self, executor: Executor) -> bool:
        try:
            executor.submit(int).result()
        except self.died:
            return False
        return True


def local_engine(num_workers: int) -> Engine:
    """So many worker processes; for one worker this process itself."""
    return InProcess() if num_workers == 1 else Processes(num_workers)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def cluster_engine(address: str) -> Iterator[Engine]:
    """Connect to the scheduler at `address` (`tcp://host:8786`). Raises `InputError` when that does not work."""
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise InputError("--cluster needs dask.distributed: pip install 'servesim[cluster]'") from None
    try:
        client: Any = Client(address, timeout=_CONNECT_TIMEOUT, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"--cluster {address}: no scheduler answers there ({_first_line(error)})") from None
    with client:
        cores = sum(client.ncores().values())
        if cores == 0:
            raise RunError(f"--cluster {address}: the cluster has no worker")
        yield Cluster(client, cores, died=(KilledWorker,))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _start_worker(pipe: Connection) -> None:
    """Initialize a worker process: Ctrl-C is the parent's affair, and the end of the parent is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, args=(pipe,), daemon=True).start()


def _leave_with_parent(pipe: Connection) -> None:
    try:
        pipe.recv_bytes()  # nothing is ever sent: it returns when the other end is closed
    except (EOFError, OSError):
        os._exit(1)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for processes that start in the meantime."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
