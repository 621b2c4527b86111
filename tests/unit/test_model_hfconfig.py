"""Hugging Face config.json: each family gives the catalogue's architecture; what cannot be read is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.errors import InputError
from sim.model import load_model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
QWEN_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DEEPSEEK = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {"quant_method": "mxfp4"},
}
SCOUT = {
    "model_type": "llama4",
    "text_config": {
        "hidden_size": 5120,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "vocab_size": 202048,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "attention_chunk_size": 8192,
        "torch_dtype": "bfloat16",
    },
}
OPT = {
    "model_type": "opt",
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "ffn_dim": 20480,
    "vocab_size": 50272,
    "torch_dtype": "float16",
}


def _write(folder: Path, config: dict[str, Any]) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama-3.1-8b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN_MOE, "qwen3-30b-a3b"),
        (DEEPSEEK, "deepseek-v3"),
        (GPT_OSS, "gpt-oss-20b"),
        (SCOUT, "llama-4-scout"),
        (OPT, "opt-13b"),
    ],
)
def test_a_config_gives_what_the_catalogue_has(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    read, known = load_model(_write(tmp_path, config)), load_model(name)
    assert read.num_parameters == known.num_parameters
    assert read.num_active_parameters == known.num_active_parameters
    assert read.weight_bytes(2) == replace(known, vision_parameters=0).weight_bytes(2)  # a text config has no tower
    assert read.kv_bytes_per_token(2) == known.kv_bytes_per_token(2)
    assert (read.num_sliding_layers, read.weight_dtype) == (known.num_sliding_layers, known.weight_dtype)


def test_a_folder_with_a_config_is_accepted_and_names_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    _write(folder, LLAMA)
    assert load_model(str(folder)).name == "my-model"


def test_an_old_mistral_has_a_window_on_every_layer(tmp_path: Path) -> None:
    model = load_model(_write(tmp_path, {**LLAMA, "model_type": "mistral", "sliding_window": 4096}))
    assert (model.sliding_window, model.num_sliding_layers) == (4096, 32)


def test_a_window_that_qwen_disables_is_none(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False}
    assert load_model(_write(tmp_path, config)).num_sliding_layers == 0


def test_heads_without_grouping_keep_one_kv_head_each(tmp_path: Path) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert load_model(_write(tmp_path, config)).num_kv_heads == 32


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "awq", "bits": 4}, ("int4", "linear")),
        ({"quant_method": "gptq", "bits": 8}, ("int8", "linear")),
        ({"quant_method": "fbgemm_fp8"}, ("fp8", "linear")),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("int4", "linear")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4", "linear")),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}},
                "ignore": ["re:.*self_attn", "lm_head"],
            },
            ("fp8", "mlp"),
        ),
    ],
)
def test_quantisation_is_recognised(tmp_path: Path, quantization: dict[str, Any], expected: tuple[str, str]) -> None:
    model = load_model(_write(tmp_path, {**LLAMA, "quantization_config": quantization}))
    assert (model.weight_dtype, model.quantized_parts) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama", "vocab_size": None}, r"model_type 'lama' is not known \(did you mean 'llama'\?\)"),
        ({"num_hidden_layers": None}, "missing num_hidden_layers"),
        ({"intermediate_size": None}, "missing intermediate_size"),
        ({"hidden_size": "big"}, "hidden_size must be a whole number >= 1"),
        ({"torch_dtype": "float8"}, "torch_dtype must be one of float32, float16, bfloat16"),
        ({"quantization_config": {"quant_method": "magic"}}, "quant_method 'magic' is not known"),
        ({"model_type": "mixtral"}, r"missing num_local_experts \(model_type 'mixtral' has experts\)"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(_write(tmp_path, {**LLAMA, **change}))


def test_an_unknown_type_lists_the_fields_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fields missing besides: hidden_size, num_attention_heads, intermediate_size"):
        load_model(_write(tmp_path, {"model_type": "new", "num_hidden_layers": 2, "vocab_size": 10}))


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="is not a readable JSON file"):
        load_model(str(file))
