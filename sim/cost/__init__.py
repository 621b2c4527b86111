"""Cost models by name: `build_cost_model` makes the one that an experiment's `cost_model: {kind: ...}` asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

from sim import plugins
from sim.cost.base import BatchShape, CostModel
from sim.cost.constant import ConstantCost
from sim.cost.fitted import FittedCost, FittedParameters
from sim.cost.profile import fitted_names, load_fitted
from sim.cost.roofline import RooflineCost, RooflineParameters
from sim.cost.tabulated import TabulatedCost
from sim.errors import InputError, nearest, unknown_name
from sim.hardware import HardwareProfile
from sim.interconnect import Interconnect
from sim.model import ModelSpec

Parameters = TypeVar("Parameters")


class ExplainingCostModel(CostModel, Protocol):
    """What all cost models of this package can do besides giving times."""

    def breakdown(self, shape: BatchShape) -> dict[str, dict[str, float | str]]:
        """seconds, flops, bytes and bound by operation; for explaining a step, slow."""
        ...

    def extrapolation(self) -> list[str]:
        """Sentences about what was asked outside the calibrated region; empty when nothing was."""
        ...


@dataclass(frozen=True)
class CostContext:
    """What a cost model is bound to."""

    model: ModelSpec
    gpu: HardwareProfile
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_dtype: str | None = None
    interconnect: Interconnect | None = None  # of a replica that spans several nodes
    data_parallel: int = 1
    expert_parallel: bool = False

    @property
    def num_rows(self) -> int:
        """Rows of a table over the token counts that a step can have."""
        return self.max_num_seqs + self.max_num_batched_tokens


def _constant(context: CostContext, params: Mapping[str, Any]) -> ExplainingCostModel:
    return checked_parameters(ConstantCost, params)


def _roofline(context: CostContext, params: Mapping[str, Any]) -> ExplainingCostModel:
    if context.data_parallel > 1:
        raise InputError("kind roofline does not model data_parallel ranks; use kind fitted or tabulated")
    return RooflineCost(
        context.model,
        context.gpu,
        tensor_parallel=context.tensor_parallel,
        pipeline_parallel=context.pipeline_parallel,
        num_rows=context.num_rows,
        kv_dtype=context.kv_dtype,
        parameters=checked_parameters(RooflineParameters, params),
        interconnect=context.interconnect,
    )


def _fitted(context: CostContext, params: Mapping[str, Any]) -> ExplainingCostModel:
    parameters = checked_parameters(FittedParameters, params)
    if parameters.profile is None and context.gpu.name not in fitted_names():
        raise InputError(
            f"no fitted profile for GPU '{context.gpu.name}'; use cost_model: {{kind: roofline}}; "
            f"profiles: {', '.join(fitted_names())}"
        )
    return FittedCost(
        context.model,
        context.gpu,
        load_fitted(parameters.profile or context.gpu.name),
        tensor_parallel=context.tensor_parallel,
        pipeline_parallel=context.pipeline_parallel,
        max_num_seqs=context.max_num_seqs,
        num_rows=context.num_rows,
        kv_dtype=context.kv_dtype,
        data_parallel=context.data_parallel,
        expert_parallel=context.expert_parallel,
        parameters=parameters,
        interconnect=context.interconnect,
    )


def _tabulated(context: CostContext, params: Mapping[str, Any]) -> ExplainingCostModel:
    if not isinstance(params.get("table"), str):
        raise InputError("cost_model: kind tabulated needs table: the path of a CSV with phase,num_tokens,seconds")
    return checked_parameters(TabulatedCost, params)


CostModelBuilder = Callable[[CostContext, Mapping[str, Any]], ExplainingCostModel]
COST_MODELS: dict[str, CostModelBuilder] = {
    "constant": _constant,
    "roofline": _roofline,
    "fitted": _fitted,
    "tabulated": _tabulated,
}


def build_cost_model(
    kind: str,
    params: Mapping[str, Any],
    *,
    model: ModelSpec,
    gpu: HardwareProfile,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    kv_dtype: str | None = None,
    interconnect: Interconnect | None = None,
    data_parallel: int = 1,
    expert_parallel: bool = False,
) -> ExplainingCostModel:
    """The cost model `kind` with `params` (its YAML keys), bound to a model, a GPU and a parallelism.

    `interconnect`: how the nodes of a replica that spans several are joined; without it all GPUs share one node.

    Raises `InputError` for an unknown kind or parameter, or a fact that the model needs and the profile lacks.
    """
    builder = COST_MODELS.get(kind) or _installed(kind)
    if tensor_parallel < 1 or pipeline_parallel < 1:
        raise InputError(
            f"tensor_parallel and pipeline_parallel must be at least 1 (got {tensor_parallel}, {pipeline_parallel})"
        )
    context = CostContext(
        *(model, gpu, tensor_parallel, pipeline_parallel, max_num_seqs, max_num_batched_tokens, kv_dtype),
        interconnect=interconnect,
        data_parallel=data_parallel,
        expert_parallel=expert_parallel,
    )
    check_parallelism(model, data_parallel, expert_parallel)
    return builder(context, params)


def _installed(kind: str) -> CostModelBuilder:
    """The cost model of another distribution; `InputError` when none has that name."""
    found = plugins.installed(plugins.COST_MODELS, COST_MODELS)
    if kind not in found:
        raise unknown_name("cost model", kind, [*COST_MODELS, *found])
    builder: CostModelBuilder = found[kind]
    return builder


def check_parallelism(model: ModelSpec, data_parallel: int, expert_parallel: bool) -> None:
    """`InputError` for experts or ranks that a model without experts cannot have."""
    if not model.is_moe and (expert_parallel or data_parallel > 1):
        key = "expert_parallel" if expert_parallel else "data_parallel"
        raise InputError(f"{key} is for models with experts; '{model.name}' has none: use replicas instead")


def default_kind(gpu: HardwareProfile) -> str:
    """The cost model for a GPU when an experiment names none: fitted where a profile exists, else roofline."""
    return "fitted" if gpu.name in fitted_names() else "roofline"


def checked_parameters(kind: Callable[..., Parameters], params: Mapping[str, Any]) -> Parameters:
    """An instance of the dataclass `kind`; an `InputError` names a wrong key and the known ones, or a wrong type."""
    known = {f.name: f for f in fields(kind) if f.init}  # type: ignore[arg-type]
    for key, value in params.items():
        if key not in known:
            raise InputError(f"cost_model: unknown key '{key}'{nearest(key, known)}; known: {', '.join(known)}")
        wanted = str(known[key].type)
        if wanted == "float" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InputError(f"cost_model.{key} must be a number (got {value!r})")
    return kind(**params)
