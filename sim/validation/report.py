"""The validation's results as one text of tables for people, and as plain values for files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sim.hardware import load_gpu
from sim.validation.blocks import BlockCount
from sim.validation.case import LeftOut
from sim.validation.constants import ServerFit
from sim.validation.replay import Prediction
from sim.validation.scores import OURS, Score, by_kind, by_set, reasons, scores

RUN_COLUMNS = {
    "e2e.mean": "E2E",
    "tpot.mean": "TPOT",
    "ttft.mean": "TTFT",
    "ttft.p50": "p50",
    "ttft.p90": "p90",
    "ttft.p99": "p99",
    "ttft_settled.p99": "p99 warm",
    "e2e.p50": "E2E p50",
    "e2e.p90": "E2E p90",
    "e2e.p99": "E2E p99",
    "output_token_throughput": "tokens/s",
    "finished": "finished",
}
SCORE_COLUMNS = (
    "e2e.mean",
    "tpot.mean",
    "ttft.mean",
    "ttft.p50",
    "ttft.p90",
    "ttft.p99",
    "ttft_settled.p99",
    "output_token_throughput",
)
SINGLE_RUNS = ("blis_training", "sim2real", "distserve", "llmservingsim", "inference_perf")  # listed run by run
FITTED_ENGINE = ("blis_training", "sim2real")  # servers of the version whose constants are fitted
NOTHING = "-"


@dataclass(frozen=True)
class Validation:
    """Everything that a validation found."""

    predictions: list[Prediction]
    left_out: list[LeftOut]
    blocks: list[BlockCount] = field(default_factory=list)
    fit: ServerFit | None = None
    left_model_out: list[Prediction] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The report as lines of text."""
        sections = (
            ("Errors by set of runs: mean absolute (bias), per cent; peers on the same runs", self._sets()),
            ("Errors run by run, per cent: (predicted / measured - 1) * 100", self._runs()),
            ("Errors by model, GPU and workload: mean absolute (bias), per cent", self._kinds()),
            ("Constants fitted on measured servers", self._constants()),
            ("Leave one model out, per cent", _run_table(self.left_model_out)),
            ("GPUs of which no server entered the fit, per cent", _run_table(self._other_gpus())),
            ("KV blocks (null block included)", self._blocks()),
            ("Outside of what the profiles were calibrated on", self._extrapolation()),
            ("Left out", self._left_out()),
        )
        lines: list[str] = []
        for title, table in sections:
            if table:
                lines += [title, "", *table, ""]
        return lines

    def values(self) -> dict[str, Any]:
        """The report as plain values; errors are relative (0.01 is one per cent)."""
        return {
            "scores": [asdict(item) for item in self._all_scores()],
            "runs": [_run_values(item) for item in self.predictions],
            "leave_one_model_out": [_run_values(item) for item in self.left_model_out],
            "constants": None if self.fit is None else _fit_values(self.fit),
            "kv_blocks": [{**asdict(item), "error": item.error} for item in self.blocks],
            "left_out": [asdict(item) for item in self.left_out],
        }

    def _all_scores(self) -> list[Score]:
        return scores(self.predictions, by_set) + scores(self.predictions, by_kind)

    def _sets(self) -> list[str]:
        ours = scores(self.predictions, by_set)
        return _score_table(ours) + _cross_validated(self.left_model_out)

    def _kinds(self) -> list[str]:
        return _score_table([item for item in scores(self.predictions, by_kind) if item.simulator == OURS])

    def _runs(self) -> list[str]:
        return _run_table([item for item in self.predictions if item.case.dataset in SINGLE_RUNS])

    def _other_gpus(self) -> list[Prediction]:
        """Runs of the fitted engine on GPUs of which no server gave anything to the constants."""
        if self.fit is None:
            return []
        fitted = self.fit.gpus
        return [
            p for p in self.predictions if p.case.dataset in FITTED_ENGINE and load_gpu(p.case.gpu).name not in fitted
        ]

    def _constants(self) -> list[str]:
        if self.fit is None:
            return []
        rows = [
            [name, f"{self.fit.values[name]:.4g}", f"{self.fit.standard_errors[name]:.2g}"]
            + [f"{value:+.2f}" for value in self.fit.correlations[i]]
            for i, name in enumerate(self.fit.values)
        ]
        header = ["constant", "value", "std. error", *(f"r{i + 1}" for i in range(len(self.fit.values)))]
        return [
            *table(header, rows),
            f"{self.fit.num_residuals} residuals, root mean square {self.fit.residual:.2%}, condition "
            f"{self.fit.condition:.1f}; r1.. are correlations in the order of the rows",
        ]

    def _blocks(self) -> list[str]:
        header = ["model", "GPU", "TP", "measured", "predicted", "error %"]
        rows = [
            [_short(b.model), b.gpu, str(b.tensor_parallel), str(b.measured), _text(b.predicted), percent(b.error)]
            for b in self.blocks
        ]
        return table(header, rows) if rows else []

    def _extrapolation(self) -> list[str]:
        found: dict[str, set[str]] = {}
        for item in self.predictions:
            for sentence in item.replay.extrapolation if item.replay else ():
                found.setdefault(f"{item.case.gpu}: {sentence}", set()).add(_short(item.case.model))
        return [f"{sentence} [{', '.join(sorted(models))}]" for sentence, models in sorted(found.items())]

    def _left_out(self) -> list[str]:
        rows = [[dataset, str(n), reason, name] for dataset, reason, n, name in reasons(self.left_out)]
        return table(["data set", "runs", "reason", "such as"], rows) if rows else []


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table with aligned columns."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def percent(error: float | None) -> str:
    """A relative error in per cent with its sign."""
    return NOTHING if error is None or not np.isfinite(error) else f"{100 * error:+.1f}"


