"""The folder of a study: who may write it, which runs it has, what a killed study left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import InputError

RUNS = "runs"
REPORT = "report.html"
_LOCK = ".lock"


@dataclass(frozen=True)
class StudyFolder:
    """A folder with `runs`/KEY, a file that says what is studied (`mark`) and files that say the results."""

    path: Path

    @property
    def runs(self) -> Path:
        """Where the folders of single runs are."""
        return self.path / RUNS

    def has(self, key: str) -> bool:
        """Whether the run with this key is finished. Its folder appeared whole, so looking for one file will do."""
        return (self.runs / key / "summary.json").is_file()

    def summary(self, key: str) -> dict[str, Any]:
        """summary.json of a finished run."""
        import json

        found: dict[str, Any] = json.loads((self.runs / key / "summary.json").read_text(encoding="utf-8"))
        return found


@contextmanager
def study_folder(target: Path, mark: str, result: str, resume: bool) -> Iterator[StudyFolder]:
    """The folder at `target`, locked against a second writer. Without `resume` a finished study in it is replaced.

    `InputError` when the folder holds something else, or an unfinished study that nobody said to resume.
    """
    _check(target, mark, result, resume)
    is_new = not target.exists()
    folder = StudyFolder(target)
    try:
        folder.runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror})") from None
    with _locked(target):
        if not resume:
            _clear(folder, mark, result)
        _sweep_up(folder)
        try:
            yield folder
        except InputError:
            if is_new and not any(folder.runs.iterdir()):
                shutil.rmtree(target, ignore_errors=True)
            raise


def _check(target: Path, mark: str, result: str, resume: bool) -> None:
    if target.exists() and not target.is_dir():
        raise InputError(f"{target}: is a file; --out names a folder")
    names = {entry.name for entry in target.iterdir()} - {_LOCK} if target.is_dir() else set()
    if not names:
        return
    if mark not in names and names - {RUNS}:
        raise InputError(f"{target}: has files but no {mark}; give another folder with --out")
    if result not in names and not resume and _has_runs(target):
        raise InputError(
            f"{target}: holds finished runs of a study that is not finished; add --resume to go on, or give another "
            "folder with --out"
        )


def _has_runs(target: Path) -> bool:
    runs = target / RUNS
    return runs.is_dir() and any(not entry.name.startswith(".") for entry in runs.iterdir())


def _clear(folder: StudyFolder, mark: str, result: str) -> None:
    for name in (result, mark, REPORT):
        (folder.path / name).unlink(missing_ok=True)
    shutil.rmtree(folder.runs)
    folder.runs.mkdir()


def _sweep_up(folder: StudyFolder) -> None:
    """Remove what a killed process left half-written. We hold the lock, so nobody is writing it."""
    for parent in (folder.path, folder.runs):
        for entry in parent.iterdir():
            if entry.name.startswith(".") and entry.suffix in (".tmp", ".old"):
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """An advisory lock that ends with this process, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on this system: two studies into one folder are then the user's to avoid
        yield
        return
    handle = os.open(target / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{target}: another servesim is writing there; give another folder with --out") from None
        yield
        (target / _LOCK).unlink(missing_ok=True)
    finally:
        os.close(handle)
