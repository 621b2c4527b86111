"""The loop over the jobs of a study on any engine, which survives the death of workers.

When a worker dies, the runs in flight are suspects: they are tried again, alone, after all others, and given up after
`MAX_DEATHS` deaths. So a run that kills its worker (memory, a crash of a library) costs no other run its result.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from sim.study.engines import Engine
from sim.study.jobs import RUN_ERROR, Done, Job, execute, save

MAX_DEATHS = 3
OnDone = Callable[[Job, Done], None]


@dataclass
class _Loop:
    engine: Engine
    runs: Path
    on_done: OnDone
    deaths: Counter[str] = field(default_factory=Counter)
    done: dict[str, Done] = field(default_factory=dict)

    def finish(self, job: Job, done: Done) -> None:
        save(done, self.runs)
        self.done[job.key] = Done(done.key, done.error, done.kind)
        self.on_done(job, done)

    def round(self, jobs: deque[Job], at_once: int) -> list[Job]:
        """Carry out `jobs` until none is left or the pool broke; returns those that were in flight then."""
        with self.engine.open() as executor:
            flying: dict[Future[Done], Job] = {}
            lost: list[Job] = []
            while (jobs or flying) and not lost:
                lost += self._fill(executor, jobs, flying, at_once)
                ready, _ = wait(flying, return_when=FIRST_COMPLETED) if flying else (set(), None)
                lost += [job for future in ready if (job := self._landed(flying.pop(future), future))]
            return lost + list(self._rest(flying) if lost else ())

    def _fill(self, executor: Executor, jobs: deque[Job], flying: dict[Future[Done], Job], at_once: int) -> list[Job]:
        where = self.runs if self.engine.writes_here else None
        while jobs and len(flying) < at_once:
            job = jobs.popleft()
            try:
                flying[executor.submit(execute, job, where)] = job
            except self.engine.died:
                return [job]
        return []

    def _landed(self, job: Job, future: Future[Done]) -> Job | None:
        """Take in a result; the job itself if its worker died."""
        try:
            self.finish(job, future.result())
        except self.engine.died:
            return job
        return None

    def _rest(self, flying: dict[Future[Done], Job]) -> Iterable[Job]:
        """After a death: what still flies ends, well or not."""
        wait(flying)
        return [job for future, job in flying.items() if self._landed(job, future)]

    def strike(self, lost: list[Job]) -> list[Job]:
        """Count a death for each; returns those that may be tried again."""
        self.deaths.update(job.key for job in lost)
        for job in lost:
            if self.deaths[job.key] >= MAX_DEATHS:
                text = f"its worker process died {MAX_DEATHS} times (out of memory?)"
                self.finish(job, Done(job.key, text, RUN_ERROR))
        return [job for job in lost if self.deaths[job.key] < MAX_DEATHS]


def run_jobs(jobs: Iterable[Job], engine: Engine, runs: Path, on_done: OnDone) -> dict[str, Done]:
    """Carry out all jobs; each run's folder appears under `runs`. `on_done` is called as each ends, in any order."""
    loop = _Loop(engine, runs, on_done)
    waiting, suspects = deque(jobs), deque[Job]()
    while waiting:
        suspects.extend(loop.strike(loop.round(waiting, 2 * engine.num_workers)))
    while suspects:
        suspects.extend(loop.strike(loop.round(suspects, 1)))
    return loop.done
