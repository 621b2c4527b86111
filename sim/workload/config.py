"""The `workload:` mapping of an experiment: a trace, statistics of a trace, or a generated stream of requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sim.workload.arrivals import Arrivals, ClosedLoopArrivals, Stages
from sim.workload.distributions import Distribution, Fixed

if TYPE_CHECKING:
    from sim.seeds import Seeds
    from sim.workload.base import Workload

PATH_KEYS = ("trace", "statistics")  # keys whose values are paths, relative to the file that holds the mapping


class Factor(BaseModel):
    """Declared maximum as a multiple of the true length, rounded up."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
    factor: float = Field(ge=1)


class Cancellation(BaseModel):
    """A share of requests whose client gives up `after` seconds from arrival."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
    fraction: float = Field(default=1.0, ge=0, le=1)
    after: Distribution


class Prefix(BaseModel):
    """Shared prefixes: each request begins with the tokens of one of `groups` groups, before its own prompt."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
    groups: int = Field(default=1, ge=1)
    tokens: int = Field(ge=1, description="of the shared prefix, added to prompt_tokens")
    zipf: float = Field(default=0.0, ge=0, description="popularity of group k: 1 / k^zipf")


class Sessions(BaseModel):
    """Conversations: each prompt is the whole conversation so far and `prompt_tokens` new ones."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
    turns: Distribution
    think_time: Distribution = Field(description="seconds from the end of an answer to the next turn")


def _at_least_one_token(lengths: Any) -> Any:
    if isinstance(lengths, Fixed) and lengths.value < 1:
        raise ValueError(f"must be at least 1 token (got {lengths.value:g})")
    return lengths


# Lengths of prompts and answers: an engine knows none without a token.
Tokens = Annotated[Distribution, AfterValidator(_at_least_one_token)]


class Component(BaseModel):
    """One kind of request in a mix; what is not given comes from the workload."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
    weight: float = Field(default=1.0, gt=0)
    tenant: str | None = None
    request_class: str | None = None
    adapter: str | None = None
    model: str | None = None
    priority: int | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None


def _number_as_after(value: Any) -> Any:
    is_after = isinstance(value, int | float) or (isinstance(value, dict) and "distribution" in value)
    return {"after": value} if is_after and not isinstance(value, bool) else value


Weights = Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1)]


