import pytest

from relax_core.api.errors import RewardError
from relax_core.rewards.choice import ChoiceReward
from relax_core.rewards.config import ChoiceRewardConfig
from relax_core.testing.reward import RewardContract


class TestChoiceContract(RewardContract):
    @pytest.fixture
    def reward(self, context):
        return ChoiceReward(ChoiceRewardConfig(), context)

    @pytest.fixture
    def samples(self, make_sample):
        return [make_sample("The answer is (C).", "C"), make_sample("B", "C"), make_sample("no idea", "C")]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is (C)", "C"),
        ("the correct answer is option B, not D", "B"),
        ("Answer: **D**", "D"),
        ("Answer: $\\boxed{B}$", "B"),
        ("I think A. So \\boxed{\\text{C}} it is, though the answer is D looks good", "C"),
        ("First the answer is A. No: the answer is B. A would be wrong.", "B"),
        ("A or C? Rather C", "C"),
        ("Certainly. DNA has four bases", None),
        ("answer is E", None),
        ("", None),
    ],
)
def test_the_letter_that_a_text_settles_on(context, text, letter):
    assert ChoiceReward(ChoiceRewardConfig(), context).chosen(text) == letter


@pytest.mark.parametrize("label", ["B", " B ", 1, "iron"])
async def test_label_as_letter_index_or_text(context, make_sample, label):
    reward = ChoiceReward(ChoiceRewardConfig(), context)
    samples = [make_sample(f"Answer: {letter}", label, choices=["gold", "iron", "tin"]) for letter in "AB"]
    assert [score.value for score in await reward.score(samples)] == [0, 1]


@pytest.mark.parametrize("label", [None, "E", 4, -1, "lead", True])
async def test_a_label_that_is_no_choice_names_the_task(context, make_sample, label):
    reward = ChoiceReward(ChoiceRewardConfig(), context)
    with pytest.raises(RewardError, match="task 7"):
        await reward.score([make_sample("A", label, choices=["gold", "iron"])])


def test_letters_are_checked():
    for letters in ("A", "AA", "ab", "A1", "A-Z"):
        with pytest.raises(ValueError, match="letters"):
            ChoiceRewardConfig(letters=letters)
