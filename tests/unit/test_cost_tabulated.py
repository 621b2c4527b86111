"""The tabulated cost model: linear between rows, told beyond them, refused with the row when wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.cost import ExplainingCostModel, build_cost_model
from sim.cost.base import BatchShape
from sim.errors import InputError
from sim.hardware import load_gpu
from sim.model import load_model

ROWS = (
    "phase,num_tokens,seconds\nprefill,100,0.01\nprefill,1100,0.11\ndecode,1,0.005\ndecode,11,0.010\ndecode,11,0.020\n"
)
BY_SIZE = (
    "phase,num_tokens,seconds,per_context_token\nprefill,1000,0.1,\ndecode,1,0.01,1e-6\n"
    "decode,11,0.02,3e-6\ndecode,12,0.03,2e-6\n"
)


def tabulated(path: Path, text: str = ROWS, **params: object) -> ExplainingCostModel:
    file = path / "steps.csv"
    file.write_text(text, encoding="utf-8")
    return build_cost_model(
        "tabulated", {"table": str(file), **params}, model=load_model("opt-13b"), gpu=load_gpu("cpu")
    )


def test_time_is_linear_between_rows_and_repeated_rows_are_averaged(tmp_path: Path) -> None:
    cost = tabulated(tmp_path, per_context_token=1e-6)
    assert cost.step_time(BatchShape(num_decode_sequences=6, decode_context=1000)) == pytest.approx(0.010 + 0.001)
    assert cost.step_time(BatchShape(num_prefill_tokens=594, num_decode_sequences=6)) == pytest.approx(0.06)
    assert cost.extrapolation() == []


def test_context_costs_by_the_number_of_sequences(tmp_path: Path) -> None:
    """Linear between rows, constant outside; prompts cost by their query-key pairs."""
    cost = tabulated(tmp_path, BY_SIZE, per_prefill_pair=1e-8)
    for num, seconds, rate in ((1, 0.01, 1e-6), (6, 0.015, 2e-6), (11, 0.02, 3e-6), (12, 0.03, 2e-6)):
        shape = BatchShape(num_decode_sequences=num, decode_context=5000)
        assert cost.step_time(shape) == pytest.approx(seconds + 5000 * rate), num
    far = cost.decode_times(20_000, 50_000, 10, 2)
    assert far[1] - far[0] == pytest.approx(20_000 * 2e-6)
    assert cost.step_time(BatchShape(num_prefill_tokens=100, prefill_pairs=5050)) == pytest.approx(0.1 + 5.05e-5)


def test_one_rate_of_context_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has a column of that name; give one of the two"):
        tabulated(tmp_path, BY_SIZE, per_context_token=1e-9)


def test_beyond_the_table_the_last_slope_goes_on_and_is_told(tmp_path: Path) -> None:
    cost = tabulated(tmp_path)
    assert cost.step_time(BatchShape(num_decode_sequences=21)) == pytest.approx(0.025)
    assert cost.step_time(BatchShape(num_prefill_tokens=50_000)) == pytest.approx(5.0)
    assert len(cost.extrapolation()) == 2


@given(num=st.integers(1, 500), context=st.integers(500, 10**6), steps=st.integers(1, 30))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_vector_has_the_bits_of_single_steps(tmp_path: Path, num: int, context: int, steps: int) -> None:
    for cost in (tabulated(tmp_path, per_context_token=3e-9), tabulated(tmp_path, BY_SIZE)):
        shapes = [BatchShape(num_decode_sequences=num, decode_context=context + i * num) for i in range(steps)]
        assert cost.decode_times(num, context, 10, steps).tolist() == [cost.step_time(shape) for shape in shapes]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "the header must be phase,num_tokens,seconds"),
        ("phase,num_tokens,seconds\nprefill,x,1\n", "row 2: num_tokens and seconds must be numbers"),
        ("phase,num_tokens,seconds\nprefill,1,1\nwarmup,1,1\n", "row 3: phase must be prefill or decode"),
        ("phase,num_tokens,seconds\nprefill,1,1\n", "has no row of phase 'decode'"),
        (BY_SIZE.replace("3e-6", "fast"), "row 4: num_tokens and seconds and per_context_token must be numbers"),
        (BY_SIZE.replace("3e-6", "-1"), "row 4: per_context_token must be seconds >= 0"),
    ],
)
def test_a_wrong_table_is_refused_with_its_row(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tabulated(tmp_path, text)


def test_a_missing_table_is_refused() -> None:
    for params, message in (({}, "needs table"), ({"table": "nowhere.csv"}, "cannot be read")):
        with pytest.raises(InputError, match=message):
            build_cost_model("tabulated", params, model=load_model("opt-13b"), gpu=load_gpu("cpu"))
