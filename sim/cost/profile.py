"""Fitted profiles: the kernel formulas of one GPU with their coefficients, read from hardware_profiles/fitted.

A profile is what `servesim calibrate fit` writes: coefficients by operation and data type, the box of shapes that they
were fitted on, and the error on shapes that entered no fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from sim.catalogue import entry_names, read_entry
from sim.cost.kernels import Collective, DecodeKernel, GemmKernel, MoeKernel, PrefillKernel, SmallKernel
from sim.cost.surface import Surface
from sim.errors import InputError

Kernel = TypeVar("Kernel")
Region = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Fitted:
    """A kernel with the smallest and largest of each coordinate that it was fitted on."""

    kernel: Any
    region: Region = field(default_factory=dict)


@dataclass(frozen=True)
class EngineConstants:
    """What an engine adds to its kernels. Seconds; fitted on measured servers, not on kernels."""

    small_ops_scale: float = 1.0  # fused norms and activations take this share of the separate kernels
    mixed_step_per_layer: float = 0.0  # a step with prefill tokens leaves the full CUDA graph
    eager_step_per_layer: float = 0.0  # instead of it where the step is larger than the largest graph
    sampler: float = 0.0  # of a step, when top_p or top_k is set
    sampler_per_logit: float = 0.0
    max_graph_size: int = 512  # tokens of the largest CUDA graph (at most twice max_num_seqs)
    client_latency: float = 0.0  # seconds that a client sees on top, per request
    client_latency_per_sequence: float = 0.0


@dataclass(frozen=True)
class FittedProfile:
    """Kernels of one GPU: by data type, collectives by number of GPUs."""

    gpu: str
    gemm: Mapping[str, Fitted]
    decode_attention: Mapping[str, Fitted]
    prefill_attention: Mapping[str, Fitted]
    moe: Mapping[str, Fitted]
    all_reduce: Mapping[int, Fitted]
    small_ops: Mapping[str, SmallKernel]
    engines: Mapping[str, EngineConstants]
    errors: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    file: str


def fitted_names() -> list[str]:
    """GPUs that have a fitted profile in the catalogue."""
    return entry_names("fitted")


def load_fitted(name_or_path: str) -> FittedProfile:
    """The fitted profile of a GPU. `InputError` names the key that is missing or not known."""
    return profile_from_values(read_entry("fitted", name_or_path, "fitted profile"))


def profile_from_values(values: Mapping[str, Any]) -> FittedProfile:
    """A `FittedProfile` from the values of its YAML file."""
    where = str(values.get("file", "fitted profile"))
    try:
        return _profile(values, where)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: is not a fitted profile ({type(error).__name__}: {error})") from None


def _profile(values: Mapping[str, Any], where: str) -> FittedProfile:
    kernels = {
        "gemm": GemmKernel,
        "decode_attention": DecodeKernel,
        "prefill_attention": PrefillKernel,
        "moe": MoeKernel,
        "all_reduce": Collective,
    }
    sections: dict[str, Any] = {
        name: {key: _fitted(kind, raw, f"{where}: {name}.{key}") for key, raw in (values.get(name) or {}).items()}
        for name, kind in kernels.items()
    }
    small = {key: _build(SmallKernel, raw, f"{where}: small_ops.{key}") for key, raw in values["small_ops"].items()}
    engines = {key: _build(EngineConstants, raw, f"{where}: engines.{key}") for key, raw in values["engines"].items()}
    return FittedProfile(
        gpu=str(values["gpu"]),
        **sections,
        small_ops=small,
        engines=engines,
        errors=tuple(values.get("errors") or ()),
        notes=tuple(str(note) for note in values.get("notes") or ()),
        file=where,
    )


def _fitted(kind: Callable[..., Any], raw: Mapping[str, Any], where: str) -> Fitted:
    region = {key: (float(low), float(high)) for key, (low, high) in (raw.get("region") or {}).items()}
    return Fitted(_build(kind, {key: value for key, value in raw.items() if key != "region"}, where), region)


def _build(kind: Callable[..., Kernel], raw: Mapping[str, Any], where: str) -> Kernel:
    known = {f.name: str(f.type) for f in fields(kind)}  # type: ignore[arg-type]
    wrong = sorted(set(raw) - set(known))
    if wrong:
        raise InputError(f"{where}: unknown key '{wrong[0]}'; known: {', '.join(known)}")
    return kind(**{key: _value(known[key], value, f"{where}.{key}") for key, value in raw.items()})


def _value(wanted: str, value: Any, where: str) -> Any:
    if wanted.startswith("Surface"):
        knots = tuple(tuple(float(x) for x in axis) for axis in value["knots"])
        return Surface(knots, tuple(float(x) for x in value["values"]))
    if wanted.startswith("tuple"):
        return tuple(float(x) for x in value)
    if wanted == "bool":
        return bool(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: must be a number (got {value!r})")
    return value
