"""Rules for ``loss``: shapes, sums over an update, numbers at the edge, the gradient."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from relax_core.api.algorithm import ADVANTAGES, Algorithm
from relax_core.testing.algorithm.rows import (
    GROUPS,
    AlgorithmRows,
    Declared,
    requirements,
    seen_by_loss,
    skip_without_advantages,
)
from relax_core.testing.algorithm.tokens import gradients, select_rows, sum_loss
from relax_core.testing.algorithm.two_ranks import sums_of_two_ranks

OTHER_POLICIES = ("old_logprobs", "ref_logprobs", "rollout_logprobs")
RANKS = {"row": [[[2, 3, 4], [5, 7, 8]], [[0, 1, 6], []]], "group": [[[0, 2, 5, 8], [3, 6]], [[1, 4, 7], []]]}
"""By what must stay together: the rows of each micro-batch of each rank. 18 and 9 tokens, one micro-batch is empty."""


class LossRules(AlgorithmRows):
    """What an algorithm makes of the tokens of a micro-batch."""

    policy_gradient = True
    """Whether the gradient at ratio 1 is that of the plain policy gradient, weighted by the reduction."""

    def test_loss_has_the_declared_shape(self, algorithm: Algorithm) -> None:
        tokens = self.make_tokens(algorithm, self.make_rows(algorithm))
        loss = algorithm.loss(tokens)
        unit = requirements(algorithm).unit
        length = len(tokens) if unit == "token" else tokens.rows
        assert loss.unit == unit, f"the loss has unit {loss.unit}, requirements() say {unit}"
        assert loss.value.shape == loss.weight.shape == (length,), f"value and weight must have length {length}"
        assert loss.value.requires_grad, "the loss has no gradient"
        assert not loss.weight.requires_grad, "weights are constants"
        assert (loss.weight >= 0).all(), "weights must not be negative"
        for name, metric in loss.metrics.items():
            assert not metric.requires_grad, f"metric {name} keeps the graph alive: detach it"
            assert metric.shape in {(len(tokens),), (tokens.rows,)}, f"metric {name} has shape {tuple(metric.shape)}"

    @pytest.mark.parametrize("seed", range(4))
    def test_loss_does_not_depend_on_micro_batches(self, algorithm: Algorithm, seed: int) -> None:
        tokens = self.make_tokens(algorithm, self.make_rows(algorithm), torch.float64)
        together = GROUPS if requirements(algorithm).keep_together == "group" else np.arange(len(GROUPS))
        owner = np.random.default_rng(seed).integers(3, size=len(GROUPS))[together]
        parts = [*(np.flatnonzero(owner == part).tolist() for part in range(3)), []]
        whole = sum_loss(algorithm, [tokens])
        split = sum_loss(algorithm, [select_rows(tokens, part) for part in parts])
        rule = f"changes when the rows are split as {parts}"
        assert torch.allclose(whole[0], split[0], rtol=1e-9), f"Σ value · weight {rule}"
        assert torch.allclose(whole[1], split[1], rtol=1e-9), f"Σ weight {rule}"
        ours, theirs = gradients(whole[0], tokens), gradients(split[0], tokens)
        for name, gradient in ours.items():
            assert torch.allclose(gradient, theirs[name], rtol=1e-9), f"the gradient of {name} {rule}"
        for name, (total, count) in whole[2].items():
            assert torch.allclose(total, split[2][name][0], rtol=1e-9), f"metric {name} {rule}"
            assert count == split[2][name][1], f"the count of metric {name} {rule}"

    def test_loss_does_not_depend_on_ranks(self, algorithm: Algorithm) -> None:
        rows = self.make_rows(algorithm)
        tokens = self.make_tokens(algorithm, rows, torch.float64)
        parts = RANKS[requirements(algorithm).keep_together]
        outputs = requirements(algorithm).outputs
        found = sums_of_two_ranks(algorithm, seen_by_loss(algorithm, rows), GROUPS, outputs, parts)
        value, weight, _ = sum_loss(algorithm, [tokens])
        rule = f"on two ranks with the rows {parts} is not that of one: a loss knows no other rank"
        assert np.isclose(found.weight, weight.item(), rtol=1e-9), f"Σ weight {rule}"
        assert np.isclose(found.value, value.item(), rtol=1e-9), f"Σ value · weight {rule}"
        for name, gradient in gradients(value, tokens).items():
            assert np.allclose(found.gradients[name], gradient.cpu(), rtol=1e-9), f"the gradient of {name} {rule}"

    def test_loss_is_a_function(self, algorithm: Algorithm) -> None:
        tokens = self.make_tokens(algorithm, self.make_rows(algorithm))
        before = {name: value.detach().clone() for name, value in {**tokens.columns, **tokens.outputs}.items()}
        first, second = algorithm.loss(tokens), algorithm.loss(tokens)
        for name, value in {**tokens.columns, **tokens.outputs}.items():
            assert torch.equal(value.detach(), before[name]), f"loss() changes {name} in place"
        assert torch.equal(first.value, second.value), "the same tokens give another value the second time"
        assert torch.equal(first.weight, second.weight), "the same tokens give another weight the second time"

    def test_a_nan_is_seen(self, algorithm: Algorithm) -> None:
        rows = seen_by_loss(algorithm, self.make_rows(algorithm))
        for name in [name for name, value in rows[0].items() if np.asarray(value).dtype.kind == "f"]:
            poisoned = [{**row, name: np.array(row[name], np.float64)} for row in rows]
            poisoned[4][name].reshape(-1)[-1] = np.nan
            numerator, _, metrics = sum_loss(algorithm, [self.make_tokens(algorithm, poisoned)])
            seen = [numerator, *(total for total, _ in metrics.values())]
            assert any(torch.isnan(value) for value in seen), f"a NaN in {name} leaves loss and metrics without a trace"

    def test_what_is_declared_suffices_and_is_read(self, algorithm: Algorithm) -> None:
        asked = requirements(algorithm)
        tokens = self.make_tokens(algorithm, self.make_rows(algorithm))
        outputs = Declared(tokens.outputs, "loss() reads the output", "outputs")
        columns = Declared(tokens.columns, "loss() reads the column", "needs")
        algorithm.loss(replace(tokens, outputs=outputs, columns=columns))
        declared = asked.outputs | asked.needs | {spec.name for spec in asked.produces}
        unread = declared - outputs.read - columns.read - asked.prepare_reads
        assert not unread, f"{sorted(unread)} are declared but not read: they would be computed for nothing"

    @pytest.mark.parametrize("distance", [200.0, -200.0])
    def test_distant_policies_give_a_finite_loss(self, algorithm: Algorithm, distance: float) -> None:
        self._finite(algorithm, distance, OTHER_POLICIES)

    def test_a_token_that_another_policy_excludes_gives_a_finite_loss(self, algorithm: Algorithm) -> None:
        """An engine that says -inf of a token it drew, an old policy that rounds to it. A KL to a reference that
        excludes a token is infinite, and may be."""
        self._finite(algorithm, np.inf, ("old_logprobs", "rollout_logprobs"))

    def _finite(self, algorithm: Algorithm, distance: float, others: tuple[str, ...]) -> None:
        names = sorted(requirements(algorithm).needs.intersection(others))
        if not names:
            pytest.skip(f"reads none of {', '.join(others)}")
        rows = self.make_rows(algorithm)
        for name in names:
            far = [{**row, name: row["logprobs"] - distance} for row in rows]
            tokens = self.make_tokens(algorithm, far)
            numerator, _, _ = sum_loss(algorithm, [tokens])
            assert torch.isfinite(numerator), f"log-ratio {distance} to {name}: the loss is {numerator}"
            assert all(torch.isfinite(gradient).all() for gradient in gradients(numerator, tokens).values()), (
                f"log-ratio {distance} to {name}: the gradient is not finite"
            )

    def test_gradient_at_ratio_one_is_the_policy_gradient(self, algorithm: Algorithm) -> None:
        if not self.policy_gradient:
            pytest.skip("not a policy gradient")
        skip_without_advantages(algorithm)
        tokens = self.make_tokens(algorithm, self.make_rows(algorithm, noise=0.0), torch.float64)
        loss = algorithm.loss(tokens)
        gradient = gradients((loss.value * loss.weight).sum(), tokens)["logprobs"]
        advantages = tokens[ADVANTAGES.name]
        assert not gradient[advantages == 0].any(), "a token without advantage has a gradient at ratio 1"
        has_advantage = advantages != 0
        share = gradient[has_advantage] / -advantages[has_advantage]
        rows = tokens.row_index[has_advantage]
        assert (share >= 0).all(), "the gradient has the wrong sign at ratio 1"
        assert share.any(), "the loss has no gradient at ratio 1"
        for row in range(tokens.rows):
            own = share[rows == row]
            assert torch.allclose(own, own[:1]), (
                "tokens of one row with one advantage have different gradients at ratio 1"
            )
        if loss.unit == "token":
            assert torch.allclose(share, loss.weight[has_advantage]), "a token's gradient is not -advantage · weight"
