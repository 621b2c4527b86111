"""The experiment file: its models, defaults, presets and `--set`, and how the resolved configuration is written back.

`load_experiment` reads YAML, applies `--set`, fills every pool from its engine preset, validates, and reports all
problems at once, each with file, line and column. Paths are absolute afterwards, so `dump_yaml` gives a file that runs
from anywhere with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from sim import expressions, yamlfile
from sim.config_errors import Source, explain
from sim.config_paths import absolute_paths
from sim.config_sets import Setting, apply_setting, parse_setting
from sim.errors import InputError
from sim.presets import fill_from_preset
from sim.speculation import acceptance_chances
from sim.workload.config import WorkloadConfig
from sim.yamlfile import YamlFile

_DURATION = re.compile(r"^\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Zµ]*)\s*$")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
MIN_SNAPSHOT_INTERVAL = 0.001  # seconds: each costs a look at every replica
_STATISTIC = re.compile(r"^(mean|max|p([0-9]{1,2}(\.[0-9]+)?|100))$")


def parse_duration(value: Any) -> Any:
    """Seconds of a text such as `300ms`; a number is seconds already. `ValueError` names the known units."""
    if not isinstance(value, str):
        return value
    match = _DURATION.match(value)
    if match is None or match[2] not in _SECONDS:
        raise ValueError(
            f"is not a duration; allowed: seconds as a number, or a number with one of {', '.join(_SECONDS)}"
        )
    return float(match[1]) * _SECONDS[match[2]]


def _target(value: Any) -> Any:
    """One SLO target: seconds, or seconds by percentile."""
    if not isinstance(value, dict):
        return parse_duration(value)
    for key in value:
        if not (isinstance(key, str) and _STATISTIC.match(key)):
            raise ValueError(f"has no statistic '{key}'; allowed: mean, max, and percentiles such as p99 or p99.9")
    return {key: parse_duration(seconds) for key, seconds in value.items()}


def _expression(text: str) -> str:
    try:
        expressions.check(text)
    except InputError as error:
        raise ValueError(str(error)) from None
    return text


Expression = Annotated[str, AfterValidator(_expression)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0)]
PositiveSeconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
Target = Annotated[PositiveSeconds | dict[str, PositiveSeconds], BeforeValidator(_target)]


M = TypeVar("M", bound=BaseModel)


class Model(BaseModel):
    """Base of all sections: no unknown keys, no silent conversions, no NaN, unchangeable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


class Slot(Model):
    """A section that names a policy and carries the policy's own fields beside it.

    `name_key` is the field that holds the name; a plain string in place of the section means `{name_key: string}`. The
    fields of the policy are checked when it is built, against its dataclass.
    """

    model_config = ConfigDict(extra="allow")
    name_key: ClassVar[str] = "policy"

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {cls.name_key: value} if isinstance(value, str) else value

    @property
    def params(self) -> dict[str, Any]:
        """The policy's own fields: every key that this section does not define."""
        return dict(self.model_extra or {})


class PolicySlot(Slot):
    """`{policy: NAME, ...its fields}`; NAME is a known name or `module:Class`."""

    policy: str


class SchedulerConfig(Slot):
    """The scheduler of a replica and the budgets of its batches."""

    policy: str = "fcfs"
    max_num_seqs: int = Field(default=256, ge=1, description="most sequences in a batch")
    max_num_batched_tokens: int = Field(default=8192, ge=1, description="most tokens in a batch, prefill and decode")
    async_scheduling: bool = Field(default=True, description="schedule step n+1 while step n runs")
    enable_chunked_prefill: bool = Field(
        default=True, description="a prompt may be cut to what the token budget leaves"
    )
    long_prefill_token_threshold: int = Field(default=0, ge=0, description="longest prefill chunk, tokens; 0: no limit")
    scheduler_reserve_full_isl: bool = Field(default=True, description="admit only when all known tokens would fit")
    watermark: float = Field(default=0.0, ge=0, lt=1, description="share of blocks kept free at admission")

    @model_validator(mode="after")
    def _budgets_fit(self) -> SchedulerConfig:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be below "
                f"max_num_seqs ({self.max_num_seqs}): every running sequence needs a token"
            )
        return self


