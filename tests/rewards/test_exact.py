import pytest

from relax_core.api.errors import RewardError
from relax_core.api.rows import StopReason
from relax_core.rewards.config import ExactRewardConfig
from relax_core.rewards.exact import ExactReward
from relax_core.testing.reward import RewardContract


class TestExactContract(RewardContract):
    @pytest.fixture
    def reward(self, context):
        return ExactReward(ExactRewardConfig(), context)

    @pytest.fixture
    def samples(self, make_sample):
        return [make_sample("2379", "2379"), make_sample("7392", "2379")]


async def values(context, samples, **settings):
    return [score.value for score in await ExactReward(ExactRewardConfig(**settings), context).score(samples)]


async def test_white_space_counts_only_without_strip(context, make_sample):
    samples = [make_sample(" 42\n", "42"), make_sample("42", 42), make_sample("4 2", "42")]
    assert await values(context, samples) == [1, 1, 0]
    assert await values(context, samples, strip=False) == [0, 1, 0]


async def test_a_generation_cut_off_scores_zero_but_its_match_is_reported(context, make_sample):
    samples = [make_sample("42", "42", StopReason.LENGTH)]
    [score] = await ExactReward(ExactRewardConfig(), context).score(samples)
    assert score.value == 0
    assert score.parts == {"match": 1, "stopped": 0}
    assert await values(context, samples, require_stop=False) == [1]


@pytest.mark.parametrize("label", [None, ["42"], True])
async def test_a_label_that_is_no_text_names_the_task(context, make_sample, label):
    with pytest.raises(RewardError, match="task 7"):
        await values(context, [make_sample("42", label)])
