import pytest

from relax_core.api.errors import RewardError
from relax_core.rewards.config import FormatRewardConfig
from relax_core.rewards.format import FormatReward
from relax_core.testing.reward import RewardContract

GOOD = "<think>one\ntwo</think>\n<answer>3</answer>"


class TestFormatContract(RewardContract):
    @pytest.fixture
    def reward(self, context):
        return FormatReward(FormatRewardConfig(), context)

    @pytest.fixture
    def samples(self, make_sample):
        return [make_sample(GOOD), make_sample("3")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (GOOD, 1),
        (GOOD + "\n", 1),
        (f"well, {GOOD}", 0),
        (GOOD + " bye", 0),
        ("<think>a</think><think>b</think><answer>c</answer>", 0),
        ("<think>a<answer>c</answer>", 0),
    ],
)
async def test_default_is_think_then_answer_once(context, make_sample, text, value):
    [score] = await FormatReward(FormatRewardConfig(), context).score([make_sample(text)])
    assert score.value == value


async def test_a_pattern_that_explodes_is_stopped(context, make_sample):
    # Every way to split the a into ones and twos is tried before the c is found not to match.
    config = FormatRewardConfig(pattern="(?:a|aa)+", timeout_seconds=0.2)
    with pytest.raises(RewardError, match=r"task 7.*ran past 0\.2 s"):
        await FormatReward(config, context).score([make_sample("a" * 60 + "c")])


def test_a_bad_pattern_is_refused_with_its_place():
    with pytest.raises(ValueError, match=r"pattern: '\(a' is not a regular expression.*position"):
        FormatRewardConfig(pattern="(a")
