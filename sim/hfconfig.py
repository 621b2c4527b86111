"""Hugging Face config.json files as `ModelSpec`, without the transformers library.

A model type that is not in `_TYPES` is refused: whether its MLP is gated, which layers have experts or windows, cannot
be read from the numbers alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import InputError, nearest
from sim.model import ModelSpec, build_spec

Config = Mapping[str, Any]

# Spellings of one size, the usual one first.
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_heads": ("num_attention_heads", "n_head"),
    "vocab_size": ("vocab_size",),
}
_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class _Family:
    """How to read one model_type. `windows` gives the number of layers with a sliding window."""

    gated: bool = True
    tied: bool = False  # when tie_word_embeddings is absent
    fixed_mlp: int | None = None  # MLP width as a multiple of the hidden size when no key gives it
    moe: Callable[[Config], dict[str, Any]] | None = None
    windows: Callable[[Config, int], int] = lambda config, layers: 0


def _all_layers(config: Config, layers: int) -> int:
    return layers


def _when_used(config: Config, layers: int) -> int:
    if not config.get("use_sliding_window"):
        return 0
    return max(0, layers - int(config.get("max_window_layers", 0)))


def _every_other(config: Config, layers: int) -> int:
    return _listed(config, layers, (layers + 1) // 2)


def _five_of_six(config: Config, layers: int) -> int:
    pattern = int(config.get("sliding_window_pattern") or 6)
    return _listed(config, layers, layers - layers // pattern)


def _listed(config: Config, layers: int, otherwise: int) -> int:
    kinds = config.get("layer_types")
    return sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds) if kinds else otherwise


def _three_of_four(config: Config, layers: int) -> int:
    return _listed(config, layers, layers - layers // 4)


def _mixtral_moe(config: Config) -> dict[str, Any]:
    return {
        "num_experts": config["num_local_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "moe_intermediate_size": config["intermediate_size"],
    }


def _qwen_moe(config: Config) -> dict[str, Any]:
    layers, step = int(config["num_hidden_layers"]), int(config.get("decoder_sparse_step") or 1)
    plain = set(config.get("mlp_only_layers") or [])
    sparse = sum(layer not in plain and (layer + 1) % step == 0 for layer in range(layers))
    return {
        "num_experts": config["num_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "moe_intermediate_size": config["moe_intermediate_size"],
        "shared_expert_intermediate_size": config.get("shared_expert_intermediate_size") or 0,
        "num_dense_layers": layers - sparse,
    }


def _deepseek_moe(config: Config) -> dict[str, Any]:
    if not config.get("n_routed_experts"):
        return {}
    size = config["moe_intermediate_size"]
    return {
        "num_experts": config["n_routed_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "moe_intermediate_size": size,
        "shared_expert_intermediate_size": size * int(config.get("n_shared_experts") or 0),
        "num_dense_layers": int(config.get("first_k_dense_replace") or 0),
    }


def _llama4_moe(config: Config) -> dict[str, Any]:
    layers, step = int(config["num_hidden_layers"]), int(config.get("interleave_moe_layer_step") or 1)
    return {
        "num_experts": config["num_local_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "moe_intermediate_size": config["intermediate_size"],
        "shared_expert_intermediate_size": config["intermediate_size"],
        "num_dense_layers": layers - layers // step,
    }


_DEEPSEEK = _Family(moe=_deepseek_moe)
_TYPES: Mapping[str, _Family] = {
    "llama": _Family(),
    "mistral": _Family(windows=_all_layers),
    "mixtral": _Family(moe=_mixtral_moe, windows=_all_layers),
    "qwen2": _Family(windows=_when_used),
    "qwen2_moe": _Family(moe=_qwen_moe, windows=_when_used),
    "qwen3": _Family(windows=_when_used),
    "qwen3_moe": _Family(moe=_qwen_moe, windows=_when_used),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "gpt_oss": _Family(moe=_mixtral_moe, windows=_every_other),
    "llama4": _Family(moe=_llama4_moe, windows=_three_of_four),
    "llama4_text": _Family(moe=_llama4_moe, windows=_three_of_four),
    "opt": _Family(gated=False, tied=True),
    "phi": _Family(gated=False),
    "phi3": _Family(windows=_all_layers),
    "gemma": _Family(tied=True),
    "gemma2": _Family(tied=True, windows=_every_other),
    "gemma3_text": _Family(tied=True, windows=_five_of_six),
    "bloom": _Family(gated=False, tied=True, fixed_mlp=4),
    "gpt_neox": _Family(gated=False),
    "gpt2": _Family(gated=False, tied=True, fixed_mlp=4),
    "starcoder2": _Family(gated=False, tied=True, windows=_all_layers),
    "granite": _Family(),
    "olmo2": _Family(),
    "cohere": _Family(tied=True),
}


def read_hf_config(path: Path) -> ModelSpec:
    """Read a config.json. `InputError` for anything that cannot be read without guessing."""
    outer = _load(path)
    config = _text_config(outer)
    where, kind = str(path), str(config.get("model_type", ""))
    family = _family(where, kind, config)
    layers = int(_size(where, config, "num_layers"))
    heads = _size(where, config, "num_heads")
    hidden = _size(where, config, "hidden_size")
    values: dict[str, Any] = {
        "name": path.parent.name if path.name == "config.json" and path.parent.name else path.stem,
        "model_type": kind,
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "intermediate_size": _mlp_width(where, config, family, hidden),
        "vocab_size": _size(where, config, "vocab_size"),
        "gated_mlp": family.gated,
        "tied_embeddings": bool(config.get("tie_word_embeddings", outer.get("tie_word_embeddings", family.tied))),
        "max_position": config.get("max_position_embeddings") or config.get("n_positions"),
        "source": str(path),
    }
    values.update(_moe(where, config, family))
    values.update(_windows(config, family, layers))
    values.update(_latent(config))
    values.update(_dtypes(where, outer, config))
    return build_spec(where, values)


def _load(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: is not a readable JSON file ({error})") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: must hold a JSON object, as Hugging Face config.json files do")
    return config


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    inner = config.get("text_config") or config.get("llm_config")
    if not isinstance(inner, dict):
        return config
    kind = inner.get("model_type") or config.get("model_type")
    return {**inner, "model_type": kind}


def _family(where: str, kind: str, config: Config) -> _Family:
    if kind in _TYPES:
        return _TYPES[kind]
    spellings = [*_SPELLINGS.values(), ("intermediate_size", "ffn_dim", "n_inner")]
    missing = [names[0] for names in spellings if not any(name in config for name in names)]
    detail = f"; fields missing besides: {', '.join(missing)}" if missing else ""
    raise InputError(
        f"{where}: model_type '{kind}' is not known{nearest(kind, _TYPES)}, so its gated_mlp, expert and window layers "
        f"are not either{detail}. Known: {', '.join(_TYPES)}. Or write a YAML as `servesim models show NAME` prints."
    )


def _size(where: str, config: Config, name: str) -> int:
    for key in _SPELLINGS[name]:
        if config.get(key) is not None:
            return _count(where, key, config[key])
    raise InputError(f"{where}: missing {_SPELLINGS[name][0]}")


def _count(where: str, key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{where}: {key} must be a whole number >= 1 (got {value!r})")
    return value


def _mlp_width(where: str, config: Config, family: _Family, hidden: int) -> int:
    for key in ("intermediate_size_mlp", "intermediate_size", "ffn_dim", "n_inner"):
        if config.get(key) is not None:
            return _count(where, key, config[key])
    if family.fixed_mlp:
        return family.fixed_mlp * hidden
    raise InputError(f"{where}: missing intermediate_size")


def _moe(where: str, config: Config, family: _Family) -> dict[str, Any]:
    if family.moe is None:
        return {}
    try:
        return family.moe(config)
    except KeyError as error:
        kind = config.get("model_type")
        raise InputError(f"{where}: missing {error.args[0]} (model_type '{kind}' has experts)") from None


def _windows(config: Config, family: _Family, layers: int) -> dict[str, Any]:
    window = config.get("attention_chunk_size") or config.get("sliding_window")
    if not window:
        return {}
    num = family.windows(config, layers)
    return {"sliding_window": window, "num_sliding_layers": num} if num else {}


def _latent(config: Config) -> dict[str, Any]:
    if not config.get("kv_lora_rank"):
        return {}
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    return {
        "mla_kv_lora_rank": config["kv_lora_rank"],
        "mla_q_lora_rank": config.get("q_lora_rank"),
        "mla_qk_nope_head_dim": nope,
        "mla_qk_rope_head_dim": rope,
        "mla_v_head_dim": config["v_head_dim"],
        "head_dim": nope + rope,
    }


def _dtypes(where: str, outer: Config, config: Config) -> dict[str, Any]:
    raw = config.get("torch_dtype") or config.get("dtype") or outer.get("torch_dtype") or outer.get("dtype")
    name = str(raw or "bfloat16")
    if name not in _DTYPES:
        raise InputError(f"{where}: torch_dtype must be one of {', '.join(_DTYPES)} (got {name!r})")
    dtype = _DTYPES[name]
    quantization = outer.get("quantization_config") or config.get("quantization_config")
    if not quantization:
        return {"dtype": dtype, "weight_dtype": dtype}
    weight, parts = _quantization(where, quantization)
    return {"dtype": dtype, "weight_dtype": weight, "quantized_parts": parts}


def _quantization(where: str, config: Config) -> tuple[str, str]:
    """Weight type and quantised parts of a quantization_config."""
    method = str(config.get("quant_method", ""))
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8", "linear"
    if method == "mxfp4":
        return "mxfp4", "experts"
    if method in ("awq", "gptq") and config.get("bits") in (4, 8):
        return f"int{config['bits']}", "linear"
    if method == "bitsandbytes":
        return ("int4" if config.get("load_in_4bit") else "int8"), "linear"
    if method == "modelopt" and str(config.get("quant_algo", "")).upper() in ("FP8", "NVFP4"):
        return str(config["quant_algo"]).lower(), "linear"
    if method == "compressed-tensors":
        return _compressed_tensors(where, config)
    raise InputError(
        f"{where}: quantization_config with quant_method '{method}' is not known; known: fp8, fbgemm_fp8, mxfp4, awq, "
        "gptq (bits 4 or 8), bitsandbytes, modelopt (FP8, NVFP4), compressed-tensors"
    )


def _compressed_tensors(where: str, config: Config) -> tuple[str, str]:
    groups = config.get("config_groups") or {}
    kinds = {(g["weights"]["type"], g["weights"]["num_bits"]) for g in groups.values() if g.get("weights")}
    names = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4"}
    found = [names.get(kind) for kind in kinds]
    if len(found) != 1 or found[0] is None:
        raise InputError(
            f"{where}: quantization_config.config_groups must have one weight type: float or int, 4 or 8 bits"
        )
    ignored = " ".join(str(item) for item in config.get("ignore") or [])
    return found[0], "mlp" if "self_attn" in ignored else "linear"
