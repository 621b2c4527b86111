"""Replica indices of the candidates as an array, made anew only when the candidates change."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sim.views import ReplicaView

Number = TypeVar("Number", np.int64, np.float64)


class Candidates:
    """The candidates of a router's latest decision and the facts of them that never change."""

    def __init__(self) -> None:
        self._replicas: list[ReplicaView] = []
        self.indices: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._first = False  # whether candidate i is replica i
        self._speeds: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None

    def of(self, replicas: Ordered[ReplicaView]) -> npt.NDArray[np.int64]:
        """`ReplicaView.index` of each candidate, in their order."""
        if replicas != self._replicas:
            self._replicas = list(replicas)
            self.indices = np.array([replica.index for replica in replicas], dtype=np.int64)
            self._first = self.indices.tolist() == list(range(len(replicas)))
            self._speeds = None
        return self.indices

    def speeds(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Prompt tokens a second and output tokens a second of each candidate."""
        if self._speeds is None:
            prefill = np.array([replica.prefill_speed for replica in self._replicas])
            self._speeds = prefill, np.array([replica.decode_speed for replica in self._replicas])
        return self._speeds

    def pick(self, numbers: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Numbers by replica index as numbers by candidate; not to be written to."""
        return numbers[: len(self.indices)] if self._first else numbers[self.indices]

    def position(self, index: int) -> int | None:
        """Where the replica of this index is among the candidates; None where it is not."""
        found = np.flatnonzero(self.indices == index)
        return int(found[0]) if len(found) else None


def least(numbers: npt.NDArray[np.generic], among: npt.NDArray[np.bool_]) -> int:
    """Position of the least number among the marked ones (at least one); ties go to the first."""
    positions = among.nonzero()[0]
    return int(positions[0] if len(positions) == 1 else positions[numbers[positions].argmin()])
