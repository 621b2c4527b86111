"""`servesim calibrate`: a profile from tables, and the errors of one that ships."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from sim.cli.calibrate import app, limit_of
from sim.errors import InputError

run = CliRunner().invoke


def test_check_shows_errors_beside_their_limits() -> None:
    rows = json.loads(run(app, ["check", "h100-sxm", "--json"]).stdout)["errors"]
    gemm = next(row for row in rows if (row["operation"], row["dtype"], row["backend"]) == ("gemm", "bf16", "vllm"))
    assert gemm["median"] <= gemm["limit"] == 0.06
    assert "ok" in run(app, ["check", "h100-sxm"]).stdout


def test_operations_without_a_goal_have_no_limit() -> None:
    assert limit_of("small_ops.norm", "bf16") is None
    assert limit_of("moe", "fp8") == 0.10


def test_fit_refuses_a_folder_without_tables_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "p.yaml"
    result = run(app, ["fit", str(tmp_path), "--gpu", "h100-sxm", "-o", str(out)])
    assert isinstance(result.exception, InputError)
    assert list(tmp_path.iterdir()) == []
