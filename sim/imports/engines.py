"""What each engine's serve flags mean here, and its own defaults where they are not the preset's.

Sources: the argument parsers and configuration of vLLM 0.33.0, SGLang 0.5.23, trtllm-serve of TensorRT-LLM 1.x and
llama.cpp's server (fb40266).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.imports.flags import Command, Flag, ignores, switches, takes, whole
from sim.units import GIB

if TYPE_CHECKING:
    from sim.hardware import HardwareProfile
    from sim.model import ModelSpec

Value = tuple[Any, str]  # value, and why it is so: a comment of the YAML
Defaults = Callable[[Command, "ModelSpec", "HardwareProfile"], dict[str, Value]]

_CLIENTS = "between clients and the server, no effect on step times"
_LOADING = "loading of weights and tokenizer, which happens before the first request"
_LOGS = "logs and metrics"
_DTYPE = "number formats of weights are the model's: give a model file with others (model: FILE.yaml)"
_KERNELS = "kernels and compilation: step times are those that the GPU's profile was measured with"
_IMAGES = "images, audio and video are not modelled"
_ACCEPTANCE = 0.7  # nobody's flag says it


@dataclass(frozen=True)
class EngineCommand:
    """How to read the commands of one engine. `preset`: its name in an experiment; `program`: see `parse`."""

    title: str
    preset: str
    program: tuple[str, ...]
    flags: Sequence[Flag]
    defaults: Defaults


def speculation(text: str) -> dict[str, Any]:
    """vLLM's --speculative-config JSON as the section of a pool; the acceptance is an assumption."""
    try:
        given = json.loads(text)
    except ValueError:
        raise ValueError("must be JSON") from None
    if not isinstance(given, dict) or not isinstance(given.get("num_speculative_tokens"), int):
        raise ValueError("must be JSON with num_speculative_tokens")
    method = str(given.get("method", "draft_model"))
    names = {"ngram": "ngram", "eagle": "eagle", "eagle3": "eagle", "mtp": "eagle", "draft_model": "draft_model"}
    if method not in names and not method.endswith("mtp"):
        raise ValueError(f"must have a method among {', '.join(names)} (got {method!r})")
    section = {"method": names.get(method, "eagle"), "num_speculative_tokens": given["num_speculative_tokens"]}
    if section["method"] == "draft_model":
        section["draft_model"] = str(given.get("model"))
    return {**section, "acceptance": _ACCEPTANCE}


def _scheduling(text: str) -> str:
    if text not in ("fcfs", "priority"):
        raise ValueError("must be fcfs or priority")
    return text


