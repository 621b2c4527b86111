"""From a parsed serve command to the YAML of an experiment with a comment at everything that was taken or left out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import InputError, unknown_name
from sim.imports.engines import ENGINES, EngineCommand, Value
from sim.imports.flags import Command, parse

if TYPE_CHECKING:
    from sim.model import ModelSpec

_COMMENT_COLUMN = 58
_WORKLOAD = """\
workload:  # the command does not say who asks: put your own here, or `trace: requests.csv`
  num_requests: 1000
  arrivals: {process: poisson, rate: 2.0}
  prompt_tokens: {distribution: lognormal, mean: 500, p99: 3000, max: %d}
  output_tokens: {distribution: lognormal, mean: 200, p99: 800, max: %d}
"""
_LONGEST = (6000, 1500)  # prompt and output tokens of the workload, where the model's length allows
_SHORTEST_FRACTION = (2, 4)  # else these parts of that length
_SECRET = re.compile(r"(--(?:api-key|hf-token|key)[= ])\S+")  # must not end up in a file
_PLAIN = re.compile(r"^[A-Za-z/][A-Za-z0-9_./-]*$")
_ASSUMED = "speculation.acceptance is an assumption: no flag says how many drafts your traffic accepts"


@dataclass(frozen=True)
class Imported:
    """The text of the experiment; `warnings`: unknown flags, and what keeps it from running as it stands."""

    text: str
    warnings: list[str]


def import_command(engine: str, text: str, gpu: str = "h100-sxm", model: str | None = None) -> Imported:
    """The experiment that the serve command `text` of `engine` stands for, on `gpu` (which no flag names).

    `model`: used in place of the command's. Raises `InputError` for an unknown engine, GPU or model, a bad value, or a
    command without a model.
    """
    from sim.hardware import load_gpu

    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    known = ENGINES[engine]
    text = _SECRET.sub(r"\1***", text)
    command = parse(text, known.program, known.flags)
    profile = load_gpu(gpu)
    name, spec = _model(model or command.model, model is not None)
    pool: dict[str, Value] = {
        "name": ("main", ""),
        "replicas": (1, "copies of the model"),
        "model": (name, "given" if model else f"of the command: {command.model}"),
        "gpu": (gpu, "no flag names it: change it to yours"),
        "engine": (known.preset, f"{known.title}; fills what is not given below"),
    }
    pool |= known.defaults(command, spec, profile)
    pool |= command.taken
    unknown = [f"{flag} is not a known flag of {known.title}{hint}; it was left out" for flag, hint in command.unknown]
    yaml = _yaml(known, text, command, pool, spec)
    assumed = [_ASSUMED] if "speculation" in command.taken else []
    return Imported(yaml, unknown + assumed + _why_it_would_not_run(yaml))


def _model(name: str | None, given: bool) -> tuple[str, ModelSpec]:
    from sim.model import load_model

    if name is None:
        raise InputError("the command names no model; give --model NAME (servesim models list) or --model config.json")
    path = str(Path(name).absolute()) if Path(name).exists() else name
    try:
        spec = load_model(path)
    except InputError as error:
        help = "" if given else "; give --model NAME, or --model PATH of its Hugging Face config.json"
        raise InputError(f"model {name}: {error}{help}") from None
    return path if Path(name).exists() else spec.name, spec


def _yaml(known: EngineCommand, text: str, command: Command, pool: dict[str, Value], spec: ModelSpec) -> str:
    longest = pool.get("max_model_len", (spec.max_position or 8192, ""))[0]
    sizes = tuple(min(most, max(1, longest // part)) for most, part in zip(_LONGEST, _SHORTEST_FRACTION, strict=True))
    lines = [f"# {known.title}, from: {' '.join(text.split())}"]
    lines += [f"# not taken over: {flag}: {why}" for flag, why in command.ignored]
    lines += [f"# unknown, not taken over: {flag}{hint}" for flag, hint in command.unknown]
    lines += ["name: imported", "seed: 1", (_WORKLOAD % sizes).rstrip(), "cluster:", "  pools:"]
    body = _section(_nested(pool), 3)
    lines += [f"    - {body[0].lstrip()}", *body[1:]]
    lines += ["  router: {policy: least_outstanding_requests}", "slo: {ttft: 1.0, tpot: 0.05, attainment: 0.99}"]
    return "\n".join(lines) + "\n"


def _nested(pool: dict[str, Value]) -> dict[str, Any]:
    """Key paths as nested sections."""
    found: dict[str, Any] = {}
    for path, value in pool.items():
        *above, key = path.split(".")
        here = found
        for part in above:
            here = here.setdefault(part, {})
        here[key] = value
    return found


def _section(values: dict[str, Any], depth: int) -> list[str]:
    lines = []
    for key, value in values.items():
        if isinstance(value, dict):
            lines += [f"{'  ' * depth}{key}:", *_section(value, depth + 1)]
            continue
        content, why = value
        line = f"{'  ' * depth}{key}: {_text(content)}"
        lines.append(f"{line:<{_COMMENT_COLUMN}}# {why}" if why else line)
    return lines


def _text(value: Any) -> str:
    """A value as YAML on one line; JSON is YAML."""
    return value if isinstance(value, str) and _PLAIN.match(value) else json.dumps(value)


def _why_it_would_not_run(text: str) -> list[str]:
    """The message with which the experiment is refused as it stands (a model that does not fit, say), if it is."""
    from sim import yamlfile
    from sim.config import resolve
    from sim.experiment import RunOptions, prepare

    try:
        prepare(resolve(yamlfile.parse(text, "imported"), Path.cwd()), RunOptions())
    except InputError as error:
        return [f"it does not run as it stands: {line}" for line in str(error).splitlines()]
    return []
