"""What the torch engine answers where models see and hear is what transformers computes."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import Capability, GenerateRequest, Generation, SamplingParameters
from relax_core.api.errors import ConfigError, RelaxError
from relax_core.api.media import Encoded, Kind, Prompt
from relax_core.api.rows import StopReason
from relax_core.engines.torch import batch
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.decoder import Decoder
from relax_core.engines.torch.engine import TorchEngine
from relax_core.models.load import load_language_model
from relax_core.models.media_tokens import MediaTokens, media_tokens
from relax_core.testing.models import TINY_MEDIA, telling_media_model
from relax_core.testing.random_media import TYPE_IDS, RandomMedia, example_prompts

NEW_TOKENS = 6
MARKS = (259, 260, 263, 264)
"""transformers looks for media behind those that a policy draws, so that most answers here end with one."""
END = 258


@dataclass(frozen=True)
class Reference:
    """A model in transformers itself, with media for it.

    Args:
        source: Its folder.
        network: The model.
        tokens: Its own, by kind.
        encoder: Makes media.
    """

    source: ModelSource
    network: Any
    tokens: Mapping[Kind, MediaTokens]
    encoder: RandomMedia

    @property
    def context(self) -> Context:
        return Context("test", 0, self.source.path, self.source, encoders=(self.encoder,))

    def inputs(self, prompt: Prompt, answer: Sequence[int] = ()) -> dict[str, Tensor]:
        """What a processor of transformers would hand to the model."""
        ids = torch.tensor([[*prompt.token_ids, *answer]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if prompt.media:
            inputs |= self.encoder.inputs(prompt.media, "cpu")
            types = sum((ids == self.tokens[kind].placeholder) * TYPE_IDS[kind] for kind in self.tokens)
            inputs |= {} if "audio" in self.tokens else {"mm_token_type_ids": types}
        if self.network.config.model_type == "qwen3_vl":
            inputs.pop("second_per_grid_ts", None)
        return inputs

    def logits(self, prompt: Prompt, answer: Sequence[int]) -> Tensor:
        """float32 ``[answer, vocabulary]``, of the tokens of an answer; placeholders are out of the question."""
        with torch.no_grad():
            logits = self.network(**self.inputs(prompt, answer[:-1])).logits[0, len(prompt.token_ids) - 1 :]
        return logits.index_fill(-1, torch.tensor([each.placeholder for each in self.tokens.values()]), -torch.inf)

    def logprobs(self, prompt: Prompt, answer: Sequence[int]) -> Tensor:
        """float32 ``[answer]``."""
        chosen = torch.tensor(answer)[:, None]
        return self.logits(prompt, answer).log_softmax(-1).gather(-1, chosen)[:, 0]


@pytest.fixture(scope="module", params=TINY_MEDIA)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    source = ModelSource(telling_media_model(tmp_path_factory.mktemp(request.param), request.param))
    network = load_language_model(source).eval()
    return Reference(source, network, media_tokens(source), RandomMedia(network.config))


@pytest.fixture
async def engine(reference: Reference) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(TorchEngineConfig(), reference.context)
    await engine.start()
    yield engine
    await engine.close()


def request(key: str, prompt: Prompt, seed: int = 0, **sampling: Any) -> GenerateRequest:
    parameters = SamplingParameters(**{"max_new_tokens": NEW_TOKENS, "stop_token_ids": MARKS, **sampling})
    return GenerateRequest(key, prompt.token_ids, parameters, seed, media=tuple(prompt.media))


async def generate(engine: TorchEngine, requests: Sequence[GenerateRequest]) -> list[Generation]:
    return list(await asyncio.gather(*map(engine.generate, requests)))


async def test_logprobs_are_those_of_transformers(engine: TorchEngine, reference: Reference) -> None:
    """In one batch, and rows of text alone are what they are without the others."""
    prompts = example_prompts(reference.encoder, reference.tokens)
    requests = [request(f"{name} {seed}", prompts[name], seed) for name in prompts for seed in range(2)]
    generations = await generate(engine, requests)
    for asked, generation in zip(requests, generations, strict=True):
        expected = reference.logprobs(Prompt(asked.prompt_ids, asked.media), generation.token_ids)
        np.testing.assert_allclose(generation.logprobs, expected, atol=1e-5, err_msg=asked.key)
    alone = await generate(engine, [each for each in requests if not each.media])
    for generation in alone:
        among = next(each for each in generations if each.key == generation.key)
        assert generation.token_ids == among.token_ids
        np.testing.assert_allclose(generation.logprobs, among.logprobs, rtol=1e-6, atol=1e-6)


async def test_greedy_answers_are_those_of_transformers(engine: TorchEngine, reference: Reference) -> None:
    prompts = example_prompts(reference.encoder, reference.tokens)
    banned = [each.placeholder for each in reference.tokens.values()]
    generations = await generate(engine, [request(name, prompts[name], temperature=0) for name in prompts])
    for generation in generations:
        prompt = prompts[generation.key]
        settings = {
            "max_new_tokens": NEW_TOKENS,
            "do_sample": False,
            "suppress_tokens": banned,
            "eos_token_id": [END, *MARKS],
        }
        answer = reference.network.generate(**reference.inputs(prompt), **settings)[0, len(prompt.token_ids) :]
        assert list(generation.token_ids) == answer.tolist(), generation.key


async def test_answers_tell_media_apart(engine: TorchEngine, reference: Reference) -> None:
    prompt = example_prompts(reference.encoder, reference.tokens)["image"]
    (answer,) = await generate(engine, [request("a", prompt)])
    for other in (reference.encoder.image(99), reference.encoder.image(1, 6, 4)):
        changed = reference.logprobs(Prompt(prompt.token_ids, (other,)), answer.token_ids).numpy()
        assert np.abs(changed - answer.logprobs).max() > 1e-2, "what is seen, and its shape, show in every answer"


async def test_a_group_shares_its_media_and_others_do_not(
    engine: TorchEngine, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefills: list[tuple[int, list[Sequence[Encoded]]]] = []

    class Recorded(Decoder):
        def add(self, sequences: Any, media: Any = None) -> list[int]:
            prefills.append((len(sequences), list(media.values())))
            return super().add(sequences, media)

    monkeypatch.setattr(batch, "Decoder", Recorded)
    prompt = example_prompts(reference.encoder, reference.tokens)["image"]
    other = Prompt(prompt.token_ids, (reference.encoder.image(99),))
    requests = [request(f"{each}", prompt, each) for each in range(8)] + [request("other", other)]
    generations = await generate(engine, requests)
    assert prefills[0] == (2, [(prompt.media[0],), (other.media[0],)])
    for asked, generation in zip(requests, generations, strict=True):
        expected = reference.logprobs(Prompt(asked.prompt_ids, asked.media), generation.token_ids)
        np.testing.assert_allclose(generation.logprobs, expected, atol=1e-5)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, {"top_k": 5}, {"top_p": 0.9999}, {"temperature": 0.1}])
async def test_no_placeholder_is_ever_drawn(
    engine: TorchEngine, reference: Reference, sampling: Mapping[str, Any]
) -> None:
    """Though the model is sure of them, of text alone too."""
    model = engine._model
    assert model is not None
    placeholders = [each.placeholder for each in reference.tokens.values()]
    kept = model.network.get_output_embeddings().register_forward_hook(
        lambda _, __, logits: logits.index_fill(-1, torch.tensor(placeholders), 1e4)
    )
    prompts = example_prompts(reference.encoder, reference.tokens)
    requests = [request(f"{name} {seed}", prompts[name], seed, **sampling) for name in prompts for seed in range(3)]
    generations = await generate(engine, requests)
    kept.remove()
    for asked, generation in zip(requests, generations, strict=True):
        assert not set(generation.token_ids) & set(placeholders)
        if not sampling:
            expected = reference.logprobs(Prompt(asked.prompt_ids, asked.media), generation.token_ids)
            np.testing.assert_allclose(generation.logprobs, expected, atol=1e-5)


async def test_an_aborted_request_goes_on_with_its_media(engine: TorchEngine, reference: Reference) -> None:
    prompt = example_prompts(reference.encoder, reference.tokens)["two images"]
    whole = request("whole", prompt, 7)
    (expected,) = await generate(engine, [whole])
    first = replace(whole, key="first", sampling=replace(whole.sampling, max_new_tokens=2))
    (begun,) = await generate(engine, [first])
    assert begun.stop_reason is StopReason.LENGTH
    rest = replace(
        whole,
        key="rest",
        prompt_ids=(*whole.prompt_ids, *begun.token_ids),
        generated=2,
        sampling=replace(whole.sampling, max_new_tokens=NEW_TOKENS - 2),
    )
    (ended,) = await generate(engine, [rest])
    assert (*begun.token_ids, *ended.token_ids) == expected.token_ids
    np.testing.assert_allclose([*begun.logprobs, *ended.logprobs], expected.logprobs, atol=1e-5)


async def test_marks_that_a_policy_draws_begin_nothing(engine: TorchEngine, reference: Reference) -> None:
    """transformers would look for media behind them."""
    prompt = example_prompts(reference.encoder, reference.tokens)["image"]
    marks = [index for each in reference.tokens.values() for index in (*each.before, *each.after)]
    going_on = request("marks", Prompt((*prompt.token_ids, *marks, *marks), prompt.media))
    (generation,) = await generate(engine, [replace(going_on, generated=2 * len(marks))])
    assert generation.token_ids


async def test_placeholders_that_are_not_those_of_the_media_are_refused(
    engine: TorchEngine, reference: Reference
) -> None:
    prompt = example_prompts(reference.encoder, reference.tokens)["image"]
    for ids, media in (
        (prompt.token_ids, ()),
        (prompt.token_ids, (*prompt.media, *prompt.media)),
        ((*prompt.token_ids, reference.tokens["image"].placeholder), prompt.media),
        (prompt.token_ids, (reference.encoder.video(1, 1, 4, 6),)),
    ):
        with pytest.raises(RelaxError, match=r"request 'odd': .*placeholders among the tokens"):
            await engine.generate(request("odd", Prompt(ids, media)))


async def test_media_need_an_encoder_and_a_model(reference: Reference, tiny_model_path: Path) -> None:
    prompt = example_prompts(reference.encoder, reference.tokens)["image"]
    without = replace(reference.context, encoders=())
    of_text = replace(reference.context, model=ModelSource(tiny_model_path))
    for context in (without, of_text):
        engine = TorchEngine(TorchEngineConfig(), context)
        await engine.start()
        assert Capability.MEDIA not in engine.capabilities
        with pytest.raises(RelaxError, match="request 'seen': media need the capability 'media'"):
            await engine.generate(request("seen", prompt))
        await engine.close()
    with pytest.raises(ConfigError, match=r"engine.deterministic: not possible: what a model sees or hears"):
        await TorchEngine(TorchEngineConfig(deterministic=True), reference.context).start()
