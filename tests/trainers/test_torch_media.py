"""What the torch trainer says of answers about images and sound is what the engine said that gave them."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relax_core.api.algorithm import Loss
from relax_core.api.columns import Column, Table
from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import GenerateRequest, Generation, SamplingParameters
from relax_core.api.errors import ConfigError, TrainingError
from relax_core.api.media import Encoded, Kind, Prompt
from relax_core.api.tokens import Tokens
from relax_core.api.trainer import MicroBatch
from relax_core.dataflow.columns import LOSS_MASK, TOKENS
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.models.load import load_language_model
from relax_core.models.media_tokens import MediaTokens, media_tokens
from relax_core.models.parts import part_of
from relax_core.testing.models import TINY_MEDIA, telling_media_model
from relax_core.testing.random_media import RandomMedia, example_prompts
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer

GROUP = 8
LAYOUTS: dict[str, dict[str, Any]] = {
    "shared": {"share_prompts": True},
    "apart": {"share_prompts": False},
    "chunked": {"share_prompts": False, "logprob_chunk_tokens": 3},
    "recomputed": {"gradient_checkpointing": True},
}
PACKED = ("qwen3_vl", "qwen3_omni_moe_thinker")
"""Models that tell packed rows apart."""


@dataclass(frozen=True)
class Policy:
    """A folder and what its model takes."""

    context: Context
    tokens: Mapping[Kind, MediaTokens]
    encoder: RandomMedia

    def trainer(self, **config: Any) -> TorchTrainer:
        trainer = TorchTrainer(TorchTrainerConfig(**{"learning_rate": 1e-3, **config}), self.context)
        trainer.start()
        return trainer

    @property
    def prompts(self) -> list[Prompt]:
        return list(example_prompts(self.encoder, self.tokens).values())


@pytest.fixture(scope="module", params=TINY_MEDIA)
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    source = ModelSource(telling_media_model(tmp_path_factory.mktemp(request.param), request.param))
    encoder = RandomMedia(load_language_model(source).config)
    context = Context("test", 0, source.path, source, encoders=(encoder,))
    return Policy(context, media_tokens(source), encoder)


@pytest.fixture
def trainer(policy: Policy) -> Iterator[TorchTrainer]:
    trainer = policy.trainer()
    yield trainer
    trainer.close()


def generations(policy: Policy, count: int = GROUP, update: Callable[[], Any] | None = None) -> list[Generation]:
    """The same number of answers to each prompt; of an engine that has taken over a publication, if there is one."""

    async def generate() -> list[Generation]:
        engine = TorchEngine(TorchEngineConfig(), policy.context)
        await engine.start()
        if update is not None:
            publication = update()
            await engine.update(publication.manifest, publication.buckets)
        requests = [
            GenerateRequest(
                f"{group} {seed}", prompt.token_ids, SamplingParameters(2 + seed), seed, media=tuple(prompt.media)
            )
            for group, prompt in enumerate(policy.prompts)
            for seed in range(count)
        ]
        answers = await asyncio.gather(*map(engine.generate, requests))
        await engine.close()
        return list(answers)

    return asyncio.run(generate())


def batch_of(prompts: Sequence[Prompt], answers: Sequence[Sequence[int]]) -> MicroBatch:
    """Rows of groups of equal size, one for each prompt, in order."""
    size = len(answers) // len(prompts)
    asked = [prompts[row // size].token_ids for row in range(len(answers))]
    tokens = Column.of(TOKENS, [[*ids, *answer] for ids, answer in zip(asked, answers, strict=True)])
    masks = [[False] * len(ids) + [True] * len(answer) for ids, answer in zip(asked, answers, strict=True)]
    groups = np.repeat(np.arange(len(prompts)), size)
    table = Table(np.arange(len(answers)), groups, {"tokens": tokens, "loss_mask": Column.of(LOSS_MASK, masks)})
    ones = np.ones(len(answers), np.int64)
    media = {group: prompt.media for group, prompt in enumerate(prompts) if prompt.media}
    return MicroBatch(table, ones, ones, media=media)


def logprobs(trainer: TorchTrainer, batch: MicroBatch) -> np.ndarray:
    """Of the trainable tokens, in order."""
    column = trainer.forward([batch], frozenset({"logprobs"}))["logprobs"]
    return column.values[batch.table["loss_mask"].values.astype(bool)]


def likelihood(tokens: Tokens) -> Loss:
    return Loss(-tokens.logprobs, torch.ones_like(tokens.logprobs), {})


def assert_agrees(trainer: TorchTrainer, policy: Policy, answers: Sequence[Generation]) -> None:
    batch = batch_of(policy.prompts, [each.token_ids for each in answers])
    expected = np.concatenate([each.logprobs for each in answers])
    np.testing.assert_allclose(logprobs(trainer, batch), expected, atol=1e-5)


@pytest.mark.parametrize("layout", [*LAYOUTS, "packed"])
def test_engine_and_trainer_agree_before_and_after_an_update(policy: Policy, layout: str) -> None:
    if layout == "packed" and policy.encoder.model_type not in PACKED:
        with pytest.raises(ConfigError, match=r"trainer\.packing: .* influence each other; use false"):
            policy.trainer(packing=True)
        return
    trainer = policy.trainer(**LAYOUTS.get(layout, {"packing": True}))
    answers = generations(policy)
    assert_agrees(trainer, policy, answers)
    before = {name: tensor.clone() for name, tensor in trainer.policy.model.state_dict().items()}
    trainer.accumulate([batch_of(policy.prompts, [each.token_ids for each in answers])], likelihood)
    trainer.apply(1.0)
    changed = {name for name, tensor in trainer.policy.model.state_dict().items() if not tensor.equal(before[name])}
    # Qwen2.5-Omni has an embedding that nothing uses.
    assert set(before) - changed <= {"audio_tower.audio_bos_eos_token.weight"}
    assert_agrees(trainer, policy, generations(policy, 2, lambda: trainer.publish(1)))
    trainer.close()


def test_rows_of_text_are_what_they_are_without_media_beside_them(policy: Policy, trainer: TorchTrainer) -> None:
    answers = [[100 + row % 7] * (1 + row % 3) for row in range(GROUP * len(policy.prompts))]
    batch = batch_of(policy.prompts, answers)
    text = np.flatnonzero([int(group) not in batch.media for group in batch.table.groups])
    ones = np.ones(len(text), np.int64)
    alone = logprobs(trainer, MicroBatch(batch.table.select(text), ones, ones))
    among = np.concatenate([trainer.forward([batch], frozenset({"logprobs"}))["logprobs"][row] for row in text])
    among = among[batch.table.select(text)["loss_mask"].values.astype(bool)]
    np.testing.assert_allclose(alone, among, rtol=1e-6, atol=1e-6)


def test_layouts_give_the_same_gradient(policy: Policy) -> None:
    answers = [[100 + row % 7, 50 + row % 5] for row in range(4 * len(policy.prompts))]
    gradients = []
    for layout in LAYOUTS.values():
        trainer = policy.trainer(**layout)
        trainer.accumulate([batch_of(policy.prompts, answers)], likelihood)
        named = trainer.policy.model.named_parameters()
        gradients.append({name: each.grad.clone() for name, each in named if each.grad is not None})
        trainer.close()
    parts = {part_of(name) for name, gradient in gradients[0].items() if gradient.norm() > 0}
    assert parts == {part_of(name) for name in gradients[0]}
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            np.testing.assert_allclose(other[name], gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max() + 1e-6)


def test_a_tower_sees_what_a_group_shares_once(policy: Policy) -> None:
    seen: dict[str, int] = {}
    prompts = policy.prompts[1:]
    batch = batch_of(prompts, [[100 + row % 7] for row in range(GROUP * len(prompts))])
    for sharing, times in ((True, 1), (False, GROUP)):
        trainer = policy.trainer(share_prompts=sharing)
        tower = next(each for name, each in trainer.policy.model.named_modules() if name.endswith("visual"))
        tower.register_forward_pre_hook(
            lambda _, inputs: seen.update(
                calls=seen.get("calls", 0) + 1, patches=seen.get("patches", 0) + len(inputs[0])
            )
        )
        trainer.forward([batch], frozenset({"logprobs"}))
        media = [each for prompt in prompts for each in prompt.media if each.kind != "audio"]
        kinds = len({each.kind for each in media})
        assert seen.pop("calls") == kinds
        assert seen.pop("patches") == times * sum(len(each.arrays["patches"]) for each in media)
        trainer.close()


def test_rows_that_are_not_fed_bring_no_media(policy: Policy, trainer: TorchTrainer) -> None:
    """Those without a trainable token; and media behind the last one of a row."""
    prompts = policy.prompts
    batch = batch_of(prompts, [[100 + row % 7] for row in range(2 * len(prompts))])
    expected = logprobs(trainer, batch)
    masks = batch.table["loss_mask"]
    silenced = masks.values.copy()
    kept = np.ones(len(expected), bool)
    for row in (2, 3, 5):
        silenced[masks.offsets[row] : masks.offsets[row + 1]] = False
        kept[row] = False
    table = batch.table.with_column(replace(masks, values=silenced))
    np.testing.assert_allclose(logprobs(trainer, replace(batch, table=table)), expected[kept], rtol=1e-5, atol=1e-5)


def test_placeholders_are_no_answers(policy: Policy, trainer: TorchTrainer) -> None:
    batch = batch_of(policy.prompts[1:2], [[100, 101]])
    bias = 1e4 * torch.isin(torch.arange(266), torch.as_tensor([each.placeholder for each in policy.tokens.values()]))
    head = trainer.policy.model.get_output_embeddings()
    expected = trainer.forward([batch], frozenset({"logprobs", "entropy"}))
    head.bias = torch.nn.Parameter(bias.float(), requires_grad=False)
    for chunk in (None, 1):
        trainer.policy.outputs.chunk_tokens = chunk
        for name, column in trainer.forward([batch], frozenset({"logprobs", "entropy"})).items():
            np.testing.assert_allclose(column.values, expected[name].values, rtol=1e-6, atol=1e-6)
    head.bias = None
    with pytest.raises(TrainingError, match="placeholder of a medium is marked as trainable"):
        logprobs(trainer, batch_of(policy.prompts[:1], [[policy.tokens["image"].placeholder]]))


def test_placeholders_that_are_not_those_of_the_media_name_their_row(policy: Policy, trainer: TorchTrainer) -> None:
    batch = batch_of(policy.prompts[:2], [[100], [101]])
    two: dict[int, Sequence[Encoded]] = {1: [*batch.media[1], *batch.media[1]]}
    for media in ({}, two, {0: batch.media[1], 1: batch.media[1]}):
        with pytest.raises(TrainingError, match=r"row \d of group \d: .* placeholders among the tokens"):
            logprobs(trainer, replace(batch, media=media))


def test_a_model_of_text_takes_no_media(policy: Policy, tiny_model_path: Path) -> None:
    trainer = replace(policy, context=replace(policy.context, model=ModelSource(tiny_model_path))).trainer()
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM takes no media"):
        logprobs(trainer, batch_of(policy.prompts[:2], [[100], [101]]))
    trainer.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("part", ["vision_tower", "vision_projection", "language_model"])
def test_frozen_parts_keep_every_bit(policy: Policy, part: str, dtype: str) -> None:
    source = replace(policy.context.model or ModelSource(Path()), dtype=dtype)
    trainer = replace(policy, context=replace(policy.context, model=source)).trainer(freeze=[part], weight_decay=0.1)
    batch = batch_of(policy.prompts, [[100 + row % 7] for row in range(2 * len(policy.prompts))])
    before = trainer.publish(0).manifest.tensors
    trainer.accumulate([batch], likelihood)
    text = batch_of(policy.prompts[:1], [[100], [101]])
    trainer.accumulate([text], likelihood)
    assert trainer.apply(1.0)["skipped"] == 0
    after = trainer.publish(1).manifest.tensors
    same = {part_of(name) for name in before if before[name].checksum == after[name].checksum}
    changed = {part_of(name) for name in before if before[name].checksum != after[name].checksum}
    assert part in same
    assert changed == {part_of(name) for name in before} - {part}
    trainer.close()


def test_parts_that_a_model_has_not_are_not_frozen(policy: Policy) -> None:
    parts = ["vision_tower", "vision_projection", "language_model"]
    if "audio" not in policy.tokens:
        with pytest.raises(
            ConfigError, match=r"trainer\.freeze: .* has no 'audio_tower'; did you mean 'vision_tower'\?"
        ):
            policy.trainer(freeze=["audio_tower"])
        with pytest.raises(ConfigError, match=r"trainer\.freeze: nothing of .* is left to train"):
            policy.trainer(freeze=parts)
