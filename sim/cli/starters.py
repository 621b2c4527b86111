"""The files that `servesim init` writes: an experiment, a study and a plan with comments, which run as they stand."""

from __future__ import annotations

EXPERIMENT = """\
# yaml-language-server: $schema=./servesim.experiment.schema.json
# Run it:      servesim run experiment.yaml --report
# Change it:   servesim run experiment.yaml --set cluster.pools.0.replicas=4 --set workload.arrivals.rate=8
# Every key:   servesim schema
# Every name:  servesim policies list, servesim models list, servesim profiles list

name: starter
seed: 1                         # the same seed gives the same bytes

workload:                       # who asks, when, and how much
  num_requests: 2000            # or duration: 600 (seconds)
  arrivals: {process: poisson, rate: 4.0}                                # requests per second
  prompt_tokens: {distribution: lognormal, mean: 900, p99: 6000, max: 8000}
  output_tokens: {distribution: lognormal, mean: 220, p99: 900, max: 1500}
# workload:                     # ... or replay a trace: CSV, JSONL, Parquet, gzipped or not; the format is detected
#   trace: my_trace.csv         # `servesim trace describe my_trace.csv` says what is in it
#   rate_scale: 1.5             # arrivals 1.5 times as dense

cluster:
  pools:
    - name: main
      replicas: 2               # copies of the model
      model: llama-3.1-8b       # or a path to a Hugging Face config.json
      gpu: h100-sxm
      tensor_parallel: 1        # GPUs a replica is cut over
      engine: vllm-v1           # fills what is not given below with that engine's defaults
      scheduler: {policy: fcfs, max_num_seqs: 256, max_num_batched_tokens: 8192}
      kv_cache: {prefix_caching: true, gpu_memory_utilization: 0.9}
  router: {policy: least_outstanding_requests}
  admission: {policy: always}

slo: {ttft: 1.0, tpot: 0.05, attainment: 0.99}   # seconds; 99 % of the requests must meet both

# Checked after the run: exit code 1 when one does not hold. Names are those of summary.json.
expect:
  - "num_finished == num_requests"
  - "slo_attainment >= 0.99"
"""

STUDY = """\
# yaml-language-server: $schema=./servesim.study.schema.json
# Run it:       servesim sweep study.yaml        (a row a run in out/starter-study/results.parquet)
# Go on:        servesim sweep study.yaml --resume
# Does the step's token budget trade time to first token against the gaps between tokens?

name: starter-study
base: experiment.yaml           # what is not varied

vary:                           # every combination; also `zip:` (together) and `sample:` (drawn)
  cluster.pools.0.scheduler.max_num_batched_tokens: [512, 8192]
  workload.arrivals.rate: [4.0, 12.0]
replications: 1                 # seeds seed, seed+1, ...: the same for every combination

columns:                        # more columns of the table, from names of summary.json
  output_tokens_per_gpu_second: "num_output_tokens / (3600 * cost.gpu_hours)"

# row(...) picks rows by their varied values, by the last part of the key.
expect:
  - "row(max_num_batched_tokens=512, rate=12.0).itl.p99 < row(max_num_batched_tokens=8192, rate=12.0).itl.p99"
"""

PLAN = """\
# yaml-language-server: $schema=./servesim.plan.schema.json
# Run it:       servesim plan plan.yaml
# Change it:    servesim plan plan.yaml --set slo.ttft=0.3
# What is the cheapest deployment that keeps the promise, and what stops the others?

name: starter-plan
seed: 1

workload:                       # as in an experiment, or `users: 5000` with `requests_per_user_hour: 6` and lengths
  num_requests: 1000
  arrivals: {process: poisson, rate: 12.0}
  prompt_tokens: {distribution: lognormal, mean: 900, p99: 6000, max: 8000}
  output_tokens: {distribution: lognormal, mean: 220, p99: 900, max: 1500}

slo: {ttft: 1.0, tpot: 0.05, attainment: 0.95}

candidates:                     # key paths below a pool; every combination is a candidate
  model: llama-3.1-8b
  gpu: [h100-sxm, l40s]
  scheduler.max_num_batched_tokens: [2048, 8192]

prices: {h100-sxm: 2.5, l40s: 1.0}   # USD per GPU hour; wins over the median quote of the profile
spare_replicas: 0               # 1: N+1, one replica on top that may fail
"""
