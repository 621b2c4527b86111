"""Length predictors: how many output tokens a request is expected to have."""

from __future__ import annotations

from collections.abc import Callable

from policies.length_predictor.constant import Constant
from policies.length_predictor.noisy_oracle import NoisyOracle
from policies.length_predictor.nothing import Nothing
from policies.length_predictor.oracle import Oracle
from policies.length_predictor.quantile import Quantile
from sim.interfaces import LengthPredictor

LENGTH_PREDICTORS: dict[str, Callable[..., LengthPredictor]] = {
    "none": Nothing,
    "constant": Constant,
    "quantile": Quantile,
    "noisy_oracle": NoisyOracle,
    "oracle": Oracle,
}
