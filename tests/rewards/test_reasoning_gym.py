import pytest

from relax_core.api.errors import PluginError, RewardError
from relax_core.api.rows import Sample, StopReason
from relax_core.datasets.config import ReasoningGymDatasetConfig
from relax_core.datasets.reasoning_gym import ReasoningGymDataset
from relax_core.rewards.config import ReasoningGymRewardConfig
from relax_core.rewards.reasoning_gym import ReasoningGymReward, _source, load_scorer
from relax_core.testing.reward import RewardContract


def answers(context, texts, task="chain_sum", **options):
    pytest.importorskip("reasoning_gym")
    task = ReasoningGymDataset(ReasoningGymDatasetConfig(task=task, size=3, options=options), context)[1]
    return [Sample(task, text.format(label=task.label), [], StopReason.STOP) for text in texts]


@pytest.mark.slow
class TestReasoningGymContract(RewardContract):
    @pytest.fixture
    def reward(self, context):
        return ReasoningGymReward(ReasoningGymRewardConfig(), context)

    @pytest.fixture
    def samples(self, context):
        return answers(context, ["{label}", "no idea"], max_terms=3)


@pytest.mark.parametrize("task", ["arc_agi", "countdown", "decimal_arithmetic", "word_ladder"])
def test_the_dataset_s_own_answers_score_one_even_where_entries_are_no_json(context, task):
    pytest.importorskip("reasoning_gym")
    [sample] = answers(context, ["{label}"], task)
    assert load_scorer(None)(_source(sample), sample.text) == (1.0, True)


def test_extract_takes_the_last_match_and_its_first_group(context):
    [right, wrong, none] = answers(context, ["<a>0</a> <a>{label}</a>", "<a>{label}</a> <a>no</a>", "{label}"])
    score = load_scorer("<a>(.*?)</a>")
    source = _source(right)
    assert score(source, right.text) == (1.0, True)
    assert score(source, wrong.text)[0] < 1
    assert score(source, none.text) == (0.0, False)


async def test_tasks_of_another_dataset_are_refused(context, make_sample):
    reward = ReasoningGymReward(ReasoningGymRewardConfig(), context)
    for metadata in ({}, {"reasoning_gym": {"task": "chain_sum"}}):
        with pytest.raises(RewardError, match=r"task 7: metadata\.reasoning_gym is"):
            await reward.score([make_sample("1", "1", **metadata)])


async def test_without_the_extra_it_says_what_to_install(context, monkeypatch):
    monkeypatch.setattr("relax_core.rewards.reasoning_gym.find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r'pip install "relax-core\[tasks\]"'):
        await ReasoningGymReward(ReasoningGymRewardConfig(), context).start()


def test_extract_must_be_a_regular_expression():
    with pytest.raises(ValueError, match=r"extract: '\(a' is not a regular expression"):
        ReasoningGymRewardConfig(extract="(a")
