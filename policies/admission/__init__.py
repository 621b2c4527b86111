"""Admission policies: whether a request enters the cluster."""

from __future__ import annotations

from collections.abc import Callable

from policies.admission.always import Always
from policies.admission.estimate_based import EstimateBased
from policies.admission.queue_limit import QueueLimit
from policies.admission.requests_per_minute import RequestsPerMinute
from sim.interfaces import AdmissionPolicy

ADMISSIONS: dict[str, Callable[..., AdmissionPolicy]] = {
    "always": Always,
    "queue_limit": QueueLimit,
    "estimate_based": EstimateBased,
    "requests_per_minute": RequestsPerMinute,
}
