import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.context import Context
from relax_core.datasets.config import GeneratedDatasetConfig
from relax_core.datasets.generated import GeneratedDataset
from relax_core.testing.dataset import DatasetContract


class TestGeneratedContract(DatasetContract):
    @pytest.fixture
    def build(self, context):
        return lambda: GeneratedDataset(GeneratedDatasetConfig(), context)

    @pytest.fixture
    def other(self, context):
        return GeneratedDataset(GeneratedDatasetConfig(split_seed=1), context)


def solve(task, prompt):
    """The label, found from the prompt alone."""
    question = prompt.removesuffix("=")
    if task == "add":
        return str(sum(map(int, question.split("+"))))
    return "".join(sorted(question) if task == "sort_digits" else reversed(question))


@given(
    task=st.sampled_from(["sort_digits", "reverse", "add"]),
    digits=st.integers(1, 3),
    heldout=st.integers(1, 9),
    split_seed=st.integers(0, 99),
    data=st.data(),
)
def test_splits_share_no_prompt_and_labels_are_right(tmp_path_factory, task, digits, heldout, split_seed, data):
    digits = min(digits, 1 if task == "add" else 3)
    settings = {"task": task, "digits": digits, "heldout": heldout, "split_seed": split_seed}
    context = Context("run", data.draw(st.integers(0, 9)), tmp_path_factory.getbasetemp())
    train, held = (
        [dataset[index] for index in range(len(dataset))]
        for dataset in (
            GeneratedDataset(GeneratedDatasetConfig(split=split, **settings), context) for split in ("train", "heldout")
        )
    )
    prompts = [item.prompt for item in train + held]
    assert len(held) == heldout
    assert len(set(prompts)) == len(prompts) == GeneratedDatasetConfig(**settings).space
    assert all(item.label == solve(task, item.prompt) for item in train + held)


def test_size_takes_the_first_and_all_digits_are_written(context):
    whole = GeneratedDataset(GeneratedDatasetConfig(), context)
    part = GeneratedDataset(GeneratedDatasetConfig(size=5), context)
    assert len(whole) == 9800
    assert [part[index] for index in range(len(part))] == [whole[index] for index in range(5)]
    assert {len(whole[index].prompt) for index in range(len(whole))} == {5}
    assert part.fingerprint != whole.fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"digits": 7}, "digits: 7 makes 10000000 tasks of sort_digits"),
        ({"task": "add", "digits": 4}, "digits: 4 makes 100000000 tasks of add"),
        ({"digits": 1}, "heldout: 200 is more than the 10 tasks"),
        ({"digits": 1, "heldout": 10}, "heldout: 10 of 10 tasks leaves none for split 'train'"),
        ({"heldout": 0, "split": "heldout"}, "heldout: 0 of 10000 tasks leaves none for split 'heldout'"),
        ({"size": 9801}, "size: 9801 is more than the 9800 tasks of split 'train'"),
    ],
)
def test_what_does_not_fit_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GeneratedDatasetConfig(**settings)
