"""A tiny folder of measured runs in the shapes of the real one, every number made up."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

NUM_REQUESTS = 120


def write_blis(folder: Path, failed: int = 0) -> None:
    """Two stages of one run: `NUM_REQUESTS` requests, the last `failed` of them failed."""
    folder.mkdir(parents=True)
    run = {
        "experiment": "tiny-run",
        "model": "meta-llama/Llama-2-7b-hf",
        "workload": "general",
        "gpu": "H100-SXM-80GB",
        "tp": 1,
        "max_model_len": 4096,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,
        "kv_blocks_gpu": 7462,
        "kv_block_size": 16,
        "output_len_requested": 20,
        "num_failed": failed,
    }
    rows = [{**run, "scope": "stage", "stage": 0}, {**run, "scope": "summary", "stage": -1}]
    pd.DataFrame(rows).to_csv(folder / "experiments.csv", index=False)
    requests = pd.DataFrame(
        {
            "experiment": "tiny-run",
            "stage": [0] * (NUM_REQUESTS // 2) + [1] * (NUM_REQUESTS // 2),
            "index": range(NUM_REQUESTS),
            "arrival_us": [i * 200_000 for i in range(NUM_REQUESTS)],
            "input_tokens": [500 + i % 100 for i in range(NUM_REQUESTS)],
            "output_tokens_retokenized": 17,
            "ok": [1] * (NUM_REQUESTS - failed) + [0] * failed,
            "ttft_us": 25_000.0,
            "e2e_us": 175_000,
        }
    )
    requests.loc[requests["ok"] == 0, ["input_tokens"]] = 0
    requests.to_csv(folder / "requests.csv.gz", index=False)


def write_sim2real(folder: Path) -> None:
    """One evaluated run with two stages, and a peer's prediction of it."""
    folder.mkdir(parents=True)
    run = {
        "dataset": "eval38",
        "exp_id": 7,
        "experiment": "7-tiny",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": "H100",
        "tp": 1,
        "precision": "FP16",
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,
        "cpu_offload": 0.0,
        "gpu_mem_util": 0.9,
        "kv_blocks_gpu": None,
        "workload": "general",
        "system_prompt_len": 100,
        "question_len": 400,
        "output_len": 12,
        "config_provenance": "workload template",
        "itl_mean_from_requested_len_ms": 8.0,
        **{f"actual_ttft_{s}_ms": 30.0 for s in ("mean", "p90", "p99")},
        **{f"actual_e2e_{s}_ms": 120.0 for s in ("mean", "p90", "p99")},
    }
    stages = [(-1, 60, 8), (0, 40, 4), (1, 20, 4)]
    rows = [{**run, "stage_index": s, "duration_s": d, "num_requests_expected": n} for s, d, n in stages]
    pd.DataFrame(rows).to_csv(folder / "experiments.csv", index=False)
    peer = {"dataset": "eval38", "simulator": "peer", "experiment": "7-tiny", "duplicate_artifact": False}
    errors = [("ttft_mean", 12.0), ("itl_mean", -5.0), ("no_such_metric", 1.0)]
    peers = [
        {**peer, "stage_index": stage, "metric_name": metric, "signed_error_pct": error}
        for metric, error in errors
        for stage in (-1, 0)
    ]
    pd.DataFrame(peers).to_csv(folder / "peer_predictions.csv.gz", index=False)


def write_silicon(folder: Path) -> None:
    """A closed loop, and one row for each reason to leave it out."""
    folder.mkdir(parents=True)
    row: dict[str, object] = {
        "id": "loop",
        "backend": "vllm",
        "model_path": "meta-llama/Llama-3.1-8B-Instruct",
        "system": "h200_sxm",
        "precision": "fp8",
        "gemm_quant_mode": "fp8",
        "mode": "agg",
        "isl": 100,
        "osl": 10,
        "batch_size": 2.0,
        "tp_size": 1.0,
        "pp_size": 1.0,
        "moe_tp_size": 1.0,
        "moe_ep_size": None,
        "attention_dp_size": None,
        "concurrency": 2.0,
        "silicon_ttft_ms": 15.0,
        "silicon_tpot_ms": 5.0,
        "origin": "db-dump",
    }
    experts = {"model_path": "org/Mixtral-8x7B", "moe_ep_size": 4.0}
    sides = {"tp_size": 1.0, "pp_size": 1.0, "moe_tp_size": 1.0, "moe_ep_size": None, "attention_dp_size": 1.0}
    row |= {f"{side}_{name}": value for side in ("prefill", "decode") for name, value in sides.items()}
    row |= {"prefill_num_workers": None, "decode_num_workers": None}
    others: list[dict[str, object]] = [
        {**experts, "id": "experts-spread", "tp_size": 4.0, "moe_tp_size": 1.0},
        {**experts, "id": "counted-twice", "tp_size": 16.0, "moe_tp_size": 4.0, "backend": "trtllm"},
        {"id": "split", "mode": "disagg", "prefill_num_workers": 1.0, "decode_num_workers": 2.0, "decode_tp_size": 2.0},
        {"id": "uncounted", "mode": "disagg", "prefill_num_workers": 1.0},
        {"id": "split-data-parallel", "mode": "disagg", "decode_attention_dp_size": 8.0},
        {"id": "data-parallel", "attention_dp_size": 4.0},
        {"id": "unheard-of", "model_path": "org/Unheard-Of-1B"},
        {"id": "no-time", "silicon_tpot_ms": 0.0},
        {"id": "no-gpu", "system": "tpu_v9"},
    ]
    pd.DataFrame([row, *({**row, **other} for other in others)]).to_csv(folder / "silicon_sample.csv.gz", index=False)


def write_folder(base: Path) -> Path:
    """A data folder with three of the sets; returns it."""
    write_blis(base / "e2e" / "blis_training")
    write_sim2real(base / "e2e" / "sim2real")
    write_silicon(base / "e2e" / "silicon_sample")
    return base
