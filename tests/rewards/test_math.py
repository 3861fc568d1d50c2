import pytest

from relax_core.api.errors import PluginError, RewardError
from relax_core.rewards.config import MathRewardConfig
from relax_core.rewards.math import MathReward
from relax_core.testing.reward import RewardContract


class TestMathContract(RewardContract):
    @pytest.fixture
    def reward(self, context):
        pytest.importorskip("math_verify")
        return MathReward(MathRewardConfig(workers=1), context)

    @pytest.fixture
    def samples(self, make_sample):
        return [make_sample("so it is \\boxed{0.5}", "1/2"), make_sample("so it is 3", "1/2")]


async def test_equal_formulas_bad_labels_and_formulas_without_end(context, counts, make_sample):
    pytest.importorskip("math_verify")
    reward = MathReward(MathRewardConfig(workers=1, timeout_seconds=3), context)
    await reward.start()
    try:
        samples = [
            make_sample("$\\boxed{(x+1)^2}$", "x^2+2x+1"),
            make_sample("the answer is 42", 42),
            make_sample("$\\frac{3}{2}$", "$1.5$"),
            make_sample("the answer is 41", 42),
            make_sample("I do not know", 42),
        ]
        scores = await reward.score(samples)
        assert [score.value for score in scores] == [1, 1, 1, 0, 0]
        assert [score.parts["parsed"] for score in scores] == [1, 1, 1, 1, 0]
        with pytest.raises(RewardError, match="task 7: math-verify cannot parse the label"):
            await reward.score([make_sample("42", "")])
        with pytest.raises(RewardError, match="task 7: ran past 3 s"):
            await reward.score([make_sample("$\\boxed{9^{9^{9^{9}}}-1}$", "7^{7^{7^7}}")])
        assert counts == {"reward/timed_out": 1}
        assert [score.value for score in await reward.score(samples[:1])] == [1]
    finally:
        await reward.close()


async def test_without_the_extra_it_says_what_to_install(context, monkeypatch):
    monkeypatch.setattr("relax_core.rewards.math.find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r'pip install "relax-core\[tasks\]"'):
        await MathReward(MathRewardConfig(), context).start()
