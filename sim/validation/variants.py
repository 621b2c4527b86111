"""Models with other weights than their catalogue entry: a derived YAML file that an experiment can name by its path."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from sim import yamlfile
from sim.catalogue import read_entry
from sim.model import load_model

WEIGHTS = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4", "bf16": "bf16", "fp16": "fp16"}


@cache
def model_with_weights(name: str, precision: str) -> str:
    """A name or path for model `name` with `precision` weights; the catalogue's own entry where it has them already.

    A checkpoint that is quantised as published (experts in four bits, say) keeps its own weights. `InputError` for an
    unknown model.
    """
    spec = load_model(name)
    wanted = WEIGHTS.get(precision, precision)
    if wanted == spec.weight_dtype or spec.quantized_parts != "linear" or wanted in ("bf16", "fp16"):
        return name
    values = {key: value for key, value in read_entry("models", name, "model").items() if key != "file"}
    values["architecture"] = {**values["architecture"], "weight_dtype": wanted}
    path = _folder() / f"{spec.name}-{wanted}.yaml"
    path.write_text(yamlfile.dump(values), encoding="utf-8")
    return str(path)


@cache
def _folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="servesim-models-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
