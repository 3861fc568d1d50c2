"""Rows that share their beginnings give what the same rows give alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.api.columns import Column, Table
from relax_core.api.context import Context, ModelSource
from relax_core.api.trainer import MicroBatch
from relax_core.dataflow.columns import LOSS_MASK, TOKENS
from relax_core.models.initialise import initialise_model
from relax_core.testing.trainer import split_rows, with_support
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.policy import CausalPolicy
from relax_core.trainers.torch.trainer import TorchTrainer

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
GROUPED = {**SMALL, "num_key_value_heads": 1, "head_dim": 16}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": GROUPED,
    "llama": GROUPED,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
}


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"model_type": request.param, **MODELS[request.param]}
    return initialise_model(tmp_path_factory.mktemp(request.param), shape, "bytes", 0)


def policy_of(path: Path, dtype: str = "float32", attention: str = "sdpa", **settings: Any) -> CausalPolicy:
    return CausalPolicy(TorchTrainerConfig(**settings), ModelSource(path, dtype, attention), "cpu")


@pytest.fixture(scope="module")
def policies(path: Path) -> tuple[CausalPolicy, CausalPolicy]:
    """One that shares prompts and one that does not."""
    return policy_of(path, share_prompts=True), policy_of(path, share_prompts=False)


@st.composite
def micro_batches(draw: st.DrawFn) -> MicroBatch:
    """Rows of up to three groups in any order; masks begin late, have gaps, or nothing; some rows are empty."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    tokens, masks, groups = [], [], []
    for group in range(draw(st.integers(1, 3))):
        prompt = generator.integers(0, 250, draw(st.integers(0, 6)))
        for length in draw(st.lists(st.integers(0, 7), max_size=4)):
            rest = generator.integers(0, 3, length)
            kept = len(prompt) if draw(st.booleans()) else draw(st.integers(0, len(prompt)))
            tokens.append(np.concatenate([prompt[:kept], rest]))
            late = draw(st.integers(0, kept + length))
            masks.append((np.arange(kept + length) >= late) & (generator.random(kept + length) < 0.8))
            groups.append(group)
    order = generator.permutation(len(tokens))
    columns = [Column.of(TOKENS, [tokens[i] for i in order]), Column.of(LOSS_MASK, [masks[i] for i in order])]
    names = {column.spec.name: column for column in columns}
    ones = np.ones(len(order), np.int64)
    return MicroBatch(Table(np.arange(len(order)), np.array(groups, np.int64)[order], names), ones, ones)


def answers(policy: CausalPolicy, batches: list[MicroBatch]) -> list[torch.Tensor]:
    """Log-probabilities and entropies of all tokens, and the gradient of a function of both."""
    scored = [policy.score(batch) for batch in batches]
    outputs = [torch.cat([one.outputs[name] for one in scored if one]) for name in ("logprobs", "entropy")]
    policy.model.zero_grad()
    (outputs[0].exp().sum() + (outputs[1] ** 2).sum()).backward()
    return [*outputs, *(parameter.grad for parameter in policy.model.parameters() if parameter.grad is not None)]


def assert_alike(one: list[torch.Tensor], other: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        scale = max(1.0, float(right.detach().abs().max()))
        torch.testing.assert_close(left, right, atol=tolerance * scale, rtol=0)


@settings(max_examples=40, deadline=None)
@given(batch=micro_batches(), temperature=st.sampled_from([1.0, 0.7]), restricted=st.booleans())
def test_shared_rows_give_what_plain_rows_give(
    policies: tuple[CausalPolicy, CausalPolicy], batch: MicroBatch, temperature: float, restricted: bool
) -> None:
    sharing, plain = policies
    batch = replace(batch, temperature=temperature, table=with_support(batch.table) if restricted else batch.table)
    scored = sharing.score(batch)
    assert (scored is None) == (plain.score(batch) is None)
    if scored is None:
        return
    assert_alike(answers(sharing, [batch]), answers(plain, [batch]))
    halves = split_rows(batch, [range(0, len(batch.table), 2), range(1, len(batch.table), 2)])
    assert_alike(answers(sharing, halves), answers(plain, halves))


def one_group() -> MicroBatch:
    """Five rows of seven shared tokens and answers of one to five."""
    generator = np.random.default_rng(0)
    prompt = generator.integers(0, 250, 7)
    tokens = [np.concatenate([prompt, generator.integers(0, 250, length)]) for length in range(1, 6)]
    columns = {
        "tokens": Column.of(TOKENS, tokens),
        "loss_mask": Column.of(LOSS_MASK, [np.arange(len(row)) >= 7 for row in tokens]),
    }
    ones = np.ones(5, np.int64)
    return MicroBatch(Table(np.arange(5), np.zeros(5, np.int64), columns), ones, ones)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [{"logprob_chunk_tokens": 2}, {"gradient_checkpointing": True}])
def test_in_every_way_of_computing(path: Path, attention: str, config: dict[str, Any]) -> None:
    sharing = policy_of(path, attention=attention, share_prompts=True, **config)
    assert_alike(answers(sharing, [one_group()]), answers(policy_of(path, share_prompts=False), [one_group()]))


def test_in_bfloat16(path: Path) -> None:
    sharing, plain = policy_of(path, "bfloat16", share_prompts=True), policy_of(path, "bfloat16", share_prompts=False)
    assert_alike(answers(sharing, [one_group()]), answers(plain, [one_group()]), 0.05)


def test_a_shared_prompt_goes_through_the_model_once(policies: tuple[CausalPolicy, CausalPolicy]) -> None:
    shapes = []
    for policy in policies:
        handle = policy.model.get_input_embeddings().register_forward_pre_hook(
            lambda _, inputs: shapes.append(tuple(inputs[0].shape))
        )
        policy.score(one_group())
        handle.remove()
    assert shapes == [(1, 7 + 0 + 1 + 2 + 3 + 4), (5, 11)]


def test_only_a_trainer_that_shares_prompts_prefers_groups(tiny_model_path: Path) -> None:
    context = Context("test", 0, tiny_model_path, ModelSource(tiny_model_path))
    for shares, prefers in ((False, False), (True, True), (None, True)):
        assert TorchTrainer(TorchTrainerConfig(share_prompts=shares), context).prefers_groups is prefers
    assert not TorchTrainer(TorchTrainerConfig(packing=True), context).prefers_groups


def test_by_itself_it_shares_short_prompts_and_no_long_ones(tiny_model_path: Path) -> None:
    policy = policy_of(tiny_model_path)
    shapes = []
    handle = policy.model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: shapes.append(tuple(inputs[0].shape))
    )
    for prompt in (5, 300):
        tokens = Column.of(TOKENS, [[1] * prompt + [answer] for answer in (2, 3)])
        masks = Column.of(LOSS_MASK, [[False] * prompt + [True]] * 2)
        table = Table(np.arange(2), np.zeros(2, np.int64), {"tokens": tokens, "loss_mask": masks})
        policy.score(MicroBatch(table, np.full(2, 2), np.full(2, 2)))
    handle.remove()
    assert shapes == [(1, 5), (2, 300)]


def test_one_layout_at_a_time() -> None:
    with pytest.raises(ValueError, match="share_prompts: true and packing: true exclude each other"):
        TorchTrainerConfig(share_prompts=True, packing=True)
