"""The replica that would be done first: seconds of work sent to it and not ended, plus those of the request itself.

The work of a request is its prompt over the replica's prefill speed and its predicted (else declared) output over the
decode speed, so unequal replicas get work in proportion to their speed. Counted from routing to the end, whole; cached
prefixes are not taken off.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policies.router.candidates import Candidates

if TYPE_CHECKING:
    from sim.views import ClusterView, RequestView, RouterSignals


@dataclass
class LeastPredictedWork:
    """Who is done first, by predicted tokens and each replica's speed; the router's own books, never old."""

    scores: npt.NDArray[np.float64] | None = field(default=None, init=False, repr=False)  # seconds
    _work: npt.NDArray[np.int64] = field(init=False, repr=False)  # nanoseconds by replica index: sums without residue
    _sent: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # nanoseconds by row
    _candidates: Candidates = field(default_factory=Candidates, init=False, repr=False)

    def begin(self, signals: RouterSignals) -> None:
        self._work = np.zeros(signals.num_replicas, dtype=np.int64)

    def route(self, request: RequestView, cluster: ClusterView, now: float) -> int:
        indices = self._candidates.of(cluster.replicas)
        predicted = request.predicted_output_tokens
        output = request.max_output_tokens if predicted is None else predicted
        prefill_speed, decode_speed = self._candidates.speeds()
        seconds = request.num_prompt_tokens / prefill_speed + output / decode_speed
        self.scores = self._candidates.pick(self._work) * 1e-9 + seconds
        position = int(self.scores.argmin())
        self._sent[request.row] = round(float(seconds[position]) * 1e9)
        self._work[indices[position]] += self._sent[request.row]
        return position

    def ended(self, request: RequestView, replica_index: int) -> None:
        self._work[replica_index] -= self._sent.pop(request.row, 0)
