"""Fits the kernel formulas to a measured NumPy transformer, and writes the profile, GPU and model that simulate it.

The same formulas, solver and cost model as for GPUs. A matrix product stands for what surrounds it too (norm, rotary,
activation), so elementwise kernels are nothing here; what a whole step takes beyond its parts becomes the `sampler`
constants, by non-negative least squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.calibration.cpu.measure import Composition, Samples
from sim.calibration.profile import kernel_values
from sim.calibration.solve import Bounds, Parameters, fit_parameters, fit_surface, significant
from sim.cost.base import BatchShape
from sim.cost.fitted import FittedCost, FittedParameters
from sim.cost.kernels import DecodeKernel, GemmKernel, PrefillKernel
from sim.cost.profile import profile_from_values
from sim.hardware import Fact, HardwareProfile
from sim.model import ModelSpec

if TYPE_CHECKING:
    from sim.calibration.cpu.transformer import Sizes
    from sim.units import FloatArray

FLOAT32 = 4.0
NOTHING = 1e-15  # seconds: a coefficient that plays no part here
PEAK_MARGIN = 1.3  # facts of the machine are the best that was seen, and a margin
ENGINE = "numpy"
PRODUCTS = {"qkv": "qkv", "out": "attention_out", "up": "mlp_up", "down": "mlp_down", "lm_head": "lm_head"}
TOKEN_KNOTS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)


def model_spec(sizes: Sizes, max_context: int) -> ModelSpec:
    """The transformer as the simulator's model catalogue describes one."""
    return ModelSpec(
        name="numpy-tiny",
        num_layers=sizes.num_layers,
        hidden_size=sizes.hidden,
        num_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        intermediate_size=sizes.inter,
        vocab_size=sizes.vocab,
        max_position=max_context,
        dtype="fp32",
        weight_dtype="fp32",
        default_top_p=True,
    )


