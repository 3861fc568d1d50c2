import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from relax_core.trainers.support import Support
from relax_core.trainers.torch.logprobs import Sampling, logprobs_from_hidden, logprobs_from_logits


def problem(
    seed: int, count: int, vocabulary: int, bias: bool, restricted: bool, temperature: float
) -> tuple[Tensor, nn.Linear, Sampling]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 6, generator=generator, dtype=torch.float32)
    head = nn.Linear(6, vocabulary, bias=bias)
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=2.0, generator=generator)
    targets = torch.randint(vocabulary, (count,), generator=generator)
    return (
        hidden,
        head,
        Sampling(targets, temperature, random_support(seed, targets, vocabulary) if restricted else None),
    )


def random_support(seed: int, targets: Tensor, vocabulary: int) -> Support:
    allowed = torch.rand(len(targets), vocabulary, generator=torch.Generator().manual_seed(seed + 1)) < 0.5
    allowed[torch.arange(len(targets)), targets] = True
    owners, ids = allowed.nonzero(as_tuple=True)
    return Support(owners, ids, np.concatenate([[0], np.cumsum(allowed.sum(1).numpy())]))


def gradients(outputs: tuple[Tensor, Tensor], weights: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    logprobs, entropy = outputs
    return torch.autograd.grad((logprobs * weights[0] + entropy * weights[1]).sum(), inputs)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**20),
    count=st.integers(1, 9),
    vocabulary=st.integers(2, 40),
    bias=st.booleans(),
    restricted=st.booleans(),
    temperature=st.sampled_from([0.5, 1.0, 1.3]),
    chunk=st.sampled_from([None, 0, 1, 2, 4]),
)
def test_chunks_are_the_plain_formula_and_its_gradient(
    seed: int, count: int, vocabulary: int, bias: bool, restricted: bool, temperature: float, chunk: int | None
) -> None:
    hidden, head, sampling = problem(seed, count, vocabulary, bias, restricted, temperature)
    hidden.requires_grad_()
    inputs = [hidden, *head.parameters()]
    expected = logprobs_from_logits(head(hidden), sampling)
    actual = logprobs_from_hidden(hidden, head, sampling, chunk)
    weights = torch.randn(2, count, generator=torch.Generator().manual_seed(seed))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    for which in (weights, weights * torch.tensor([[1.0], [0.0]]), weights * torch.tensor([[0.0], [1.0]])):
        chunked = gradients(logprobs_from_hidden(hidden, head, sampling, chunk), which, inputs)
        plain = gradients(logprobs_from_logits(head(hidden), sampling), which, inputs)
        for one, other in zip(chunked, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_one_output_alone_has_its_gradient() -> None:
    hidden, head, sampling = problem(3, 5, 11, True, False, 0.7)
    hidden.requires_grad_()
    for index in (0, 1):
        actual = torch.autograd.grad(logprobs_from_hidden(hidden, head, sampling, 2)[index].sum(), hidden)
        expected = torch.autograd.grad(logprobs_from_logits(head(hidden), sampling)[index].sum(), hidden)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_entropy_of_a_restricted_softmax_is_over_its_support() -> None:
    hidden, head, sampling = problem(0, 4, 20, False, False, 1.0)
    one_each = Support(torch.arange(4), sampling.targets, np.arange(5))
    logprobs, entropy = logprobs_from_hidden(hidden, head, Sampling(sampling.targets, 1.0, one_each), 0)
    assert torch.equal(logprobs, torch.zeros(4)) and torch.equal(entropy, torch.zeros(4))


def test_huge_logits_stay_finite() -> None:
    hidden, head, sampling = problem(0, 4, 20, False, True, 0.1)
    hidden = (hidden * 1e4).requires_grad_()
    logprobs, entropy = logprobs_from_hidden(hidden, head, sampling, 3)
    (logprobs.sum() + 1e6 * entropy.sum()).backward()
    assert (
        logprobs.isfinite().all() and (entropy >= 0).all() and hidden.grad is not None and hidden.grad.isfinite().all()
    )


def test_bfloat16_states_give_float32_outputs() -> None:
    hidden, head, sampling = problem(1, 64, 33, True, False, 1.0)
    exact = logprobs_from_hidden(hidden, head, sampling, 0)[0]
    rounded = logprobs_from_hidden(hidden.bfloat16(), head.bfloat16(), sampling, 7)[0]
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.2)


def test_chunks_keep_no_logits_for_the_backward_pass() -> None:
    hidden, head, sampling = problem(1, 64, 500, False, False, 1.0)
    hidden.requires_grad_()
    kept: list[int] = []

    def remember(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(remember, lambda tensor: tensor):
        logprobs_from_hidden(hidden, head, sampling, 8)
    assert max(kept) < 64 * 500
