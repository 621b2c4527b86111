"""`servesim import`: serve commands become experiments that run, and say what was taken, left out and unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.cli import main as cli
from sim.config import PoolConfig, load_experiment
from sim.errors import InputError
from sim.experiment import RunOptions, run
from sim.imports.engines import ENGINES
from sim.imports.experiment import import_command

COMMANDS = {
    "vllm": "HF_HUB_OFFLINE=1 vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --data-parallel-size=2 "
    "--max-num-seqs 128 --max_model_len 16k --scheduling-policy priority --no-enable-prefix-caching --port 80",
    "sglang": "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 1 --schedule-policy lpm "
    "--chunked-prefill-size 4096 --mem-fraction-static 0.85 --enable-mixed-chunk --host 0.0.0.0",
    "trtllm": "trtllm-serve llama-3.1-8b --tp_size 1 --max_batch_size 64 --max_num_tokens 4096 "
    "--kv_cache_free_gpu_memory_fraction 0.8 --enable_chunked_prefill",
    "llama-server": "./llama-server -m llama-3.1-8b -c 32768 -np 8 -b 1024 -ngl 99 --metrics",
}
EXPECTED: dict[str, dict[str, Any]] = {
    "vllm": {
        "tensor_parallel": 2,
        "replicas": 2,
        "max_model_len": 16000,
        "scheduler.policy": "priority",
        "preemption.victim": "lowest_priority",
        "scheduler.max_num_seqs": 128,
        "scheduler.max_num_batched_tokens": 8192,
        "kv_cache.prefix_caching": False,
        "kv_cache.gpu_memory_utilization": 0.92,
    },
    "sglang": {
        "scheduler.policy": "sglang",
        "scheduler.params.queue_policy": "lpm",
        "scheduler.params.chunked_prefill_size": 4096,
        "scheduler.params.mixed_chunk": True,
        "kv_cache.allocator": "radix",
        "kv_cache.gpu_memory_utilization": 0.85,
    },
    "trtllm": {"scheduler.max_num_seqs": 64, "scheduler.max_num_batched_tokens": 4096},
    "llama-server": {
        "kv_cache.params.parallel": 8,
        "kv_cache.num_blocks": 2049,
        "scheduler.max_num_batched_tokens": 1024,
    },
}


def value_at(pool: PoolConfig, path: str) -> Any:
    here: Any = pool
    for part in path.split("."):
        here = here[part] if isinstance(here, dict) else getattr(here, part)
    return here


@pytest.mark.parametrize("engine", list(COMMANDS))
def test_a_command_becomes_an_experiment_that_runs(engine: str, tmp_path: Path) -> None:
    file = tmp_path / "imported.yaml"
    with pytest.raises(SystemExit) as left:
        cli.main(["import", engine, COMMANDS[engine], "-o", str(file)])
    assert left.value.code in (0, None)
    config = load_experiment(file, ["workload.num_requests=20"])
    pool = config.cluster.pools[0]
    assert {path: value_at(pool, path) for path in EXPECTED[engine]} == EXPECTED[engine]
    assert run(config, RunOptions()).summary["num_finished"] == 20


@pytest.mark.parametrize("engine", list(ENGINES))
def test_no_flag_is_in_a_table_twice(engine: str) -> None:
    names = [name for flag in ENGINES[engine].flags for name in flag.names]
    assert len(names) == len(set(names))
    assert all(flag.key or flag.why for flag in ENGINES[engine].flags)


def test_unknown_flags_are_named_with_the_nearest_and_ignored_ones_with_the_reason() -> None:
    found = import_command("vllm", "vllm serve opt-13b --max-num-seq 8 --frobnicate --enforce-eager --dtype half")
    assert len(found.warnings) == 2
    assert "--max-num-seq 8 is not a known flag" in found.warnings[0]
    assert "did you mean '--max-num-seqs'?" in found.warnings[0]
    assert "# not taken over: --enforce-eager: kernels" in found.text
    assert "# not taken over: --dtype half: number formats" in found.text


def test_a_trtllm_share_of_free_memory_becomes_one_of_the_whole() -> None:
    """Two ends: all that is left free is all of the memory; nothing of it is the weights' own share."""
    from sim.hardware import load_gpu
    from sim.model import load_model

    weights = load_model("llama-3.1-8b").weight_bytes() / load_gpu("h100-sxm").memory_bytes
    for share, used in ((1.0, 1.0), (0.5, weights + 0.5 * (1 - weights))):
        text = import_command("trtllm", f"trtllm-serve llama-3.1-8b --free_gpu_memory_fraction {share}").text
        assert f"gpu_memory_utilization: {round(used, 3)}" in text