class KvCacheConfig(Slot):
    """The KV cache of a replica. Its other keys are fields of the allocator."""

    name_key: ClassVar[str] = "allocator"

    allocator: str = "paged"
    block_size: int = Field(default=16, ge=1, description="tokens a block")
    prefix_caching: bool = True
    warm_start: str | None = Field(default=None, description="path of a cache_state.json; null: starts empty")
    isolation: Literal["none", "tenant"] = Field(default="none", description="tenant: tenants share no cached prefixes")
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1, description="share of GPU memory for the engine")
    num_blocks: int | None = Field(default=None, ge=2, description="null block included; null: from GPU memory")
    dtype: Literal["bf16", "fp16", "fp8", "int8"] | None = Field(
        default=None, description="type of keys and values; null: that of the model's activations"
    )
    memory_of: str = Field(default="vllm-0.15", description="engine version whose own memory is left out: vllm-0.19")


class PreemptionConfig(Slot):
    """What happens when blocks run out. Its other keys are fields of the victim policy."""

    name_key: ClassVar[str] = "victim"

    mode: Literal["recompute", "swap", "auto"] = Field(
        default="recompute", description="auto: whichever of the two costs less time, victim by victim"
    )
    victim: str = "newest"
    swap_space: float = Field(default=4.0, ge=0, description="GiB of host memory a GPU, for swapping")
    host_bandwidth: float | None = Field(
        default=None,
        gt=0,
        description="bytes per second a GPU, of a link of its own; null: the node's PCIe, which transfers share",
    )


class CostModelConfig(Slot):
    """How long a step takes. Its other keys are parameters of the cost model.

    `auto` takes `fitted` where the GPU has a fitted profile and `roofline` (with a warning in the summary) where not.
    """

    name_key: ClassVar[str] = "kind"

    kind: str = "auto"


class SpeculationConfig(Model):
    """Speculative decoding of a pool. The number of accepted drafts is drawn by seed, request and output token."""

    method: Literal["eagle", "eagle_drop", "draft_model", "ngram"] = Field(
        description="eagle: also MTP; eagle_drop: as in older engines, the last block of a prefix hit is recomputed"
    )
    num_speculative_tokens: int = Field(ge=1, le=64, description="drafts of a step")
    acceptance: float | list[float] = Field(
        description="chance that a draft is accepted if those before it were: one for all, or one a draft"
    )
    draft_model: str | None = Field(default=None, description="the drafter of method draft_model, as in `model`")
    draft_cost_ratio: float | None = Field(
        default=None, ge=0, description="seconds of a draft pass as a share of a decode step; null: from the cost model"
    )

    @model_validator(mode="after")
    def _fits_method(self) -> SpeculationConfig:
        try:
            acceptance_chances(self.acceptance, self.num_speculative_tokens)
        except InputError as error:
            raise ValueError(str(error)) from None
        if self.draft_model is not None and self.method != "draft_model":
            raise ValueError(f"draft_model goes with method draft_model, not with {self.method}")
        if self.method == "draft_model" and self.draft_model is None and self.draft_cost_ratio is None:
            raise ValueError("method draft_model needs draft_model or draft_cost_ratio")
        return self


