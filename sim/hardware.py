"""Hardware profiles: what a GPU can do, each number with its unit and source, read from hardware_profiles/gpus.

A fact that no source gives is None; asking for it through a method raises `InputError` with the name of the file, so
that a missing number is noticed where it would matter and never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.catalogue import entry_names, fields_of, read_entry
from sim.errors import InputError

# Bytes per element. mxfp4, nvfp4: 4 bits and one 8-bit scale for 32 or 16 elements; int4: one 16-bit scale for 128.
DTYPE_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp4": 0.53125,
    "nvfp4": 0.5625,
    "int4": 0.515625,
}
# Which peak serves a GEMM with weights of this type, best first; without a matching unit they are expanded to 16 bit.
_FLOPS_FACTS: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16_flops",),
    "fp16": ("bf16_flops",),
    "fp32": ("fp32_flops",),
    "fp8": ("fp8_flops", "bf16_flops"),
    "int8": ("bf16_flops",),
    "int4": ("bf16_flops",),
    "mxfp4": ("bf16_flops",),
    "nvfp4": ("fp4_flops", "bf16_flops"),
}
EFFICIENCY_DEFAULTS: Mapping[str, float] = {
    "gemm_compute": 0.70,
    "gemm_memory": 0.80,
    "attention_compute": 0.50,
    "attention_memory": 0.80,
    "elementwise_memory": 0.75,
    "scaleup_bandwidth": 0.75,
}


@dataclass(frozen=True)
class Fact:
    """One number with its unit and where it comes from; `value` None: unknown."""

    value: float | None
    unit: str
    source: str | None


@dataclass(frozen=True)
class HardwareProfile:
    """One GPU type. `facts` by name, in FLOP/s, bytes, bytes/s (one direction), watts and USD per hour."""

    name: str
    description: str
    architecture: str
    form_factor: str
    aliases: tuple[str, ...]
    facts: Mapping[str, Fact]
    efficiencies: Mapping[str, float]
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()
    file: str = field(default="", compare=False)

    def get(self, fact: str) -> float | None:
        """The value of a fact, or None when it is unknown."""
        found = self.facts.get(fact)
        return found.value if found else None

    def require(self, fact: str) -> float:
        """The value of a fact. `InputError` when it is unknown."""
        value = self.get(fact)
        if value is None:
            raise InputError(f"GPU '{self.name}': {fact} is unknown; give it in a copy of {self.file} and use its path")
        return value

    def peak_flops(self, dtype: str) -> float:
        """Dense peak FLOP/s of matrix products whose weights have this type."""
        if dtype not in _FLOPS_FACTS:
            raise InputError(f"unknown data type '{dtype}'; known: {', '.join(_FLOPS_FACTS)}")
        for fact in _FLOPS_FACTS[dtype]:
            value = self.get(fact)
            if value is not None:
                return value
        return self.require(_FLOPS_FACTS[dtype][-1])

    def efficiency(self, operation: str) -> float:
        """Achieved share of peak: measured for this GPU, else the default of `EFFICIENCY_DEFAULTS`."""
        return self.efficiencies.get(operation, EFFICIENCY_DEFAULTS[operation])

    @property
    def memory_bandwidth(self) -> float:
        """Peak bytes/s of device memory."""
        return self.require("memory_bandwidth")

    @property
    def memory_bytes(self) -> float:
        """Bytes of device memory that a process sees: as reported by the driver where known, else nominal."""
        usable = self.get("usable_memory_bytes")
        return self.require("memory_bytes") if usable is None else usable

    @property
    def link_bandwidth(self) -> float:
        """Bytes/s, one direction, to GPUs of the same node: scale-up link, else PCIe."""
        scaleup = self.get("scaleup_bandwidth")
        return self.require("pcie_bandwidth") if scaleup is None else scaleup


def gpu_names() -> list[str]:
    """Names of all GPUs in the catalogue, sorted."""
    return entry_names("gpus")


def load_gpu(name_or_path: str) -> HardwareProfile:
    """The profile of a GPU by catalogue name, alias (`H100`) or path of a YAML file in the same form."""
    values = read_entry("gpus", name_or_path, "GPU")
    where = str(values["file"])
    facts = {key: read_fact(key, raw, where) for key, raw in fields_of(values, "facts", where).items()}
    return HardwareProfile(
        name=str(values.get("name")),
        description=str(values.get("description") or ""),
        architecture=str(values.get("architecture") or ""),
        form_factor=str(values.get("form_factor") or ""),
        aliases=tuple(str(alias) for alias in values.get("aliases") or ()),
        facts=facts,
        efficiencies=_efficiencies(values, where),
        sources={str(k): str(v) for k, v in (values.get("sources") or {}).items()},
        notes=tuple(str(note) for note in values.get("notes") or ()),
        file=where,
    )


def read_fact(key: str, raw: object, where: str) -> Fact:
    """One entry of the section `facts` of the catalogue file `where`. `InputError` for a wrong form or number."""
    if not isinstance(raw, dict) or set(raw) != {"value", "unit", "source"}:
        raise InputError(f"{where}: facts.{key} must be {{value: NUMBER or null, unit: ..., source: ...}}, got {raw!r}")
    value = raw["value"]
    if value is not None and not _is_positive(value):
        raise InputError(f"{where}: facts.{key}.value must be a positive number or null (got {value!r})")
    return Fact(None if value is None else float(value), str(raw["unit"]), raw["source"])


def _efficiencies(values: Mapping[str, Any], where: str) -> dict[str, float]:
    result: dict[str, float] = {}
    for key, raw in (values.get("efficiencies") or {}).items():
        if key not in EFFICIENCY_DEFAULTS:
            raise InputError(f"{where}: unknown efficiency '{key}'; known: {', '.join(EFFICIENCY_DEFAULTS)}")
        value = raw["value"] if isinstance(raw, dict) else raw
        if not _is_positive(value) or value > 1:
            raise InputError(f"{where}: efficiencies.{key} must lie in (0, 1] (got {value!r})")
        result[key] = float(value)
    return result


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
