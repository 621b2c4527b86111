"""The Python interface: the examples of PYTHON.md as they stand, and equality with the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from sim.cli import main as cli
from sim.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the blocks of PYTHON.md leave behind."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "PYTHON.md").read_text(encoding="utf-8"), re.S)
    names: dict[str, Any] = {"__name__": "python_md"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, block in enumerate(blocks):
            exec(compile(block, f"PYTHON.md block {number}", "exec"), names)
    return names


def test_the_examples_of_the_page_give_what_it_says(example: dict[str, Any]) -> None:
    result = example["result"]
    assert len(result.requests) == 300
    assert result.summary["ttft.p99"] == result.document["ttft"]["p99"] == result.latencies.loc["ttft", "p99"]
    assert len(example["slowest"]) == 5
    assert example["slowest"]["ttft"].max() == result.requests["ttft"].max()
    # A first token comes with a prefill; every other output token of a request is a decode of some step.
    decoded = result.requests["num_output_tokens"].sum() - len(result.requests)
    assert result.steps["num_decode_sequences"].sum() >= decoded
    assert example["table"].shape == (2, 2)
    assert set(example["verdicts"]["metric"]) == {"ttft.p99", "tpot.p50"}
    assert example["answer"][0] in ("h100-sxm", "l40s")
    assert len(example["open_questions"]) == 1


def test_the_figure_shows_the_distribution_and_the_limits(example: dict[str, Any]) -> None:
    result = example["result"]
    figure = result.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    axes = figure.axes[0]
    curve, limit = axes.lines[0], axes.lines[1]
    assert list(limit.get_xdata()) == [0.5, 0.5]
    below = np.interp(0.5, curve.get_xdata(), curve.get_ydata())
    assert below == pytest.approx((result.requests["ttft"] <= 0.5).mean(), abs=0.01)
    lines = example["study"].plot(x="workload.arrivals.rate", y="itl.p99").axes[0].lines
    assert len(lines) == 2
    with pytest.raises(InputError, match=r"no column 'itl\.p98' \(did you mean"):
        example["study"].plot(x="workload.arrivals.rate", y="itl.p98")


def test_a_run_equals_that_of_the_command_line(small_experiment: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["run", str(small_experiment), "--seed", "5", "--out", str(tmp_path / "cli"), "--quiet"])
    assert left.value.code in (0, None)
    ours = sim.run(small_experiment, seed=5, out=tmp_path / "api")
    for name in ("summary.json", "requests.parquet", "config.yaml"):
        assert (tmp_path / "api" / name).read_bytes() == (tmp_path / "cli" / name).read_bytes()
    read = sim.load(tmp_path / "cli")
    assert read.document == ours.document
    pd.testing.assert_frame_equal(read.requests[["ttft", "e2e"]], ours.requests[["ttft", "e2e"]])


def test_set_and_seed_reach_mappings_and_files_alike(small_experiment: Path) -> None:
    import yaml

    values = yaml.safe_load(small_experiment.read_text(encoding="utf-8"))
    settings = {"cluster.pools.0.replicas": 1, "cluster.router": {"policy": "round_robin"}}
    by_file, by_mapping = (sim.run(source, set=settings, seed=2) for source in (small_experiment, values))
    assert by_file.document == by_mapping.document
    assert len(by_file.document["replicas"]) == 1


@pytest.mark.parametrize("source", ["nowhere.yaml", {"workload": {}, "cluster": {}}])
def test_mistakes_are_input_errors(source: Any) -> None:
    with pytest.raises(InputError):
        sim.run(source)


def test_load_of_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not the output directory of a run"):
        sim.load(tmp_path)


def test_import_sim_is_light() -> None:
    heavy = ("numpy", "pandas", "scipy", "matplotlib", "pyarrow", "pydantic", "yaml", "simpy")
    code = f"import sys, sim; sim.__version__; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        sim.runn  # noqa: B018
