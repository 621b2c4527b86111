"""`servesim profiles` and `servesim models`: tables, JSON, explanations and imports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.cli.models import app as models
from sim.cli.profiles import app as profiles
from sim.errors import InputError
from sim.model import load_model

run = CliRunner().invoke
LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}


def test_profiles_list_shows_every_gpu_and_unknown_facts_as_null() -> None:
    rows = {row["name"]: row for row in json.loads(run(profiles, ["list", "--json"]).stdout)}
    assert rows["h100-sxm"]["memory_bandwidth"] == 3.35e12
    assert rows["cpu"]["memory_bandwidth"] is None
    assert "h100-sxm" in run(profiles, ["list"]).stdout


def test_profiles_show_gives_value_unit_and_source() -> None:
    facts = json.loads(run(profiles, ["show", "l40s", "--json"]).stdout)["facts"]
    assert facts["fp8_flops"]["value"] == pytest.approx(733e12)
    assert "aiconfigurator" in facts["fp8_flops"]["source"]
    assert "TFLOP/s" in run(profiles, ["show", "l40s"]).stdout


def test_profiles_explain_adds_up_to_the_step() -> None:
    arguments = ["explain", "llama-3.1-8b", "l4", "--batch", "8", "--prefill", "256", "--prefix", "64", "--json"]
    result = json.loads(run(profiles, arguments).stdout)
    total = sum(part["seconds"] for part in result["operations"].values())
    assert total == pytest.approx(result["seconds"], rel=1e-12)
    assert "ms a step" in run(profiles, arguments[:-1]).stdout


def test_profiles_explain_refuses_an_empty_step() -> None:
    result = run(profiles, ["explain", "llama-3.1-8b", "l4", "--batch", "0"])
    assert isinstance(result.exception, InputError)


def test_models_list_and_show_give_sizes() -> None:
    rows = {row["name"]: row for row in json.loads(run(models, ["list", "--json"]).stdout)}
    assert rows["llama-2-7b"]["num_parameters"] == 6738149376
    assert "llama-2-7b" in run(models, ["list"]).stdout
    assert json.loads(run(models, ["show", "mixtral-8x7b", "--json"]).stdout)["num_experts"] == 8


def test_what_models_show_prints_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "copy.yaml"
    file.write_text(run(models, ["show", "deepseek-v3"]).stdout, encoding="utf-8")
    assert load_model(str(file)) == load_model("deepseek-v3")


def test_models_import_writes_a_file_that_loads(tmp_path: Path) -> None:
    config, output = tmp_path / "config.json", tmp_path / "mine.yaml"
    config.write_text(json.dumps(LLAMA), encoding="utf-8")
    result = run(models, ["import", str(config), "-o", str(output), "--name", "mine"])
    assert result.exit_code == 0
    assert load_model(str(output)).num_parameters == load_model(str(config)).num_parameters
    assert load_model(str(output)).name == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "mine.yaml"]


def test_models_import_refuses_a_name_that_is_no_yaml(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA), encoding="utf-8")
    result = run(models, ["import", str(config), "-o", str(tmp_path / "mine.txt")])
    assert isinstance(result.exception, InputError)
