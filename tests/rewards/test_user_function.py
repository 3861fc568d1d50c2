"""The checks and conversions, without processes."""

import math
import sys
from fractions import Fraction

import pytest

from relax_core.api.errors import ConfigError, RewardError
from relax_core.rewards.user_function import load_user_function

OFFERED = {
    "prompt": "p",
    "response": "r",
    "label": 3,
    "metadata": {},
    "token_ids": [1],
    "stop_reason": "stop",
    "task_index": 7,
}


@pytest.fixture(autouse=True)
def restored_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.fixture
def load(tmp_path):
    def write_and_load(source, name="score"):
        path = tmp_path / "my_reward.py"
        path.write_text(source)
        return load_user_function(f"{path}:{name}")

    return write_and_load


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("label", (3.0, {})),
        ("True", (1.0, {})),
        ("None", (None, {})),
        ("__import__('numpy').float32(0.5)", (0.5, {})),
        ("__import__('fractions').Fraction(1, 2)", (float(Fraction(1, 2)), {})),
        ("{'reward': 1, 'length': 2}", (1.0, {"length": 2.0})),
        ("{'reward': None, 'length': 2}", (None, {"length": 2.0})),
    ],
)
def test_what_a_function_may_return(load, body, verdict):
    assert load(f"def score(response, label): return {body}")(OFFERED) == verdict


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("float('nan')", "returned nan, which is not a finite"),
        ("-float('inf')", "returned -inf"),
        ("'1'", "returned str;"),
        ("[1.0]", "returned list;"),
        ("{'rewards': 1}", "without 'reward'; did you mean 'rewards'?"),
        ("{'reward': 1, 'length': float('nan')}", "returned nan as 'length'"),
        ("{'reward': 1, 'length': None}", "returned None as 'length'"),
    ],
)
def test_what_it_may_not_return(load, body, message):
    with pytest.raises(RewardError) as error:
        load(f"def score(response): return {body}")(OFFERED)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def scores(response): return 1", "has no function 'score'; did you mean 'scores'?"),
        ("score = 1", "has no function 'score'"),
        ("def score(respons): return 1", "a parameter 'respons' that is not offered by name; did you mean 'response'?"),
        ("def score(response, /): return 1", "a parameter 'response' that is not offered by name"),
        ("async def score(response): return 1", "is async"),
        ("def score(response)\n    return 1", "my_reward.py:1: expected ':'"),
        ("x = 1\nraise OSError('no licence')", "raised OSError: no licence ("),
        ("import no_such_package", "raised ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_mistakes_are_found_at_start(load, source, message):
    with pytest.raises(ConfigError) as error:
        load(source)
    assert message in str(error.value)
    assert "my_reward.py" in str(error.value)


def test_defaults_and_keywords(load):
    assert load("def score(response, scale=2): return scale")(OFFERED) == (2, {})
    assert load("def score(*rest, **all): return all['task_index']")(OFFERED) == (7, {})


def test_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "reward.py").touch()
    with pytest.raises(ConfigError, match=r"there is no file .*rewards\.py; did you mean '.*/reward\.py'"):
        load_user_function(f"{tmp_path / 'rewards.py'}:score")


def test_module_reference_and_neighbours(load, tmp_path):
    (tmp_path / "neighbour.py").write_text("VALUE = 5")
    assert load("import neighbour\ndef score(): return neighbour.VALUE")(OFFERED) == (5, {})
    (tmp_path / "my_package.py").write_text("def score(label): return label")
    assert load_user_function("my_package:score")(OFFERED) == (3, {})
    with pytest.raises(ConfigError, match="no_such_package"):
        load_user_function("no_such_package.module:score")


def test_a_file_called_math_does_not_hide_the_module(tmp_path):
    (tmp_path / "math.py").write_text("import math\ndef score(): return math.pi")
    assert load_user_function(f"{tmp_path / 'math.py'}:score")(OFFERED) == (math.pi, {})