def batch_shape(step: Composition) -> BatchShape:
    """A step as a cost model is asked."""
    ends = [new + prefix for new, prefix in step.chunks]
    return BatchShape(
        num_prefill_tokens=sum(new for new, _ in step.chunks),
        num_prefill_sequences=len(step.chunks),
        prefill_pairs=sum(new * prefix + new * (new + 1) // 2 for new, prefix in step.chunks),
        prefill_context=sum(ends),
        num_decode_sequences=len(step.contexts),
        decode_context=sum(step.contexts),
        max_context=max([*step.contexts, *ends]),
    )


class CpuFit:
    """A profile of this machine's CPU, from the samples of some compositions."""

    def __init__(self, samples: Samples, train: Sequence[Composition], sizes: Sizes, max_context: int) -> None:
        self.samples, self.train, self.sizes = samples, list(train), sizes
        self.model = model_spec(sizes, max_context)
        self.gpu = self._machine()
        self.values: dict[str, Any] = self._kernels()
        self.values["engines"] = {ENGINE: self._overheads()}
        self.cost = self._cost()

    def predict(self, step: Composition) -> float:
        """Seconds of a step by the fitted cost model."""
        return float(self.cost.step_time(batch_shape(step)))

    # --- the machine -------------------------------------------------------------------------------------------------

    def _products(self) -> dict[str, tuple[FloatArray, FloatArray, float, float]]:
        """By part: tokens and seconds of one product over the training steps, n and k."""
        gemms = {gemm.name: gemm for gemm in (*self.model.attention_gemms(), *self.model.mlp_gemms())}
        gemms["lm_head"] = self.model.lm_head_gemm()
        found = {}
        for part, name in PRODUCTS.items():
            layers = 1 if part == "lm_head" else self.sizes.num_layers
            counts = [s.num_sequences if part == "lm_head" else s.num_tokens for s in self.train]
            seconds = np.array([self.samples.part(s, part) for s in self.train]) / layers
            found[part] = np.array(counts, dtype=float), seconds, float(gemms[name].n), float(gemms[name].k)
        return found

    def _machine(self) -> HardwareProfile:
        """Peaks: the best rates that any product reached, with a margin; so no prediction is cut by them."""
        parts = self._products().values()
        flops = max(float((2 * t * n * k / seconds).max()) for t, seconds, n, k in parts)
        moved = max(float((FLOAT32 * (n * k + t * (n + k)) / seconds).max()) for t, seconds, n, k in parts)
        facts = {
            "fp32_flops": Fact(significant(PEAK_MARGIN * flops), "FLOP/s", "measured"),
            "memory_bandwidth": Fact(significant(PEAK_MARGIN * moved), "B/s", "measured"),
            "memory_bytes": Fact(float(2**33), "B", "measured"),
        }
        sources = {"measured": "servesim calibrate measure --backend cpu: best rate seen, times a margin"}
        return HardwareProfile("cpu", "the CPU that was measured, one thread", "CPU", "host", (), facts, {}, sources)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _kernels(self) -> dict[str, Any]:
        tiny = {"launch": NOTHING, "per_element": NOTHING, "bandwidth": 1e15}
        return {
            "gpu": "cpu",
            "kernel_source": "NumPy transformer of sim/calibration/cpu",
            "gemm": {"fp32": kernel_values(self._gemm())},
            "decode_attention": {"fp32": kernel_values(self._decode())},
            "prefill_attention": {"fp32": kernel_values(self._prefill())},
            "moe": {},
            "all_reduce": {},
            "small_ops": dict.fromkeys(("norm", "rope", "activation"), tiny),
        }

    def _gemm(self) -> GemmKernel:
        products = self._products().values()
        tokens, measured = (np.concatenate([entry[i] for entry in products]) for i in (0, 1))
        n, k = (np.concatenate([np.full(len(entry[0]), entry[i]) for entry in products]) for i in (2, 3))
        bandwidth, flops = self.gpu.memory_bandwidth, self.gpu.peak_flops("fp32")
        bounds: Bounds = {
            "launch": (1e-7, 1e-5, 1e-3),
            "bandwidth": (0.02 * bandwidth, 0.5 * bandwidth, bandwidth),
            "flops": (0.02 * flops, 0.5 * flops, flops),
            "sharpness": (1.0, 2.0, 8.0),
            "input_bytes": (FLOAT32, 40.0, 4000.0),
        }

        def kernel(p: Parameters) -> GemmKernel:
            return GemmKernel(**p, element_bytes=FLOAT32, surface=None)

        found, _ = fit_parameters(lambda p: kernel(p).formula(tokens, n, k), measured, bounds)
        fitted = kernel(found)
        knots = (TOKEN_KNOTS, *(tuple(sorted(set(np.log2(axis).tolist()))) for axis in (n, k)))
        residual = np.log(measured / fitted.formula(tokens, n, k))
        return replace(fitted, surface=fit_surface(knots, (tokens, n, k), residual))

    def _decode(self) -> DecodeKernel:
        steps = [step for step in self.train if step.contexts]
        measured = self._layer_seconds(steps, "decode_attention")
        counts = np.array([float(len(step.contexts)) for step in steps])
        contexts = np.array([float(sum(step.contexts)) for step in steps])
        heads, kv_heads, dim = (float(x) for x in (self.sizes.heads, self.sizes.kv_heads, self.sizes.head_dim))
        bounds: Bounds = {"bandwidth": (1e7, 2e9, 1e12), "per_block": (1e-7, 1e-5, 1e-3)}

        def model(p: Parameters) -> FloatArray:
            kernel = _decode_kernel(p)
            floor = kernel.floor(counts, heads, kv_heads)
            return np.asarray(floor + contexts * kernel.per_context_token(kv_heads, dim))

        found, _ = fit_parameters(model, measured, bounds)
        return _decode_kernel(found)

    def _prefill(self) -> PrefillKernel:
        steps = [step for step in self.train if step.chunks]
        measured = self._layer_seconds(steps, "prefill_attention")
        shapes = [batch_shape(step) for step in steps]
        tokens, pairs, ends, counts = (
            np.array([float(getattr(shape, name)) for shape in shapes])
            for name in ("num_prefill_tokens", "prefill_pairs", "prefill_context", "num_prefill_sequences")
        )
        heads, kv_heads, dim = (float(x) for x in (self.sizes.heads, self.sizes.kv_heads, self.sizes.head_dim))
        fixed = dict.fromkeys(("launch", "diagonal_tokens", "per_key", "per_token"), NOTHING)
        fixed["small_head_share"] = 1.0
        bounds: Bounds = {
            "flops": (1e7, 5e9, 1e12),
            "per_query": (1e-13, 1e-9, 1e-7),
            "per_prefix": (1e-14, 1e-10, 1e-7),
            "per_sequence_head": (1e-8, 1e-6, 1e-3),
        }

        def model(p: Parameters) -> FloatArray:
            kernel = PrefillKernel(**p, **fixed)
            time = pairs * kernel.per_pair(heads, dim) + tokens * kernel.per_new_token(heads, kv_heads, dim)
            time = time + (ends - tokens) * kernel.per_prefix * kv_heads * dim
            return np.asarray(time + counts * heads * kernel.per_sequence_head)

        found, _ = fit_parameters(model, measured, bounds)
        return PrefillKernel(**found, **fixed)

    def _layer_seconds(self, steps: Sequence[Composition], part: str) -> FloatArray:
        return np.array([self.samples.part(step, part) for step in steps]) / self.sizes.num_layers

    # --- what a step takes beyond its parts --------------------------------------------------------------------------

    def _overheads(self) -> dict[str, float]:
        from scipy.optimize import nnls

        self.values["engines"] = {ENGINE: {"small_ops_scale": 0.0}}
        bare = self._cost()
        measured = np.array([self.samples.step(step) for step in self.train])
        rest = measured - np.array([bare.step_time(batch_shape(step)) for step in self.train])
        logits = np.array([step.num_sequences * float(self.sizes.vocab) for step in self.train])
        mixed = np.array([float(bool(step.chunks)) for step in self.train])
        columns = np.stack([np.ones(len(rest)), logits, mixed * self.sizes.num_layers], axis=1)
        found, _ = nnls(columns / measured[:, None], rest / measured)
        names = ("sampler", "sampler_per_logit", "eager_step_per_layer")
        constants = dict(zip(names, (significant(float(value)) for value in found), strict=True))
        return {"small_ops_scale": 0.0, **constants, "max_graph_size": 0}

    def _cost(self) -> FittedCost:
        parameters = FittedParameters(engine=ENGINE, top_p=True, cuda_graphs=False)
        profile = profile_from_values(self.values)
        return FittedCost(self.model, self.gpu, profile, num_rows=512, parameters=parameters)


def _decode_kernel(p: Parameters) -> DecodeKernel:
    """One sequence after the other: a time for each, and one for each token of context."""
    return DecodeKernel(
        *(NOTHING, p["bandwidth"], p["per_block"], NOTHING, NOTHING, 1e7, 1.0, 1e6),
        element_bytes=FLOAT32,
        root=False,
    )


def errors(fit: CpuFit, samples: Samples, steps: Sequence[Composition]) -> FloatArray:
    """predicted / measured - 1 of whole steps."""
    return np.array([fit.predict(step) / samples.step(step) - 1.0 for step in steps])


def gpu_values(gpu: HardwareProfile) -> Mapping[str, Any]:
    """The machine as a YAML of hardware_profiles/gpus."""
    facts = {name: {"value": f.value, "unit": f.unit, "source": f.source} for name, f in gpu.facts.items()}
    return {
        **{"name": gpu.name, "description": gpu.description, "architecture": gpu.architecture},
        **{"form_factor": gpu.form_factor, "aliases": [], "sources": dict(gpu.sources), "facts": facts},
        **{"efficiencies": {}, "notes": []},
    }


def model_values(model: ModelSpec) -> Mapping[str, Any]:
    """The model as a YAML of hardware_profiles/models."""
    names = (
        *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "vocab_size"),
        *("gated_mlp", "tied_embeddings", "max_position", "dtype", "weight_dtype", "default_top_p"),
    )
    architecture = {name: getattr(model, name) for name in names}
    return {"name": model.name, "model_type": "llama", "source": "sim/calibration/cpu", "architecture": architecture}
