import math

import pytest
import torch

from relax_core.objectives.corrections import Correction, masked_importance_weights, truncated_importance_weights

OLD = torch.tensor([-1.0, -1.0, -1.0, -1.0], requires_grad=True)
ROLLOUT = torch.tensor([-1.0, -1.5, -4.0, -0.1])
WEIGHTS = [1.0, math.exp(0.5), math.exp(3.0), math.exp(-0.9)]


def both(old: list[float], rollout: list[float]) -> tuple[Correction, Correction]:
    log_ratio = torch.tensor(old) - torch.tensor(rollout)
    return truncated_importance_weights(log_ratio, 2.0), masked_importance_weights(log_ratio, 0.5, 5.0)


def test_truncation_bounds_the_weight_from_above() -> None:
    correction = truncated_importance_weights(OLD - ROLLOUT, 2.0)
    assert correction.weights.tolist() == pytest.approx([WEIGHTS[0], WEIGHTS[1], 2.0, WEIGHTS[3]])
    assert correction.clipped.tolist() == [False, False, True, False]


def test_masking_keeps_only_weights_inside() -> None:
    correction = masked_importance_weights(OLD - ROLLOUT, 0.5, 5.0)
    assert correction.weights.tolist() == pytest.approx([WEIGHTS[0], WEIGHTS[1], 0.0, 0.0])
    assert correction.clipped.tolist() == [False, False, True, True]


def test_weights_are_constants() -> None:
    assert not truncated_importance_weights(OLD - ROLLOUT, 2.0).weights.requires_grad
    assert not masked_importance_weights(OLD - ROLLOUT, 0.5, 5.0).weights.requires_grad


def test_infinite_log_probabilities() -> None:
    truncated, masked = both([-1.0, -math.inf], [-math.inf, -1.0])
    assert truncated.weights.tolist() == [2.0, 0.0]
    assert masked.weights.tolist() == [0.0, 0.0]
    assert masked.clipped.all()


def test_nan_stays_visible() -> None:
    for correction in both([math.nan, -1.0, -math.inf], [-1.0, math.nan, -math.inf]):
        assert correction.weights.isnan().all()