class WorkloadConfig(BaseModel):
    """Where requests come from. Exactly one of: `trace`, `statistics`, or `arrivals` with both lengths.

    A trace with `arrivals` keeps its lengths, in row order, and takes its times from the process.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    trace: str | None = Field(default=None, description="path of a trace (formats: traces/README.md)")
    format: str = Field(default="auto", description="trace format; auto: by content")
    limit: int | None = Field(default=None, ge=1, description="first N requests of the trace")
    start: float | None = Field(default=None, ge=0, description="seconds of the trace, from its first row")
    end: float | None = Field(default=None, gt=0, description="seconds of the trace, from its first row")
    hash_block_size: int | None = Field(
        default=None, ge=1, description="tokens per id of hash_ids; null: 512 in Mooncake files"
    )
    rate_scale: float = Field(default=1.0, gt=0, description="2.0: arrivals twice as dense")
    spread_ties: float | None = Field(default=None, gt=0, description="seconds over which equal stamps are spread")
    failed_rows: Literal["drop", "keep_as_one", "error"] = Field(
        default="drop", description="rows without prompt or output tokens: left out, kept with one token, or refused"
    )
    repeat: int = Field(default=1, ge=1, description="the trace so many times in a row; copies share no prefixes")
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = "auto"
    chars_per_token: float = Field(default=4.0, gt=0, description="for traces that hold text")
    columns: dict[str, str] = Field(default_factory=dict, description="our column -> its name in the file")
    where: dict[str, str] = Field(default_factory=dict, description="column -> value: only these rows of a CSV")
    session_prompts: Literal["auto", "new_tokens", "full"] = Field(
        default="auto",
        description="prompt lengths of later turns: only what the turn adds, or the whole context (taken to contain "
        "the turn before); auto: new_tokens where the format says so",
    )

    statistics: str | None = Field(default=None, description="path of a JSON file made by `servesim trace synthesize`")

    num_requests: int | None = Field(default=None, ge=1)
    duration: float | None = Field(default=None, gt=0, description="seconds of arrivals")
    arrivals: Arrivals | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    prefix: Prefix | None = None
    sessions: Sessions | None = None

    tenants: Weights | None = Field(default=None, description="name -> weight, drawn for each request")
    classes: Weights | None = Field(default=None, description="request class -> weight")
    adapters: Weights | None = Field(default=None, description="adapter -> weight")
    priorities: dict[int, Annotated[float, Field(gt=0)]] | None = Field(
        default=None, min_length=1, description="priority (smaller is more important) -> weight"
    )
    mix: list[Component] | None = Field(default=None, min_length=1)
    max_output_tokens: int | Factor | Distribution | None = Field(
        default=None, description="what the client declares; null: the true length (or what the trace says)"
    )
    samples: int = Field(default=1, ge=1, le=256, description="answers to each prompt, each a request of its own")
    cancel_after: Annotated[Cancellation | None, BeforeValidator(_number_as_after)] = Field(
        default=None, description="seconds from arrival: a number, a distribution, or {fraction, after}"
    )

    @model_validator(mode="after")
    def _one_form(self) -> WorkloadConfig:
        forms = [name for name in ("trace", "statistics") if getattr(self, name) is not None]
        if len(forms) == 2:
            raise ValueError("takes trace or statistics, not both")
        if not forms:
            self._check_generated()
        else:
            self._check_given(forms[0])
        if self.end is not None and self.start is not None and self.end <= self.start:
            raise ValueError(f"end {self.end:g} must be after start {self.start:g}")
        if isinstance(self.max_output_tokens, int) and self.max_output_tokens < 1:
            raise ValueError("max_output_tokens must be at least 1")
        return self

    def _check_generated(self) -> None:
        if self.arrivals is None:
            raise ValueError("needs trace, statistics, or arrivals with prompt_tokens and output_tokens")
        missing = [name for name in ("prompt_tokens", "output_tokens") if not self._has_length(name)]
        if missing:
            raise ValueError(f"generated requests need {' and '.join(missing)}")
        counted = isinstance(self.arrivals, Stages)
        if not counted and (self.num_requests is None) == (self.duration is None):
            raise ValueError("generated requests need either num_requests or duration")
        if counted and self.num_requests is not None:
            raise ValueError("stages say how many requests there are: leave num_requests out")
        unused = [name for name in _TRACE_ONLY if name in self.model_fields_set]
        if unused:
            raise ValueError(f"{', '.join(unused)}: only for a trace")
        if self.sessions and isinstance(self.arrivals, ClosedLoopArrivals):
            raise ValueError("sessions cannot have closed_loop arrivals: their turns wait for each other already")

    def _has_length(self, name: str) -> bool:
        """Whether a length is given for the workload, or by every component of its mix."""
        in_mix = self.mix is not None and all(getattr(part, name) is not None for part in self.mix)
        return in_mix or getattr(self, name) is not None

    def _check_given(self, form: str) -> None:
        generated = ["prompt_tokens", "output_tokens", "prefix", "sessions"]
        if self.arrivals is None and form == "trace":
            generated += ["num_requests", "duration"]
        wrong = [name for name in generated if name in self.model_fields_set and getattr(self, name) is not None]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: only for generated requests, not with {form}")
        if form == "statistics":
            unused = [name for name in _TRACE_ONLY if name in self.model_fields_set and name != "rate_scale"]
            if unused:
                raise ValueError(f"{', '.join(unused)}: only for a trace, not with statistics")
        if self.mix is not None and any(part.prompt_tokens or part.output_tokens for part in self.mix):
            raise ValueError(f"mix: lengths come from the {form}")
        if self.arrivals is not None:
            timed = [name for name in ("rate_scale", "spread_ties", "repeat") if name in self.model_fields_set]
            if timed:
                raise ValueError(f"{', '.join(timed)}: arrivals replace the times of the {form}")


_TRACE_ONLY = (
    "format", "limit", "start", "end", "rate_scale", "spread_ties", "failed_rows", "repeat", "time_unit",
    "chars_per_token", "columns", "where", "session_prompts",
)  # fmt: skip


def build_workload(config: WorkloadConfig, seeds: Seeds, base_dir: Path) -> Workload:
    """The requests that `config` describes; paths in it are relative to `base_dir`.

    Arrivals, lengths, mix, declared maxima, cancellations, think times and prefixes have random streams of their own.
    Raises `InputError` for what cannot be read or fulfilled.
    """
    from sim.workload.build import build

    return build(config, seeds, base_dir)
