import pytest

from relax_core.api.errors import ConfigError, PluginError
from relax_core.datasets.config import ReasoningGymDatasetConfig
from relax_core.datasets.reasoning_gym import ReasoningGymDataset
from relax_core.testing.dataset import DatasetContract


@pytest.fixture
def make(context):
    pytest.importorskip("reasoning_gym")

    def make(task="chain_sum", **settings):
        return ReasoningGymDataset(ReasoningGymDatasetConfig(task=task, **settings), context)

    return make


class TestReasoningGymContract(DatasetContract):
    @pytest.fixture
    def build(self, make):
        return lambda: make(size=10)

    @pytest.fixture
    def other(self, make):
        return make(size=10, seed=1)


def test_options_reach_the_task_and_the_metadata(make):
    dataset = make(size=3, options={"min_terms": 6, "max_terms": 6, "allow_negation": False})
    task = dataset[2]
    assert len(dataset) == 3
    assert sum(task.prompt.count(sign) for sign in "+-") == 5
    assert str(eval(task.prompt.split(":")[-1].replace("=", "").strip())) == task.label
    assert task.metadata["reasoning_gym"]["index"] == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "chain_sums"}, "reasoning-gym has no task 'chain_sums'; did you mean 'chain_sum'?"),
        ({"options": {"max_term": 3}}, "chain_sum has no option 'max_term'; did you mean 'max_terms'?"),
        ({"options": {"min_terms": 5, "max_terms": 2}}, "chain_sum refuses"),
        ({"options": {"min_terms": "five"}}, "chain_sum refuses"),
    ],
)
def test_wrong_settings_are_named(make, settings, message):
    with pytest.raises(ConfigError) as error:
        make(**settings)
    assert message in str(error.value)


@pytest.mark.parametrize("option", ["seed", "size"])
def test_seed_and_size_are_no_options(option):
    with pytest.raises(ValueError, match=f"options: {option!r} is a key of its own"):
        ReasoningGymDatasetConfig(task="chain_sum", options={option: 1})


def test_without_the_extra_it_says_what_to_install(context, monkeypatch):
    monkeypatch.setattr("relax_core.datasets.reasoning_gym.find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r'pip install "relax-core\[tasks\]"'):
        ReasoningGymDataset(ReasoningGymDatasetConfig(task="chain_sum"), context)
