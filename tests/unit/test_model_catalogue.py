"""Model catalogue: parameters, KV bytes and weights against published numbers and the shared table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.model import load_model, model_names

CONTRACT = [
    "opt-13b",
    "opt-30b",
    "opt-66b",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3-70b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "codellama-34b",
    "mistral-7b",
    "mistral-nemo-12b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "qwen2.5-7b",
    "qwen2.5-32b",
    "qwen2.5-72b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "deepseek-v3",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "phi-2",
    "yi-34b",
    "llama-4-scout",
    "bloom-176b",
]
TABLE = Path(__file__).parents[2] / ".." / "shared" / "data" / "hardware" / "models.csv"
# Parameters in 1e9 of the published checkpoints (norms, biases and learned positions included).
PUBLISHED = {
    "llama-2-7b": 6.738415616,
    "llama-3-8b": 8.030261248,
    "llama-3.1-70b": 70.553706496,
    "llama-3.1-405b": 405.853388800,
    "mistral-7b": 7.241732096,
    "mixtral-8x7b": 46.702792704,
    "qwen2.5-7b": 7.615616512,
    "qwen2.5-72b": 72.706203648,
    "qwen3-8b": 8.190735360,
    "qwen3-30b-a3b": 30.532122624,
    "deepseek-v3": 671.026419200,
    "gpt-oss-20b": 20.914757184,
    "gpt-oss-120b": 116.829156672,
    "opt-13b": 12.853473280,
    "phi-2": 2.779683840,
    "bloom-176b": 176.247271424,
}


def _rows() -> list[dict[str, str]]:
    if not TABLE.exists():
        return []
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_contract_name_loads() -> None:
    assert set(CONTRACT) <= set(model_names())
    for name in CONTRACT:
        assert load_model(name).name == name


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_checkpoint_without_norms(name: str) -> None:
    assert load_model(name).num_parameters == pytest.approx(PUBLISHED[name] * 1e9, rel=2e-3)


@pytest.mark.skipif(not TABLE.exists(), reason="../shared/data/hardware/models.csv is not here")
def test_parameters_and_kv_bytes_equal_the_shared_table_exactly() -> None:
    for row in _rows():
        model = load_model(row["model"])
        embeddings = 0 if int(row["vocab"]) else model.vocab_size * model.hidden_size
        assert model.num_parameters - embeddings == int(row["total_params_formula"]), row["model"]
        assert model.num_active_parameters - embeddings == int(row["active_params_formula"]), row["model"]
        assert model.kv_bytes_per_token(kv_dtype="bf16") == int(row["kv_bytes_per_token_16bit"]), row["model"]


def test_hugging_face_ids_are_aliases() -> None:
    assert load_model("meta-llama/Llama-3.1-8B-Instruct").name == "llama-3.1-8b"
    assert load_model("qwen/qwen2.5-7b-instruct").name == "qwen2.5-7b"


def test_no_two_models_share_a_name_or_alias() -> None:
    names = [n.lower() for model in map(load_model, model_names()) for n in (model.name, *model.aliases)]
    assert len(names) == len(set(names))


def test_weights_divide_by_tensor_parallel_when_all_is_sharded() -> None:
    model = load_model("llama-3.1-70b")
    assert model.weight_bytes() == 2 * model.num_parameters
    assert model.weight_bytes(4) == pytest.approx(model.weight_bytes() / 4, rel=1e-3)


def test_the_fullest_pipeline_stage_holds_its_layers_and_one_embedding() -> None:
    model = load_model("llama-2-70b")
    embedding = model.vocab_size * model.hidden_size * 2
    layers = (model.weight_bytes() - 2 * embedding) / 80
    assert model.weight_bytes(1, 4) == pytest.approx(20 * layers + embedding)


def test_stages_share_layers_and_earlier_ones_take_the_rest() -> None:
    assert load_model("deepseek-v3").stage_layers(4) == [16, 15, 15, 15]


def test_kv_heads_are_replicated_when_there_are_more_gpus_than_heads() -> None:
    model = load_model("qwen3-30b-a3b")
    assert model.kv_bytes_per_token(4) == model.kv_bytes_per_token(8) == 48 * 2 * 128 * 2


def test_a_latent_cache_is_the_same_on_every_gpu() -> None:
    model = load_model("deepseek-v3")
    assert model.kv_bytes_per_token(1) == model.kv_bytes_per_token(8) == 576 * 61 * 2


def test_an_fp8_cache_is_half_as_large() -> None:
    model = load_model("llama-3.1-8b")
    assert 2 * model.kv_bytes_per_token(kv_dtype="fp8") == model.kv_bytes_per_token()


def test_quantised_parts_decide_the_bytes_of_weights() -> None:
    model = load_model("llama-3.1-8b", weight_dtype="fp8")
    embeddings = 2 * model.vocab_size * model.hidden_size
    assert model.weight_bytes() == model.num_parameters - embeddings + 2 * embeddings
    oss = load_model("gpt-oss-120b")
    assert 60e9 < oss.weight_bytes() < 70e9


def test_a_parallelism_that_does_not_divide_the_heads_is_refused() -> None:
    with pytest.raises(InputError, match="tensor_parallel 3 does not divide its 32 heads"):
        load_model("llama-3.1-8b").weight_bytes(3)


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean 'llama-3.1-8b'\?"):
        load_model("llama-3.1-8bb")


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InputError, match="weight_dtype must be one of fp32, bf16"):
        load_model("llama-3.1-8b", weight_dtype="fp9")


def test_a_catalogue_like_yaml_names_its_wrong_key(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("name: m\narchitecture: {num_layer: 3}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"m.yaml: unknown key 'num_layer'"):
        load_model(str(file))
