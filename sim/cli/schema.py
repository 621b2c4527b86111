"""`servesim schema`: the JSON schema of the files that users write, for completion and checks in editors."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import Annotated

import typer


class FileKind(StrEnum):
    """The kinds of files that have a schema."""

    EXPERIMENT = "experiment"
    STUDY = "study"
    PLAN = "plan"


# Module and class of the model of each kind of file.
_MODELS = {
    FileKind.EXPERIMENT: ("sim.config", "ExperimentConfig"),
    FileKind.STUDY: ("sim.study.config", "StudyConfig"),
    FileKind.PLAN: ("sim.study.plan_config", "PlanConfig"),
}


def command(
    kind: Annotated[FileKind, typer.Argument(help="Which file to describe.")] = FileKind.EXPERIMENT,
) -> None:
    """Print the JSON schema of an experiment, a study or a plan."""
    from sim.output import json_text

    print(json_text(schema(kind)), end="")


def schema(kind: FileKind) -> dict[str, object]:
    """The JSON schema (draft 2020-12) of one kind of file."""
    module, name = _MODELS[kind]
    model = getattr(import_module(module), name)
    described = model.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **described, "title": f"servesim {kind}"}