def kv_dtype(text: str) -> str | None:
    """The type of the KV cache; auto: the model's."""
    names = {"auto": None, "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "int8": "int8"}
    name = "fp8" if text.startswith("fp8") else names.get(text, "unknown")
    if name == "unknown":
        raise ValueError(f"must be fp8 or one of {', '.join(names)}")
    return name


_VLLM = [
    takes("--model", "model"),
    takes("--tensor-parallel-size -tp", "tensor_parallel", whole),
    takes("--pipeline-parallel-size -pp", "pipeline_parallel", whole),
    takes("--data-parallel-size -dp", "replicas", whole),
    takes("--max-model-len", "max_model_len", whole),
    takes("--max-num-seqs", "scheduler.max_num_seqs", whole),
    takes("--max-num-batched-tokens", "scheduler.max_num_batched_tokens", whole),
    takes("--scheduling-policy", "scheduler.policy", _scheduling),
    takes("--long-prefill-token-threshold", "scheduler.long_prefill_token_threshold", whole),
    takes("--watermark", "scheduler.watermark", float),
    takes("--max-loras", "scheduler.max_loras", whole),
    takes("--gpu-memory-utilization", "kv_cache.gpu_memory_utilization", float),
    takes("--block-size", "kv_cache.block_size", whole),
    takes("--num-gpu-blocks-override", "kv_cache.num_blocks", whole),
    takes("--kv-cache-dtype", "kv_cache.dtype", kv_dtype),
    Flag(("--enable-expert-parallel",), "expert_parallel", switch=True),
    takes("--speculative-config", "speculation", speculation),
    *switches("enable-chunked-prefill", "scheduler.enable_chunked_prefill"),
    *switches("async-scheduling", "scheduler.async_scheduling"),
    *switches("scheduler-reserve-full-isl", "scheduler.scheduler_reserve_full_isl"),
    *switches("enable-prefix-caching", "kv_cache.prefix_caching"),
    *ignores("--host --port --api-key --served-model-name --root-path --ssl-keyfile --ssl-certfile --chat-template "
             "--tool-call-parser --reasoning-parser --api-server-count --response-role --generation-config", _CLIENTS),
    *ignores("--enable-auto-tool-choice --enable-request-id-headers", _CLIENTS, switch=True),
    *ignores("--tokenizer --tokenizer-mode --download-dir --load-format --revision --seed --hf-overrides "
             "--config-format --rope-scaling --allowed-local-media-path", _LOADING),
    *ignores("--trust-remote-code --skip-tokenizer-init", _LOADING, switch=True),
    *ignores("--uvicorn-log-level --max-log-len --otlp-traces-endpoint --kv-events-config", _LOGS),
    *ignores("--disable-log-requests --disable-log-stats --enable-log-requests --no-enable-log-requests "
             "--disable-uvicorn-access-log", _LOGS, switch=True),
    *ignores("--dtype --quantization -q", _DTYPE),
    *ignores("--compilation-config -O --attention-backend --distributed-executor-backend --all2all-backend", _KERNELS),
    *ignores("--enforce-eager", f"{_KERNELS} (with CUDA graphs: without them decode steps take longer)", switch=True),
    *ignores("--disable-custom-all-reduce", _KERNELS, switch=True),
    *ignores("--swap-space --cpu-offload-gb --kv-offloading-size", "host memory for weights or KV is not modelled "
             "(V1 preempts by computing again)"),
    *ignores("--enable-lora", "adapters are those of the workload; their computing time is not modelled", switch=True),
    *ignores("--lora-modules --max-lora-rank --max-cpu-loras", "loading and computing of adapters is not modelled"),
    *ignores("--kv-transfer-config", "write a prefill and a decode pool by hand: a command describes one of them"),
    *ignores("--max-num-partial-prefills --max-long-partial-prefills", "V1 never enforced it"),
    *ignores("--limit-mm-per-prompt --mm-processor-kwargs --mm-processor-cache-gb", _IMAGES),
]  # fmt: skip


def _vllm_defaults(command: Command, model: ModelSpec, gpu: HardwareProfile) -> dict[str, Value]:
    """Those of the API server for the GPU (vLLM 0.33, 1.3 of its configuration)."""
    memory, why = gpu.require("memory_bytes"), f"vLLM 0.33's default on {gpu.name}"
    large = memory >= 70 * GIB and not gpu.name.startswith("a100")
    budget = 16384 if memory >= 160 * GIB else 8192 if large else 2048
    found: dict[str, Value] = {"kv_cache.gpu_memory_utilization": (0.92, "vLLM 0.33's default")}
    chunked = command.taken.get("scheduler.enable_chunked_prefill", (True, ""))[0]
    longest = command.taken.get("max_model_len", (model.max_position, ""))[0]
    if not chunked and longest and longest > budget:
        budget, why = longest, "vLLM raises it to max_model_len without chunked prefill"
    budget = command.taken.get("scheduler.max_num_batched_tokens", (budget, ""))[0]
    found["scheduler.max_num_seqs"] = min(1024 if large else 256, budget), f"vLLM 0.33's default on {gpu.name}"
    found["scheduler.max_num_batched_tokens"] = budget, why
    if "expert_parallel" in command.taken and "replicas" in command.taken:
        command.taken["data_parallel"] = command.taken.pop("replicas")  # ranks then share the experts of one replica
    if command.taken.get("scheduler.policy", ("fcfs", ""))[0] == "priority":
        found["preemption.victim"] = "lowest_priority", "goes with --scheduling-policy priority"
    return found


def _chunk(text: str) -> int:
    """SGLang's -1 (no chunks) is 0 here."""
    return 0 if text == "-1" else whole(text)


_SGLANG = [
    takes("--model-path --model", "model"),
    takes("--tensor-parallel-size --tp-size --tp", "tensor_parallel", whole),
    takes("--pipeline-parallel-size --pp-size --pp", "pipeline_parallel", whole),
    takes("--data-parallel-size --dp-size --dp", "replicas", whole),
    takes("--context-length", "max_model_len", whole),
    takes("--max-running-requests", "scheduler.max_num_seqs", whole),
    takes("--chunked-prefill-size", "scheduler.chunked_prefill_size", _chunk),
    takes("--max-prefill-tokens", "scheduler.max_prefill_tokens", whole),
    takes("--schedule-policy", "scheduler.queue_policy"),
    takes("--schedule-conservativeness", "scheduler.schedule_conservativeness", float),
    takes("--mem-fraction-static", "kv_cache.gpu_memory_utilization", float),
    takes("--page-size", "kv_cache.block_size", whole),
    Flag(("--enable-mixed-chunk",), "scheduler.mixed_chunk", switch=True),
    Flag(("--disable-radix-cache",), "kv_cache.prefix_caching", switch=False),
    *ignores("--host --port --api-key --served-model-name --chat-template --tool-call-parser --reasoning-parser",
             _CLIENTS),
    *ignores("--tokenizer-path --tokenizer-mode --load-format --revision --random-seed --download-dir", _LOADING),
    *ignores("--trust-remote-code --skip-tokenizer-init", _LOADING, switch=True),
    *ignores("--log-level --log-level-http", _LOGS),
    *ignores("--log-requests --enable-metrics --show-time-cost", _LOGS, switch=True),
    takes("--kv-cache-dtype", "kv_cache.dtype", kv_dtype),
    *ignores("--dtype --quantization", _DTYPE),
    *ignores("--attention-backend --sampling-backend --cuda-graph-max-bs --cuda-graph-bs", _KERNELS),
    *ignores("--disable-cuda-graph --enable-torch-compile --disable-custom-all-reduce", _KERNELS, switch=True),
    *ignores("--disable-overlap-schedule", "SGLang's overlap is not modelled: this is how it is simulated anyway",
             switch=True),
    *ignores("--max-total-tokens", "give kv_cache.num_blocks (pages, one of them reserved) in the experiment"),
    *ignores("--speculative-algorithm --speculative-draft-model-path --speculative-num-steps --speculative-eagle-topk "
             "--speculative-num-draft-tokens", "speculation is modelled with the paged allocator only"),
    *ignores("--disaggregation-mode --disaggregation-transfer-backend", "write a prefill and a decode pool by hand"),
    *ignores("--ep-size --expert-parallel-size --ep --dist-init-addr --nnodes --node-rank", "where processes run; "
             "parallelism over experts is not taken from a flag"),
    *ignores("--enable-dp-attention --enable-hierarchical-cache", "is not modelled", switch=True),
]  # fmt: skip


def _sglang_defaults(command: Command, model: ModelSpec, gpu: HardwareProfile) -> dict[str, Value]:
    """Prefill chunks by GPU memory (SGLang 0.5.23)."""
    memory = gpu.require("memory_bytes") / GIB
    size = 2048 if memory < 20 else 4096 if memory < 60 else 8192 if memory < 160 else 16384
    return {"scheduler.chunked_prefill_size": (size, f"SGLang 0.5.23's default on {gpu.name}")}


_TRTLLM = [
    takes("--model", "model"),
    takes("--tp-size --tensor-parallel-size", "tensor_parallel", whole),
    takes("--pp-size --pipeline-parallel-size", "pipeline_parallel", whole),
    takes("--max-batch-size", "scheduler.max_num_seqs", whole),
    takes("--max-num-tokens", "scheduler.max_num_batched_tokens", whole),
    takes("--max-seq-len", "max_model_len", whole),
    takes("--kv-cache-free-gpu-memory-fraction --free-gpu-memory-fraction", "free_fraction", float),
    takes("--tokens-per-block", "kv_cache.block_size", whole),
    Flag(("--enable-chunked-prefill",), "scheduler.enable_chunked_prefill", switch=True),
    *ignores("--host --port --chat-template --tool-parser --reasoning-parser --served-model-name", _CLIENTS),
    *ignores("--tokenizer --num-postprocess-workers --revision", _LOADING),
    *ignores("--trust-remote-code", _LOADING, switch=True),
    *ignores("--log-level", _LOGS),
    takes("--kv-cache-dtype", "kv_cache.dtype", kv_dtype),
    *ignores("--backend", _KERNELS),
    *ignores("--max-beam-width", "beams are not modelled"),
    *ignores("--ep-size --cluster-size --gpus-per-node --moe-expert-parallel-size", "where processes run; parallelism "
             "over experts is not taken from a flag"),
    *ignores("--extra-llm-api-options --config", "the file is not read: give its settings in the experiment"),
]  # fmt: skip


def _trtllm_defaults(command: Command, model: ModelSpec, gpu: HardwareProfile) -> dict[str, Value]:
    """Its share is of the memory that the weights leave: the same as a share of the whole (trtllm-serve, 0.9)."""
    share, flag = command.taken.pop("free_fraction", (0.9, "trtllm-serve's default 0.9 of the memory left free"))
    parallel = (command.taken.get(key, (1, ""))[0] for key in ("tensor_parallel", "pipeline_parallel"))
    weights = model.weight_bytes(*parallel) / gpu.memory_bytes
    used = min(1.0, round(weights + share * (1 - weights), 3))
    return {
        "kv_cache.gpu_memory_utilization": (used, f"{flag}: {share:g} of what weights leave, as a share of the whole"),
        "scheduler.max_num_seqs": (2048, "trtllm-serve's default"),
        "scheduler.max_num_batched_tokens": (8192, "trtllm-serve's default"),
    }


_LLAMA = [
    takes("-m --model -hf --hf-repo", "model"),
    takes("-c --ctx-size", "context", whole),
    takes("-np --parallel", "kv_cache.parallel", whole),
    takes("-b --batch-size", "scheduler.max_num_batched_tokens", whole),
    takes("-sps --slot-prompt-similarity", "kv_cache.slot_prompt_similarity", float),
    Flag(("--no-cache-prompt",), "kv_cache.prefix_caching", switch=False),
    Flag(("--cache-prompt",), "kv_cache.prefix_caching", switch=True),
    *ignores("--host --port --api-key -a --alias --chat-template --timeout -to --threads-http", _CLIENTS),
    *ignores("--jinja --no-webui", _CLIENTS, switch=True),
    *ignores("--seed -s --lora --mmproj -hff --hf-file", _LOADING),
    *ignores("--no-mmap --mlock", _LOADING, switch=True),
    *ignores("--log-file -lv --verbosity", _LOGS),
    *ignores("--metrics --slots --props -v --verbose", _LOGS, switch=True),
    *ignores("-ub --ubatch-size -t --threads -tb --threads-batch -fa --flash-attn -ctk --cache-type-k -ctv "
             "--cache-type-v -sm --split-mode -ts --tensor-split -mg --main-gpu", _KERNELS),
    *ignores("-ngl --gpu-layers --n-gpu-layers", "all layers are taken to be on the GPU"),
    *ignores("-n --predict --n-predict", "the workload says how long answers are"),
    *ignores("--context-shift --no-context-shift -cb --cont-batching -kvu --kv-unified", "slots batch continuously, "
             "share the memory equally and end when their context is full; nothing else is modelled", switch=True),
    *ignores("--cache-reuse --cache-ram -cram -md --model-draft --draft-max", "is not modelled"),
]  # fmt: skip
_SLOT_BLOCK = 16


def _llama_defaults(command: Command, model: ModelSpec, gpu: HardwareProfile) -> dict[str, Value]:
    """The context of all slots together as blocks of the memory."""
    context, flag = command.taken.pop("context", (0, ""))
    if not context:
        return {}
    return {
        "kv_cache.block_size": (_SLOT_BLOCK, "tokens; slots are counted in blocks here"),
        "kv_cache.num_blocks": (-(-context // _SLOT_BLOCK) + 1, f"{flag}: tokens of all slots, and the reserved block"),
    }


ENGINES: dict[str, EngineCommand] = {
    "vllm": EngineCommand("vLLM 0.33", "vllm-v1", ("vllm", "serve", "vllm.entrypoints.openai.api_server",
                          "vllm-openai"), _VLLM, _vllm_defaults),
    "sglang": EngineCommand("SGLang 0.5.23", "sglang", ("sglang", "serve", "sglang.launch_server"), _SGLANG,
                            _sglang_defaults),
    "trtllm": EngineCommand("TensorRT-LLM 1.x", "trtllm", ("trtllm-serve", "serve"), _TRTLLM, _trtllm_defaults),
    "llama-server": EngineCommand("llama.cpp server (fb40266)", "llama-server", ("llama-server", "llama.cpp"), _LLAMA,
                                  _llama_defaults),
}  # fmt: skip