class PoolConfig(Model):
    """Replicas of one role: copies of one model on one kind of GPU with one engine configuration."""

    name: str = Field(default="main", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    role: Literal["mixed", "prefill", "decode"] = "mixed"
    replicas: int = Field(default=1, ge=0, description="model copies; GPUs each: tensor x pipeline x data parallel")
    model: str = Field(description="a name of `servesim models list`, an HF id, or a path to an HF config.json")
    gpu: str = Field(description="a name of `servesim profiles list`, or a path to a profile")
    tensor_parallel: int = Field(default=1, ge=1)
    pipeline_parallel: int = Field(default=1, ge=1)
    data_parallel: int = Field(default=1, ge=1, description="attention ranks of a replica, which share its experts")
    expert_parallel: bool = Field(default=False, description="whole experts a GPU instead of a slice of each")
    max_model_len: int | None = Field(default=None, ge=1, description="tokens; null: the model's own maximum")
    engine: str | None = Field(default="vllm-v1", description="preset that fills what is not given below")
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    kv_cache: KvCacheConfig = Field(default_factory=KvCacheConfig)
    preemption: PreemptionConfig = Field(default_factory=PreemptionConfig)
    speculation: SpeculationConfig | None = Field(default=None, description="speculative decoding; null: none")
    cost_model: CostModelConfig = Field(default_factory=CostModelConfig)

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel


def _slot(name: str) -> Any:
    return Field(default_factory=lambda: PolicySlot(policy=name))


class RackUplinkConfig(Model):
    """The links between racks: one for every network adapter below, divided by the oversubscription."""

    link: str | None = Field(
        default=None, description="a name of `servesim profiles list`; null: the link of the nodes"
    )
    oversubscription: float = Field(default=1.0, gt=0, description="bytes/s of the adapters below over the uplink's")


class NetworkConfig(Model):
    """Nodes and the links between them, or (bandwidth, latency) one link of a given speed out of every replica."""

    node: str | None = Field(default=None, description="a name of `servesim profiles list`; null: by the GPU")
    num_nodes: int | None = Field(default=None, ge=1, le=100_000, description="of each GPU type; null: as needed")
    gpus_per_node: int | None = Field(default=None, ge=1, description="null: as the node has")
    nics_per_node: int | None = Field(default=None, ge=1, description="network adapters; null: as the node has")
    nodes_per_rack: int | None = Field(default=None, ge=1, description="null: all in one rack")
    link: str | None = Field(default=None, description="of each network adapter; null: the node's")
    rack_uplink: RackUplinkConfig | None = Field(default=None, description="null: racks do not limit anything")
    bandwidth: float | None = Field(default=None, gt=0, description="bytes per second that transfers reach")
    latency: Seconds = Field(default=0.0, description="before the first byte, with bandwidth")

    @model_validator(mode="after")
    def _one_form(self) -> NetworkConfig:
        if self.bandwidth is None and self.latency:
            raise ValueError("latency goes with bandwidth; the latency of a link stands in its profile")
        if self.bandwidth is not None and (self.link or self.rack_uplink):
            raise ValueError("bandwidth stands for every link between replicas: link and rack_uplink must not be given")
        if self.rack_uplink is not None and self.nodes_per_rack is None:
            raise ValueError("rack_uplink needs nodes_per_rack")
        return self


class KvTransferConfig(Model):
    """How the KV of a prompt moves from the replica that computed it to the one that decodes."""

    mode: Literal["pull", "push"] = Field(
        default="pull", description="push: the decode side reserves blocks before the prompt is computed"
    )
    granularity: Literal["whole", "chunk", "layer"] = Field(
        default="whole", description="what is sent at once; chunk and layer overlap with the prefill (push only)"
    )
    dtype: str | None = Field(default=None, description="of the KV on its way, such as fp8; null: as in the cache")
    blocking: bool = Field(
        default=False, description="decode replicas compute nothing while KV is on its way to them (pull; DistServe)"
    )
    max_inflight_tokens: int | None = Field(
        default=None,
        ge=1,
        description="tokens of prompts accepted and not running, from which on no more are",
    )
    reserved_tokens_per_sequence: int = Field(
        default=0, ge=0, description="tokens that a decode replica keeps free for each of its sequences (SGLang: 512)"
    )
    failure_rate: float = Field(default=0.0, ge=0, le=1, description="chance that an attempt is lost")
    retries: int = Field(default=0, ge=0, description="attempts after the first")
    on_failure: Literal["recompute", "fail"] = Field(
        default="recompute", description="recompute: the decode replica computes the prompt itself"
    )

    @model_validator(mode="after")
    def _overlap_is_pushed(self) -> KvTransferConfig:
        if self.mode == "pull" and self.granularity != "whole":
            raise ValueError(
                f"granularity {self.granularity} needs mode push: what is pulled is pulled when the prompt is computed"
            )
        if self.mode == "push" and self.blocking:
            raise ValueError("blocking needs mode pull: what is pushed arrives beside the steps")
        return self


class RouterSlot(PolicySlot):
    """The router, how old its picture of the replicas is, and its log. Its other keys are fields of the policy."""

    policy: str = "least_outstanding_requests"
    snapshot_interval: Seconds = Field(default=0.0, description="seconds between two looks at the loads; 0: live")
    count_sent: bool = Field(default=False, description="the router adds to a snapshot what it has sent since")
    event_delay: Seconds = Field(default=0.0, description="seconds until a router hears what a replica caches")
    log: bool = Field(default=False, description="routing.parquet: every decision, with the scores compared")

    @model_validator(mode="after")
    def _interval_is_sane(self) -> RouterSlot:
        if 0 < self.snapshot_interval < MIN_SNAPSHOT_INTERVAL:
            raise ValueError(
                f"snapshot_interval {self.snapshot_interval:g} s is too short; allowed: 0 (live) or at least "
                f"{MIN_SNAPSHOT_INTERVAL:g} s"
            )
        return self


class DisaggregationConfig(PolicySlot):
    """Which requests are split between a prefill and a decode pool, and how their KV moves."""

    first_token: Literal["prefill", "decode"] = Field(
        default="prefill", description="which side emits it; decode: it computes the last prompt token again (vLLM)"
    )
    kv_transfer: KvTransferConfig = Field(default_factory=KvTransferConfig)


class ClusterConfig(Model):
    """The pools and what decides between them."""

    pools: list[PoolConfig] = Field(min_length=1)
    router: RouterSlot = Field(default_factory=RouterSlot)
    admission: PolicySlot = _slot("always")
    autoscaler: PolicySlot = _slot("fixed")
    disaggregation: DisaggregationConfig = Field(default_factory=lambda: DisaggregationConfig(policy="colocated"))
    length_predictor: PolicySlot = _slot("none")
    placement: PolicySlot = _slot("pack")
    network: NetworkConfig | None = Field(default=None, description="null: nodes as the GPUs usually come")

    @model_validator(mode="after")
    def _pools_fit(self) -> ClusterConfig:
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two pools are named '{twice[0]}'; every pool needs a name of its own")
        other = sorted({pool.role for pool in self.pools if pool.replicas} - {"mixed"})
        if other and self.disaggregation.policy == "colocated":
            raise ValueError(
                f"pools of role {' and '.join(other)} need a disaggregation policy that splits requests; allowed with "
                "policy colocated: mixed"
            )
        return self


class SloTargets(Model):
    """Targets in seconds: of each request, or of a statistic over all of them, as in `{ttft: {p99: 1.0}}`.

    A plain `itl` holds for every gap of a request, `itl: {p99: ...}` for the gaps pooled over requests.
    """

    ttft: Target | None = None
    tpot: Target | None = None
    itl: Target | None = None
    e2e: Target | None = None
    attainment: float | None = Field(default=None, gt=0, le=1, description="share of requests that must meet them")


class SloConfig(SloTargets):
    """Targets of all requests, and of request classes that have their own (these replace the general ones).

    A list `[{request_class: chat, ttft: 1.0}, {ttft: 5.0}]` is read as classes; its item without a class is general.
    """

    classes: dict[str, SloTargets] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return slo_by_class(value)


def slo_by_class(value: Any) -> Any:
    """The list form of an SLO as the mapping form; anything else unchanged. `ValueError` for a class named twice."""
    if not isinstance(value, list):
        return value
    general: dict[str, Any] = {}
    classes: dict[str, Any] = {}
    for item in value:
        if not isinstance(item, dict):
            raise ValueError("must be a list of mappings such as {request_class: chat, ttft: 1.0}")
        name = item.get("request_class")
        if str(name) in classes or (name is None and general):
            raise ValueError(f"has two entries for {'all classes' if name is None else f'class {name!r}'}")
        target = general if name is None else classes.setdefault(str(name), {})
        target.update({key: entry for key, entry in item.items() if key != "request_class"})
    return {**general, "classes": classes}


class ClientConfig(Model):
    """Seconds between server and client, added to first token and finish as a client sees them; its patience."""

    base_latency: Seconds = 0.0
    latency_per_running_sequence: Seconds = 0.0
    timeout: PositiveSeconds | None = Field(default=None, description="a client gives up after so long; null: never")


class MetricsConfig(Model):
    """What is left out of every statistic (and kept in requests.parquet)."""

    warmup: Literal["auto"] | None = Field(
        default=None, description="auto: as many requests as MSER-5 finds in ttft and tpot; adds to what is given below"
    )
    warmup_requests: int = Field(default=0, ge=0)
    warmup_duration: Seconds = 0.0


class OutputConfig(Model):
    """What is written besides summary, requests and configuration; the flags of `servesim run` add to it."""

    report: bool = Field(default=False, description="report.html, like --report")
    timeline: bool = Field(default=False, description="timeline.parquet, like --timeline")
    steps: bool = Field(default=False, description="steps.parquet, like --step-log")
    cache_state: bool = Field(default=False, description="cache_state.json: what is cached at the end, for warm starts")
    timeline_interval: PositiveSeconds = Field(default=1.0, description="simulated seconds between samples")


class CostConfig(Model):
    """What running the cluster costs besides GPU hours."""

    carbon_intensity: float | None = Field(
        default=None, ge=0, description="kg of CO2 equivalent a kWh of the grid; null: carbon is not counted"
    )


class ExperimentConfig(Model):
    """One experiment: a workload, a cluster, what is promised and what is expected."""

    name: str = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
    seed: int = Field(default=1, ge=0)
    workload: WorkloadConfig
    cluster: ClusterConfig
    slo: SloConfig | None = None
    client: ClientConfig = Field(default_factory=ClientConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    cost: CostConfig = Field(default_factory=CostConfig)
    output: OutputConfig = Field(default_factory=OutputConfig)
    expect: list[Expression] = Field(default_factory=list, description="expressions checked after the run")

    _source: Source = PrivateAttr(default_factory=Source)
    _base_dir: Path = PrivateAttr(default_factory=Path)

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths are relative to (the experiment file's)."""
        return self._base_dir

    def where(self, key_path: str) -> str:
        """`file:line:col: key_path` for an error about that key; `key_path` as in `cluster.pools.0.scheduler`."""
        parts = tuple(int(part) if part.isdigit() else part for part in key_path.split("."))
        return f"{self._source.position(parts)}: {key_path}"


def load_experiment(path: Path, sets: Sequence[str] = (), seed: int | None = None) -> ExperimentConfig:
    """Read an experiment file, apply `--set` texts and `--seed`, resolve and validate. Raises `InputError`."""
    file = yamlfile.read(path)
    settings = [parse_setting(text) for text in sets]
    if seed is not None:
        settings.append(Setting(f"--seed {seed}", ("seed",), seed))
    return resolve(file, path.resolve().parent, settings, default_name=path.stem)


def experiment_from_values(
    values: dict[str, Any], base_dir: Path, shown_as: str = "experiment", settings: Sequence[Setting] = ()
) -> ExperimentConfig:
    """The same from values that are already in memory; `shown_as` stands where a file name would in messages."""
    return resolve(YamlFile(shown_as, values, {}), base_dir.resolve(), settings)


def resolve(
    file: YamlFile, base_dir: Path, settings: Sequence[Setting] = (), default_name: str = "experiment"
) -> ExperimentConfig:
    """Values of a file to a validated configuration: paths, settings, presets, then all errors at once."""
    if not isinstance(file.values, dict):
        raise InputError(
            f"{file.name}: must be a mapping with the keys workload and cluster (got {_kind(file.values)})"
        )
    values = absolute_paths(file.values, base_dir)
    for setting in settings:
        apply_setting(values, setting)
    values.setdefault("name", re.sub(r"[^A-Za-z0-9._+-]+", "-", default_name).strip("-._+") or "experiment")
    source = Source(file, tuple(settings))
    _fill_pools(values, source)
    _unfold_slo(values, source)
    config = validate(ExperimentConfig, values, source)
    config._source = source
    config._base_dir = base_dir
    return config


def validate(model: type[M], values: Any, source: Source) -> M:
    """Validate values; one `InputError` with a line for every problem."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError("\n".join(explain(error, model, values, source))) from None


def resolved(config: ExperimentConfig) -> dict[str, Any]:
    """The configuration as plain values, every default filled in."""
    values = config.model_dump(mode="json")
    # A workload has keys that belong to one of its forms and are errors in another: only those that were given.
    values["workload"] = config.workload.model_dump(mode="json", exclude_unset=True)
    return values


def dump_yaml(config: ExperimentConfig) -> str:
    """The text of config.yaml: loading it gives an equal configuration, and dumping that gives the same bytes."""
    return yamlfile.dump(resolved(config))


def _fill_pools(values: dict[str, Any], source: Source) -> None:
    cluster = values.get("cluster")
    pools = cluster.get("pools") if isinstance(cluster, dict) else None
    for index, pool in enumerate(pools if isinstance(pools, list) else []):
        if isinstance(pool, dict):
            where = f"{source.position(('cluster', 'pools', index, 'engine'))}: cluster.pools.{index}.engine"
            fill_from_preset(pool, PoolConfig, where)


def _unfold_slo(values: dict[str, Any], source: Source) -> None:
    if "slo" in values:
        try:
            values["slo"] = slo_by_class(values["slo"])
        except ValueError as error:
            raise InputError(f"{source.position(('slo',))}: slo: {error}") from None


def _kind(value: Any) -> str:
    return "an empty file" if value is None else f"a {type(value).__name__}"
