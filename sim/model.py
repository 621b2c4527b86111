"""Model architectures: sizes that decide time and memory, from the catalogue or from a Hugging Face config.json.

Parameters are those of matrices and embeddings; norm vectors, biases and learned positions (below 0.2 % in every
catalogue model) are left out, as are multi-token-prediction layers. A vision tower counts for memory only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from sim.catalogue import entry_names, fields_of, read_entry
from sim.errors import InputError
from sim.hardware import DTYPE_BYTES

QUANTIZED_PARTS = ("linear", "experts", "mlp")


class Gemm(NamedTuple):
    """One weight matrix as a GPU holds it: output features `n`, input features `k`, type of its weights."""

    name: str
    n: int
    k: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer. Counts and elements; None where the model has no such part."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    gated_mlp: bool = True
    tied_embeddings: bool = False
    max_position: int | None = None
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    num_dense_layers: int = 0  # layers of a mixture-of-experts model that have an ordinary MLP
    mla_q_lora_rank: int | None = None
    mla_kv_lora_rank: int | None = None
    mla_qk_nope_head_dim: int = 0
    mla_qk_rope_head_dim: int = 0
    mla_v_head_dim: int = 0
    dtype: str = "bf16"  # activations, embeddings and what is not quantised
    weight_dtype: str = "bf16"
    quantized_parts: str = "linear"  # which matrices have weight_dtype: linear, mlp or experts
    vision_parameters: int = 0  # of a vision tower and its projector, in `dtype`
    default_top_p: bool | None = None  # the checkpoint's generation config sets top_p or top_k; None: unknown
    model_type: str = ""
    aliases: tuple[str, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def is_mla(self) -> bool:
        return self.mla_kv_lora_rank is not None

    @property
    def num_moe_layers(self) -> int:
        return self.num_layers - self.num_dense_layers if self.is_moe else 0

    @property
    def num_full_layers(self) -> int:
        """Layers whose attention sees the whole context."""
        return self.num_layers - self.num_sliding_layers

    @property
    def num_parameters(self) -> int:
        """All parameters of matrices and embeddings."""
        return self._parameters(self.num_experts)

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token passes through (embeddings included)."""
        return self._parameters(self.experts_per_token)

    @property
    def dtype_bytes(self) -> float:
        """Bytes of one activation or one unquantised weight."""
        return DTYPE_BYTES[self.dtype]

    def attention_gemms(self, tensor_parallel: int = 1) -> tuple[Gemm, ...]:
        """Weight matrices of one attention layer on one GPU."""
        heads, dtype = self.heads_per_gpu(tensor_parallel), self._dtype_of("attention")
        if self.is_mla:
            return self._latent_gemms(heads, dtype)
        width = (heads + 2 * self.kv_heads_per_gpu(tensor_parallel)) * self.head_dim
        return (
            Gemm("qkv", width, self.hidden_size, dtype),
            Gemm("attention_out", self.hidden_size, heads * self.head_dim, dtype),
        )

    def mlp_gemms(self, tensor_parallel: int = 1) -> tuple[Gemm, ...]:
        """Weight matrices of one dense MLP on one GPU."""
        return self._mlp("mlp", self.intermediate_size, tensor_parallel)

    def shared_expert_gemms(self, tensor_parallel: int = 1) -> tuple[Gemm, ...]:
        """Weight matrices of the shared expert of one layer on one GPU; empty without one."""
        size = self.shared_expert_intermediate_size
        return self._mlp("shared_expert", size, tensor_parallel) if size else ()

    def router_gemm(self) -> Gemm:
        """The matrix that scores the experts; not sharded."""
        return Gemm("router", self.num_experts, self.hidden_size, self.dtype)

    def expert_parameters(self, tensor_parallel: int = 1) -> int:
        """Parameters of one routed expert of one layer on one GPU."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * _share(self.moe_intermediate_size, tensor_parallel)

    def lm_head_gemm(self, tensor_parallel: int = 1) -> Gemm:
        """The output projection on one GPU."""
        return Gemm("lm_head", _share(self.vocab_size, tensor_parallel), self.hidden_size, self.dtype)

    def heads_per_gpu(self, tensor_parallel: int) -> int:
        """Query heads on one GPU. `InputError` when they cannot be divided."""
        if tensor_parallel < 1 or self.num_heads % tensor_parallel:
            raise InputError(
                f"model '{self.name}': tensor_parallel {tensor_parallel} does not divide its {self.num_heads} heads; "
                f"allowed: {', '.join(str(n) for n in range(1, 129) if self.num_heads % n == 0)}"
            )
        return self.num_heads // tensor_parallel

    def kv_heads_per_gpu(self, tensor_parallel: int) -> int:
        """Key-value heads on one GPU; replicated when there are fewer heads than GPUs."""
        self.heads_per_gpu(tensor_parallel)
        if self.num_kv_heads % tensor_parallel and tensor_parallel % self.num_kv_heads:
            raise InputError(
                f"model '{self.name}': its {self.num_kv_heads} key-value heads cannot be shared evenly by "
                f"tensor_parallel {tensor_parallel}"
            )
        return max(1, self.num_kv_heads // tensor_parallel)

    def stage_layers(self, pipeline_parallel: int) -> list[int]:
        """Layers of each pipeline stage; earlier stages take the remainder."""
        if not 1 <= pipeline_parallel <= self.num_layers:
            raise InputError(
                f"model '{self.name}': pipeline_parallel must lie between 1 and its {self.num_layers} layers "
                f"(got {pipeline_parallel})"
            )
        base, extra = divmod(self.num_layers, pipeline_parallel)
        return [base + (stage < extra) for stage in range(pipeline_parallel)]

    def expert_share(self, shards: int, whole: bool) -> tuple[int, int]:
        """Routed experts of a layer on one GPU, and their width, when `shards` GPUs share them.

        `whole`: each GPU has some experts entirely (expert parallelism); otherwise a slice of every expert.
        """
        if whole:
            return _share(self.num_experts, shards), self.moe_intermediate_size
        return self.num_experts, _share(self.moe_intermediate_size, shards)

    def weight_bytes(
        self,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        data_parallel: int = 1,
        expert_parallel: bool = False,
    ) -> int:
        """Bytes of weights on the fullest GPU of a replica.

        With `data_parallel` ranks, each has all but the routed experts, which all GPUs of a stage share.
        """
        stages = self.stage_layers(pipeline_parallel)
        ends = [0.0] * len(stages)
        embedding = _share(self.vocab_size, tensor_parallel) * self.hidden_size * self.dtype_bytes
        ends[0] += embedding + _share(self.vision_parameters, tensor_parallel) * self.dtype_bytes
        if not (self.tied_embeddings and pipeline_parallel == 1):
            ends[-1] += embedding
        starts = [sum(stages[:i]) for i in range(len(stages))]
        experts = self.expert_share(tensor_parallel * data_parallel, expert_parallel)
        layers = [
            self._layers_bytes(first, n, tensor_parallel, experts) for first, n in zip(starts, stages, strict=True)
        ]
        return round(max(layer + end for layer, end in zip(layers, ends, strict=True)))

    def layer_kv_bytes(self, tensor_parallel: int = 1, kv_dtype: str | None = None) -> float:
        """Bytes of keys and values of one token in one layer on one GPU.

        Latent attention keeps one latent and one rotary key per token, the same on every GPU.
        """
        size = DTYPE_BYTES[kv_dtype or self.dtype]
        if self.mla_kv_lora_rank is not None:
            return (self.mla_kv_lora_rank + self.mla_qk_rope_head_dim) * size
        return 2 * self.kv_heads_per_gpu(tensor_parallel) * self.head_dim * size

    def kv_bytes_per_token(
        self, tensor_parallel: int = 1, pipeline_parallel: int = 1, kv_dtype: str | None = None
    ) -> int:
        """Bytes of keys and values of one token on one GPU (of the stage with most layers).

        Layers with a sliding window count as if they kept the whole context: an engine with one pool of equal blocks
        and no window groups needs that much.
        """
        return round(self.layer_kv_bytes(tensor_parallel, kv_dtype) * self.stage_layers(pipeline_parallel)[0])

    def _parameters(self, experts: int) -> int:
        attention = sum(g.n * g.k for g in self.attention_gemms())
        dense = sum(g.n * g.k for g in self.mlp_gemms())
        embeddings = (1 if self.tied_embeddings else 2) * self.vocab_size * self.hidden_size
        if not self.is_moe:
            return embeddings + self.num_layers * (attention + dense)
        moe = sum(g.n * g.k for g in (*self.shared_expert_gemms(), self.router_gemm()))
        moe += experts * self.expert_parameters()
        return embeddings + self.num_layers * attention + self.num_dense_layers * dense + self.num_moe_layers * moe

    def _layers_bytes(self, first: int, count: int, tensor_parallel: int, experts: tuple[int, int]) -> float:
        dense = max(0, min(self.num_dense_layers - first, count)) if self.is_moe else count
        attention = _bytes(self.attention_gemms(tensor_parallel))
        total = count * attention + dense * _bytes(self.mlp_gemms(tensor_parallel))
        if count > dense:
            total += (count - dense) * self._moe_bytes(tensor_parallel, experts)
        return total

    def _moe_bytes(self, tensor_parallel: int, experts: tuple[int, int]) -> float:
        number, width = experts
        parameters = number * (3 if self.gated_mlp else 2) * self.hidden_size * width
        return parameters * DTYPE_BYTES[self.expert_dtype] + _bytes(
            (*self.shared_expert_gemms(tensor_parallel), self.router_gemm())
        )

    @property
    def expert_dtype(self) -> str:
        """Type of the weights of the routed experts."""
        return self.weight_dtype

    def _dtype_of(self, part: str) -> str:
        quantized = {"linear": ("attention", "mlp"), "mlp": ("mlp",), "experts": ()}[self.quantized_parts]
        return self.weight_dtype if part in quantized else self.dtype

    def _mlp(self, name: str, size: int, tensor_parallel: int) -> tuple[Gemm, ...]:
        dtype, share = self._dtype_of("mlp"), _share(size, tensor_parallel)
        up = (2 if self.gated_mlp else 1) * share
        return Gemm(f"{name}_up", up, self.hidden_size, dtype), Gemm(f"{name}_down", self.hidden_size, share, dtype)

    def _latent_gemms(self, heads: int, dtype: str) -> tuple[Gemm, ...]:
        query = heads * (self.mla_qk_nope_head_dim + self.mla_qk_rope_head_dim)
        rank, query_rank = self.mla_kv_lora_rank or 0, self.mla_q_lora_rank
        down = rank + self.mla_qk_rope_head_dim
        first = (
            (Gemm("q", query, self.hidden_size, dtype), Gemm("kv_down", down, self.hidden_size, dtype))
            if query_rank is None
            else (
                Gemm("qkv_down", query_rank + down, self.hidden_size, dtype),
                Gemm("q_up", query, query_rank, dtype),
            )
        )
        return (
            *first,
            Gemm("kv_up", heads * (self.mla_qk_nope_head_dim + self.mla_v_head_dim), rank, dtype),
            Gemm("attention_out", self.hidden_size, heads * self.mla_v_head_dim, dtype),
        )


def model_names() -> list[str]:
    """Names of all models in the catalogue, sorted."""
    return entry_names("models")


def load_model(name_or_path: str, *, dtype: str | None = None, weight_dtype: str | None = None) -> ModelSpec:
    """A model by catalogue name, Hugging Face id, or path of a config.json (or its folder) or a catalogue-like YAML.

    `dtype` replaces the type of activations (and of weights that had the same type), `weight_dtype` that of the
    quantised matrices. Raises `InputError` for an unknown name, a file that is no model, or an unknown type.
    """
    path = Path(name_or_path)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.suffix == ".json":
        from sim.hfconfig import read_hf_config

        return _with_dtypes(read_hf_config(path), dtype, weight_dtype)
    values = read_entry("models", name_or_path, "model")
    return _with_dtypes(spec_from_values(values), dtype, weight_dtype)


def spec_from_values(values: Mapping[str, Any]) -> ModelSpec:
    """A `ModelSpec` from the values of a catalogue YAML. `InputError` names the file and the key at fault."""
    where = str(values.get("file", "model"))
    architecture = fields_of(values, "architecture", where)
    return build_spec(
        where,
        {
            **architecture,
            "name": str(values.get("name")),
            "model_type": str(values.get("model_type") or ""),
            "aliases": tuple(str(alias) for alias in values.get("aliases") or ()),
            "source": str(values.get("source") or ""),
            "notes": tuple(str(note) for note in values.get("notes") or ()),
        },
    )


def build_spec(where: str, values: Mapping[str, Any]) -> ModelSpec:
    """Check names and sizes and make the `ModelSpec`; None values fall to the field's default."""
    known = {f.name: f for f in fields(ModelSpec)}
    for key in values:
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'; known: {', '.join(known)}")
    given = {key: value for key, value in values.items() if value is not None}
    required = [name for name, f in known.items() if f.default is f.default_factory]  # both are MISSING
    missing = [name for name in required if name not in given]
    if missing:
        raise InputError(f"{where}: missing {', '.join(missing)}")
    for key, value in given.items():
        if "int" in str(known[key].type) and not _is_count(value):
            raise InputError(f"{where}: {key} must be a whole number >= 0 (got {value!r})")
    spec = ModelSpec(**given)
    _check_spec(where, spec)
    return spec


