"""What the schedulers of the Sarathi tree are called here, and a replica for a configuration of their recordings."""

from __future__ import annotations

from typing import Any

from v0_replay import Engine

from sim.replica import Limits

NO_BUDGET = 1_000_000  # tokens of a step in the schedulers that have no limit
WITHOUT_WATERMARK = ("orca", "faster_transformer")


def params_of(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and parameters of the scheduler."""
    restarts = {"output_count_restarts": config["output_count_restarts"]}
    name = config["scheduler"]
    if name == "vllm":
        return "vllm_v0", {"idle_after_drop": True, **restarts}
    if name == "orca":
        return "orca", {"extra_tokens": 1}
    if name == "faster_transformer":
        return "static", {"padded": False, "extra_tokens": 1}
    if name == "sarathi" and config.get("dynamic_chunking"):
        chunks = config["dynamic_chunking"]
        return "sarathi", {
            f"dynamic_chunk_{key}": chunks[key] for key in ("low", "high", "max_tokens", "stages")
        } | restarts
    return name, restarts


def budget_of(config: dict[str, Any]) -> int:
    """Tokens of a step; None in the recording means max_model_len."""
    name = config["scheduler"]
    if name in WITHOUT_WATERMARK:
        return NO_BUDGET
    if config.get("dynamic_chunking"):
        return int(config["dynamic_chunking"]["high"])
    most = config["max_model_len"]
    if name == "vllm":
        return min(config["max_batched_tokens"] or most, most)
    return int(config["chunk_size"] or most)


def engine_of(config: dict[str, Any]) -> Engine:
    """The replica that a configuration means."""
    name, params = params_of(config)
    blocks = config["gpu_blocks"]
    limits = Limits(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=budget_of(config),
        max_model_len=config["max_model_len"],
        depth=1,
        chunked_prefill=config["scheduler"] in ("sarathi", "simple_chunking"),
        watermark_blocks=0 if config["scheduler"] in WITHOUT_WATERMARK else int(0.01 * blocks),
    )
    return Engine(name, params, limits, blocks, config["block_size"], new_first=False)
