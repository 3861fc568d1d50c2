"""Ranks of which some see and hear more than others, or nothing, make the updates of one."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from relax_core.api.context import Context, ModelSource
from relax_core.api.trainer import MicroBatch
from relax_core.models.load import load_language_model
from relax_core.models.media_tokens import media_tokens
from relax_core.testing.models import telling_media_model
from relax_core.testing.random_media import RandomMedia, example_prompts
from relax_core.testing.ranks import RANKS, TwoRanks
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer
from tests.trainers.test_torch_media import batch_of, likelihood

pytestmark = pytest.mark.slow

SPLITS: dict[str, list[list[list[int]]]] = {
    "one rank reads only": [[[0], []], [[1, 2, 3], [4, 0]]],
    "one rank has nothing": [[[], []], [[1], [4, 6]]],
    "all read": [[[0], [0]], [[0], []]],
}
"""By rank, prompts of each of its micro-batches."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return telling_media_model(tmp_path_factory.mktemp("model"), "qwen3_omni_moe_thinker")


@pytest.fixture(scope="module")
def ranks() -> Iterator[TwoRanks]:
    with TwoRanks() as ranks:
        yield ranks


def train(rank: int, size: int, folder: Path, split: list[list[int]], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights after two updates."""
    source = ModelSource(folder)
    encoder = RandomMedia(load_language_model(source).config)
    context = Context("test", 0, folder, source, rank=rank, world_size=size, encoders=(encoder,))
    trainer = TorchTrainer(TorchTrainerConfig(learning_rate=1e-3, epsilon=1e-3, weight_decay=0.1, **config), context)
    trainer.start()
    prompts = list(example_prompts(encoder, media_tokens(source)).values())
    batches: list[MicroBatch] = []
    for indices in split:
        chosen = [prompts[index] for index in indices] or prompts[:1]
        batch = batch_of(chosen, [[100 + row, 50] for row in range(2 * len(chosen))])
        if not indices:
            nothing = np.zeros(0, np.int64)
            batch = MicroBatch(batch.table.select(nothing), nothing, nothing)
        batches.append(batch)
    for _ in range(2):
        trainer.accumulate(batches, likelihood)
        trainer.apply(4.0)
    publication = trainer.publish(1)
    return {name: tensor.clone() for bucket in publication.buckets for name, tensor in bucket.items()}


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
@pytest.mark.parametrize("name", SPLITS)
def test_two_ranks_make_the_updates_of_one(ranks: TwoRanks, folder: Path, name: str, kind: str) -> None:
    split = SPLITS[name]
    first, _ = ranks.run(train_rank, folder, split, kind)
    alone = train(0, 1, folder, [part for rank in split for part in rank], {})
    assert first.keys() == alone.keys()
    for key, weight in alone.items():
        np.testing.assert_allclose(first[key], weight, rtol=1e-4, atol=1e-5, err_msg=key)


def train_rank(rank: int, folder: Path, split: list[list[list[int]]], kind: str) -> dict[str, Tensor]:
    return train(rank, RANKS, folder, split[rank], {"parallel": kind})