def _check_spec(where: str, spec: ModelSpec) -> None:
    for key in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size"):
        if getattr(spec, key) < 1:
            raise InputError(f"{where}: {key} must be at least 1 (got {getattr(spec, key)})")
    for key in ("dtype", "weight_dtype"):
        _check_dtype(where, key, getattr(spec, key))
    if spec.quantized_parts not in QUANTIZED_PARTS:
        raise InputError(f"{where}: quantized_parts must be one of {', '.join(QUANTIZED_PARTS)}")
    if spec.is_moe and not (spec.experts_per_token and spec.moe_intermediate_size):
        raise InputError(f"{where}: a model with experts needs experts_per_token and moe_intermediate_size")
    if spec.num_sliding_layers > spec.num_layers or (spec.num_sliding_layers and not spec.sliding_window):
        raise InputError(f"{where}: num_sliding_layers needs a sliding_window and at most num_layers layers")


def _check_dtype(where: str, key: str, value: str) -> None:
    if value not in DTYPE_BYTES:
        raise InputError(f"{where}: {key} must be one of {', '.join(DTYPE_BYTES)} (got {value!r})")


def _with_dtypes(spec: ModelSpec, dtype: str | None, weight_dtype: str | None) -> ModelSpec:
    if dtype:
        _check_dtype(f"model '{spec.name}'", "dtype", dtype)
        same = spec.weight_dtype == spec.dtype
        spec = replace(spec, dtype=dtype, weight_dtype=dtype if same else spec.weight_dtype)
    if weight_dtype:
        _check_dtype(f"model '{spec.name}'", "weight_dtype", weight_dtype)
        spec = replace(spec, weight_dtype=weight_dtype)
    return spec


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _share(size: int, tensor_parallel: int) -> int:
    return -(-size // tensor_parallel)


def _bytes(gemms: tuple[Gemm, ...]) -> float:
    return sum(g.n * g.k * DTYPE_BYTES[g.dtype] for g in gemms)
