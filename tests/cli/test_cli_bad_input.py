"""Bad input of every kind, given to the command line as users give it: exit code 2, a message, nothing left behind."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sim.cli import main as cli

HEAD = "arrival_time,num_prompt_tokens,num_output_tokens\n"
POOL = "cluster.pools.0"
FILES: dict[str, str | bytes] = {
    "word.csv": HEAD + "0,10,5\n1,abc,5\n",
    "negative.csv": HEAD + "0,10,5\n1,-4,5\n",
    "empty.csv": "",
    "head.csv": HEAD,
    "junk.csv": "hello\nworld\n",
    "ids.jsonl": '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2, 3, 4]}\n',
    "cut.csv.gz": gzip.compress(HEAD.encode() + b"0,10,5\n" * 10_000)[:60],
    "fake.parquet": b"not parquet",
    "config.json": '{"model_type": "llama"}',
    "words.json": "no json at all",
    "gpu.yaml": "name: mine\n",
    "syntax.yaml": "name: a\n  b: [1\n",
    "twice.yaml": "name: a\nname: b\n",
    "list.yaml": "- a\n- b\n",
    "nothing.yaml": "",
    "binary.yaml": b"\xff\xfe\x00\x01",
    "a_file": "x",
}


@pytest.fixture(autouse=True)
def _among_bad_files(small_experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small_experiment.parent
    for name, content in FILES.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    (folder / "a_folder").mkdir()
    monkeypatch.chdir(folder)


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a command that cannot be carried out; checks the exit code, and that no files appear."""
    before = sorted(Path().rglob("*"))
    with pytest.raises(SystemExit) as left:
        cli.main(list(arguments))
    message = capsys.readouterr().err
    assert left.value.code == 2, message
    assert "Traceback" not in message
    assert len(message.splitlines()) <= 5
    assert sorted(Path().rglob("*")) == before
    return message


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ("{trace: nowhere.csv}", "nowhere.csv: no such file"),
        ("{trace: word.csv}", "word.csv:3: num_prompt_tokens: expected an integer >= 0, got 'abc'"),
        ("{trace: negative.csv}", "negative.csv:3: num_prompt_tokens: expected an integer >= 0, got '-4'"),
        ("{trace: empty.csv}", "empty.csv: is empty"),
        ("{trace: head.csv}", "head.csv: holds no requests"),
        ("{trace: junk.csv}", "junk.csv: format not recognised"),
        ("{trace: a_folder}", "a_folder: format not recognised"),
        ("{trace: fake.parquet}", "fake.parquet: format not recognised"),
        ("{trace: cut.csv.gz}", "cut.csv.gz: broken gzip file"),
        ("{trace: ids.jsonl}", "ids.jsonl:1: hash_ids: expected ceil(input_length / hash_block_size)"),
        ("{trace: ids.jsonl, hash_block_size: 100}", "hash_block_size: 256 would fit this row"),
        ("{trace: word.csv, format: azzure}", "did you mean 'azure'?"),
        ("{trace: word.csv, limit: 0}", "workload.limit: must be >= 1 (got 0)"),
        ("{trace: word.csv, rate_scale: 0}", "workload.rate_scale: must be > 0"),
        ("{trace: word.csv, start: 5, end: 2}", "end 2 must be after start 5"),
        ("{trace: word.csv, num_request: 5}", "did you mean 'num_requests'?"),
    ],
)
def test_a_trace_that_cannot_be_used(trace: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refuse(capsys, "run", "small.yaml", "--set", f"workload={trace}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("num_requests=0", "workload.num_requests: must be >= 1 (got 0)"),
        ("num_requests=1.5", "must be a whole number (got 1.5)"),
        ("duration=10", "need either num_requests or duration"),
        ("arrivals.rate=-1", "workload.arrivals.rate: must be > 0"),
        ("arrivals.rate=fast", "workload.arrivals.rate: must be a number (got 'fast')"),
        ("arrivals.rate=.nan", "workload.arrivals.rate: must be"),
        ("arrivals.process=poison", "did you mean 'poisson'?"),
        ("prompt_tokens={distribution: lognormal, mean: 100}", "lognormal takes two of mean, cv, sigma"),
        ("prompt_tokens={distribution: lognorml, mean: 100, cv: 1}", "did you mean 'lognormal'?"),
        ("prompt_tokens={distribution: uniform, min: 10, max: 2}", "min 10 is above max 2"),
        ("output_tokens={distribution: empirical}", "empirical takes either values"),
    ],
)
def test_a_generated_workload_that_cannot_be_made(change: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refuse(capsys, "run", "small.yaml", "--set", f"workload.{change}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model=lama-3.1-8b", "did you mean 'llama-3.1-8b'?"),
        ("model=nowhere.json", "nowhere.json: no such file"),
        ("model=config.json", "config.json: missing num_hidden_layers"),
        ("model=words.json", "words.json"),
        ("model=llama-3.1-405b", "does not fit on 1 x h100-sxm"),
        ("gpu=h100-smx", "did you mean 'h100-sxm'?"),
        ("gpu=gpu.yaml", "gpu.yaml: key 'facts' must be a mapping"),
        ("tensor_parallel=3", "tensor_parallel 3 does not divide its 32 heads; allowed: 1, 2, 4"),
        ("tensor_parallel=0", "tensor_parallel: must be >= 1 (got 0)"),
        ("max_model_len=0", "max_model_len: must be >= 1 (got 0)"),
        ("replicas=two", "replicas: must be a whole number (got 'two')"),
        ("role=prefil", "did you mean 'prefill'?"),
        ("engine=vlm-v1", "did you mean 'vllm-v1'?"),
        ("scheduler.policy=fcsf", "did you mean 'fcfs'?"),
        ("scheduler.max_num_batched_tokens=10", "must not be below max_num_seqs (256)"),
        ("scheduler.watermark=2", "scheduler.watermark: must be < 1"),
        ("scheduler.async_scheduling=maybe", "must be true or false (got 'maybe')"),
        ("scheduler.max_seqs=10", "max_seqs: is not a parameter of 'fcfs'"),
        ("kv_cache.allocator=pagd", "did you mean 'paged'?"),
        ("kv_cache.block_size=0", "block_size: must be >= 1 (got 0)"),
        ("kv_cache.num_blocks=1", "num_blocks: must be >= 2 (got 1)"),
        ("kv_cache.gpu_memory_utilization=1.5", "must be <= 1.0 (got 1.5)"),
        ("kv_cache.gpu_memory_utilization=0.05", "does not fit on 1 x h100-sxm"),
        ("preemption.mode=swop", "did you mean 'swap'?"),
        ("preemption.victim=newst", "did you mean 'newest'?"),
        ("cost_model.kind=rofline", "did you mean 'roofline'?"),
        ("cost_model={kind: constant, per_prefil_token: 1}", "did you mean 'per_prefill_token'?"),
        ("cost_model={kind: roofline, step_overhead: x}", "step_overhead must be a number (got 'x')"),
    ],
)
def test_a_pool_that_cannot_be_built(change: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refuse(capsys, "run", "small.yaml", "--set", f"{POOL}.{change}")
    assert words in message
    assert POOL in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("cluster.router.policy=round_robbin", "did you mean 'round_robin'?"),
        ("cluster.router={policy: round_robin, speed: 3}", "speed: is not a parameter of 'round_robin'"),
        ("cluster.router={policy: 'nowhere:Class'}", "module 'nowhere' cannot be imported"),
        ("cluster.router={policy: 'math:Nope'}", "'math' has no class 'Nope'"),
        ("cluster.admission={policy: queue_limit, max_outstanding: many}", "max_outstanding: must be a valid integer"),
        ("cluster.autoscaler.policy=nothing_such", "unknown autoscaler 'nothing_such'"),
        ("cluster.disaggregation.policy=nothing_such", "unknown disaggregation 'nothing_such'"),
        ("cluster.pools.0.replicas=0", "no pool has any replicas"),
        ("cluster={}", "cluster.pools: is required"),
        ("cluster.pools=[]", "cluster.pools: must not be empty"),
        ("cluster.pools.7.replicas=2", "cluster.pools has 1 item(s), numbered from 0; there is no item 7"),
        ("cluster.pools.main.replicas=2", "is a list; give the number of an item"),
        ("cluster.pools.0.replicas.x=3", "cluster.pools.0.replicas is a single value (2)"),
        ("slo={ttft: 1 parsec}", "is not a duration; allowed: seconds as a number, or a number with one of ns, us"),
        ("slo={tttf: 1}", "did you mean 'ttft'?"),
        ("slo={ttft: {p101: 1}}", "has no statistic 'p101'; allowed: mean, max, and percentiles"),
        ("slo={ttft: 1, attainment: 2}", "slo.attainment: must be <= 1.0 (got 2)"),
        ("client.base_latency=-1", "client.base_latency: must be >= 0"),
        ("client.timeout=0", "client.timeout: must be > 0 (got 0)"),
        ("metrics.warmup_requests=-1", "metrics.warmup_requests: must be >= 0 (got -1)"),
        ("output.timeline_interval=0", "output.timeline_interval: must be > 0 (got 0)"),
        ("expect=['ttft.p99 <']", "is not an expression"),
        ("expect=['open(1)']", "is not allowed here"),
        ("seed=-1", "seed: must be >= 0 (got -1)"),
        ("name=../evil", "name: does not match"),
        ("nmae=x", "did you mean 'name'?"),
        ("no_value", "must be key.path=value"),
        ("=3", "must be key.path=value"),
    ],
)
def test_a_value_that_cannot_be_set(change: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refuse(capsys, "run", "small.yaml", "--set", change)
    assert words in message
    assert message.startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run nowhere.yaml", "nowhere.yaml: no such file"),
        ("run smal.yaml", "did you mean 'small.yaml'?"),
        ("run a_folder", "a_folder: cannot be read (Is a directory)"),
        ("run syntax.yaml", "syntax.yaml:2:4: is not valid YAML"),
        ("run twice.yaml", "twice.yaml:2:1: key 'name' is given twice (first in line 1)"),
        ("run list.yaml", "list.yaml: must be a mapping"),
        ("run nothing.yaml", "nothing.yaml: must be a mapping"),
        ("run binary.yaml", "binary.yaml: is not a text file in UTF-8"),
        ("run small.yaml --out a_file", "a_file: is a file; --out names a folder"),
        ("run small.yaml --out a_file/x", "a_file/x: cannot be written"),
        ("run small.yaml --seed x", "Invalid value for '--seed'"),
        ("run small.yaml --stepbystep", "--step-by-step"),
        ("run", "Missing argument"),
        ("runn small.yaml", "Did you mean 'run'?"),
        ("report a_folder", "is not the output directory of a run"),
        ("report nowhere", "is not the output directory of a run"),
        ("trace describe nowhere.csv", "nowhere.csv: no such file"),
        ("trace describe junk.csv", "junk.csv: format not recognised"),
        ("trace check word.csv", "word.csv:3: num_prompt_tokens: expected an integer >= 0, got 'abc'"),
        ("trace convert negative.csv out.csv", "negative.csv:3: num_prompt_tokens"),
        ("trace synthesize head.csv --out out.csv", "head.csv"),
        ("policies show round_robbin", "did you mean 'round_robin'?"),
        ("policies list routers", "did you mean 'router'?"),
        ("models show lama-3.1-8b", "did you mean 'llama-3.1-8b'?"),
        ("models import config.json", "config.json: missing num_hidden_layers"),
        ("profiles show h100-smx", "did you mean 'h100-sxm'?"),
        ("schema experimnt", "'experiment'"),
        ("init a_file", "a_file: is a file"),
    ],
)
def test_an_argument_that_cannot_be_used(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refuse(capsys, *arguments.split())


def test_all_wrong_keys_of_a_file_are_named_at_once_with_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.yaml").write_text(
        "workload:\n  num_requests: many\n  arrivals: {process: poisson, rate: 1}\n"
        "cluster:\n  pools:\n    - {model: llama-3.1-8b, gpuu: h100-sxm, replicas: 0.5}\n"
    )
    message = refuse(capsys, "run", "wrong.yaml")
    for words in (
        "wrong.yaml:2:3: workload.num_requests: must be a whole number (got 'many')",
        "wrong.yaml:6:29: cluster.pools.0.gpuu: is not a known key",
        "cluster.pools.0.gpu: is required",
        "cluster.pools.0.replicas: must be a whole number (got 0.5)",
    ):
        assert words in message


def test_a_policy_that_breaks_its_rules_ends_the_run_with_its_name_and_the_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rogue.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Rogue:\n"
        "    def route(self, request, cluster, now):\n        return 99\n"
    )
    monkeypatch.syspath_prepend(str(Path().absolute()))
    with pytest.raises(SystemExit) as left:
        cli.main(["run", "small.yaml", "--set", "cluster.router={policy: 'rogue:Rogue'}"])
    message = capsys.readouterr().err
    assert left.value.code == 1
    assert "Rogue sent request 0 at " in message
    assert "to replica 99 of 2" in message
    assert not Path("out").exists()