def test_defaults_follow_the_gpu() -> None:
    small = import_command("vllm", "vllm serve llama-3.1-8b", gpu="l40s").text
    large = import_command("vllm", "vllm serve llama-3.1-8b", gpu="b200-sxm").text
    assert "max_num_batched_tokens: 2048" in small
    assert "max_num_seqs: 256" in small
    assert "max_num_batched_tokens: 16384" in large


def test_speculation_is_taken_with_an_assumed_acceptance() -> None:
    command = """vllm serve llama-3.1-8b --speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'"""
    found = import_command("vllm", command)
    assert 'speculation: {"method": "eagle", "num_speculative_tokens": 3, "acceptance": 0.7}' in found.text
    assert any("acceptance is an assumption" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("vllm", "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.33.0 --model llama-3.1-8b -tp 2"),
        ("vllm", "python -m vllm.entrypoints.openai.api_server --model=llama-3.1-8b \\\n  --tensor-parallel-size 2"),
        ("sglang", "NCCL_DEBUG=INFO python3 -m sglang.launch_server --model-path llama-3.1-8b --tp-size 2"),
        ("sglang", "docker run lmsysorg/sglang:v0.5 python3 -m sglang.launch_server --model llama-3.1-8b --tp=2"),
        ("trtllm", "mpirun -n 2 trtllm-serve serve llama-3.1-8b --tp_size 2"),
    ],
)
def test_what_stands_before_the_flags_is_not_read(engine: str, command: str) -> None:
    found = import_command(engine, command)
    assert not found.warnings
    assert "tensor_parallel: 2" in found.text
    assert "model: llama-3.1-8b " in found.text


def test_data_parallel_ranks_share_experts_only_where_the_engine_says_so() -> None:
    """vLLM: without expert parallelism the ranks of a dense model are replicas of their own."""
    dense = import_command("vllm", "vllm serve llama-3.1-8b -dp 4").text
    assert "replicas: 4 " in dense
    moe = import_command("vllm", "vllm serve qwen3-30b-a3b -dp 4 --enable-expert-parallel --kv-cache-dtype fp8_e4m3")
    assert not moe.warnings
    for line in ("replicas: 1 ", "data_parallel: 4 ", "expert_parallel: true ", "dtype: fp8 "):
        assert line in moe.text


def test_json_flags_may_be_given_key_by_key() -> None:
    dotted = "--speculative-config.method ngram --speculative-config.num_speculative_tokens=4"
    text = import_command("vllm", f"vllm serve llama-3.1-8b {dotted} --block-size 32").text
    assert '"method": "ngram", "num_speculative_tokens": 4' in text
    assert "block_size: 32" in text


def test_secrets_do_not_reach_the_file() -> None:
    assert "hush" not in import_command("vllm", "vllm serve opt-13b --api-key hush").text


def test_what_does_not_fit_is_said() -> None:
    found = import_command("vllm", "vllm serve llama-3.1-70b", gpu="l40s")
    assert any("does not run as it stands" in warning and "does not fit" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("engine", "command", "says"),
    [
        ("vllmm", "x", "did you mean 'vllm'?"),
        ("vllm", "vllm serve opt-13b --max-num-seqs many", "--max-num-seqs many: must be a whole number"),
        ("vllm", "vllm serve opt-13b --max-num-seqs", "needs a value"),
        ("vllm", "vllm serve", "names no model"),
        ("vllm", "vllm serve 'opt-13b", "cannot be read"),
        ("llama-server", "llama-server -m /models/private.gguf", "give --model NAME"),
    ],
)
def test_mistakes_are_one_clear_line(engine: str, command: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        import_command(engine, command)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