def _score_table(items: Sequence[Score]) -> list[str]:
    if not items:
        return []
    metrics = [name for name in SCORE_COLUMNS if any(item.metric == name for item in items)]
    by_row: dict[tuple[str, str], dict[str, Score]] = {}
    for item in sorted(items, key=lambda item: (item.group, item.simulator != OURS, item.simulator)):
        by_row.setdefault((item.group, item.simulator), {})[item.metric] = item
    rows = []
    for (group, simulator), found in by_row.items():
        num = max(item.num_runs for item in found.values())
        cells = [_mean_and_bias(found.get(name)) for name in metrics]
        rows.append([group if simulator == OURS else "", simulator, str(num), *cells])
    return table(["runs", "simulator", "n", *(RUN_COLUMNS[name] for name in metrics)], rows)


def _mean_and_bias(item: Score | None) -> str:
    return NOTHING if item is None else f"{100 * item.mean:.1f} / {100 * item.median:.1f} ({100 * item.bias:+.1f})"


def _cross_validated(predictions: Sequence[Prediction]) -> list[str]:
    if not predictions:
        return []
    items = scores(predictions, lambda item: [f"{name}, own model not fitted" for name in by_set(item)])
    return ["", *_score_table([item for item in items if item.simulator == OURS])]


def _run_table(predictions: Sequence[Prediction]) -> list[str]:
    if not predictions:
        return []
    metrics = [name for name in RUN_COLUMNS if any(name in item.errors for item in predictions)]
    rows = [
        [item.case.key, item.case.gpu, *(percent(item.errors.get(name)) for name in metrics), _spread(item)]
        for item in predictions
    ]
    return table(["run", "GPU", *(RUN_COLUMNS[name] for name in metrics), "sd p99"], rows)


def _spread(item: Prediction) -> str:
    """Standard deviation of TTFT p99 over the seeds, per cent."""
    value = item.spread.get("ttft.p99", 0.0)
    return f"{100 * value:.0f}" if len(item.case.seeds) > 1 else NOTHING


def _run_values(item: Prediction) -> dict[str, Any]:
    case = item.case
    return {
        "dataset": case.dataset,
        "name": case.name,
        "model": _short(case.model),
        "gpu": case.gpu,
        "tensor_parallel": case.pool.get("tensor_parallel", 1),
        "workload": case.workload,
        "groups": sorted(case.groups),
        "seeds": list(case.seeds),
        "measured": dict(case.measured),
        "predicted": item.predicted,
        "errors": item.errors,
        "peers": {name: dict(errors) for name, errors in case.peers.items()},
        "num_blocks": item.replay.num_blocks if item.replay else None,
        "num_preemptions": item.replay.num_preemptions if item.replay else None,
        "extrapolation": list(item.replay.extrapolation) if item.replay else [],
        "notes": list(case.notes),
    }


def _fit_values(fit: ServerFit) -> dict[str, Any]:
    return {
        "values": fit.values,
        "standard_errors": fit.standard_errors,
        "correlations": dict(zip(fit.values, fit.correlations.tolist(), strict=True)),
        "condition": fit.condition,
        "residual": fit.residual,
        "num_residuals": fit.num_residuals,
        "rounds": fit.rounds,
    }


def _short(model: str) -> str:
    return model.rsplit("/", 1)[-1].removesuffix(".yaml")


def _text(value: object) -> str:
    return NOTHING if value is None else str(value)
