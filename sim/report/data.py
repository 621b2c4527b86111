"""What a report is made from: the files of a run's output directory, read and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError
from sim.measured import PARTS
from sim.slo import Objective, read_slo
from sim.warmup import SERIES, warmup_mask

if TYPE_CHECKING:
    import pandas as pd

    from sim.measured import BoolArray
    from sim.units import FloatArray

_COLUMNS = (
    "request_id",
    "status",
    "arrival_time",
    "first_scheduled_time",
    "first_token_time",
    "finish_time",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_cached_tokens",
    "num_preemptions",
    "prefill_replica",
    "ttft",
    "tpot",
    "e2e",
    "max_itl",
    *PARTS,
    "interference_duration",
)
_STEP_COLUMNS = ("replica", "start_time", "duration", "num_prefill_tokens", "num_decode_sequences")


@dataclass(frozen=True)
class RunData:
    """One run as its files tell it. `counted`: arrived after warm-up; `finished`: those of them that finished."""

    summary: dict[str, Any]
    config: dict[str, Any]
    requests: pd.DataFrame
    timeline: pd.DataFrame | None
    steps: pd.DataFrame | None  # of --step-log
    run: dict[str, Any]  # run.json; empty when it is not there
    counted: BoolArray
    finished: BoolArray
    objectives: list[Objective]

    def column(self, name: str) -> FloatArray:
        """A numeric column of requests.parquet as float64."""
        return np.asarray(self.requests[name], dtype=np.float64)

    def values(self, name: str) -> FloatArray:
        """A numeric column of the counted finished requests, nan left out."""
        column = self.column(name)[self.finished]
        return column[~np.isnan(column)]


def load(directory: Path) -> RunData:
    """Read a run. `InputError` when the folder is none, or a file of it is missing or damaged."""
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory; give the output directory of `servesim run`")
    summary, config = read_json(directory / "summary.json"), read_yaml(directory / "config.yaml")
    requests = read_parquet(directory / "requests.parquet", list(_COLUMNS))
    arrival = np.asarray(requests["arrival_time"], dtype=np.float64)
    latencies = {name: requests[name].to_numpy() for name in SERIES}
    counted = ~np.isnan(arrival) & ~warmup_mask(arrival, _metrics_section(config), latencies)
    timeline, steps = directory / "timeline.parquet", directory / "steps.parquet"
    return RunData(
        summary=summary,
        config=config,
        requests=requests,
        timeline=read_parquet(timeline, None) if timeline.exists() else None,
        steps=read_parquet(steps, list(_STEP_COLUMNS)) if steps.exists() else None,
        run=read_json(directory / "run.json") if (directory / "run.json").exists() else {},
        counted=counted,
        finished=counted & np.asarray(requests["status"] == "finished", dtype=bool),
        objectives=read_slo(config.get("slo")),
    )


def _metrics_section(config: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(metrics=SimpleNamespace(**(config.get("metrics") or {})))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. `InputError` names the file and the line."""
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: no valid JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected an object, got {type(value).__name__}")
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping. `InputError` names the file."""
    import yaml

    try:
        value = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise InputError(f"{path}: no valid YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a mapping, got {type(value).__name__}")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path.parent}: has no {path.name}; give the output directory of `servesim run`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def read_parquet(path: Path, columns: list[str] | None) -> pd.DataFrame:
    """A table with these columns (all of them: None). `InputError` names the file and what is missing."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise InputError(f"{path.parent}: has no {path.name}; give the output directory of `servesim run`")
    try:
        missing = sorted(set(columns or ()) - set(pq.read_schema(path).names))
        if missing:
            raise InputError(f"{path}: has no column {', '.join(missing)}")
        return pd.read_parquet(path, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
