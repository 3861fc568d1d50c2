"""Mathematical equality by math-verify, in worker processes."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

from relax_core.api.context import Context
from relax_core.api.errors import PluginError, RewardError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score
from relax_core.rewards.config import MathRewardConfig
from relax_core.rewards.exact import label_text
from relax_core.rewards.processes import WorkerPool


class MathReward(Reward):
    """1 when the answer in the text equals the label, else 0; also 0 when the text has no answer to be parsed.

    Text and label may be LaTeX (``\\boxed{...}``, ``$...$``) or plain expressions. math-verify's own time limits are
    off: they need a main thread and turn a hang into "not equal". A formula that sympy does not finish is an error.

    Parts: ``parsed`` 1 when the text has an answer.
    """

    def __init__(self, config: MathRewardConfig, context: Context) -> None:
        self._pool = WorkerPool(load_verifier, (), config.workers, config.timeout_seconds, context.count)

    async def start(self) -> None:
        if find_spec("math_verify") is None:
            raise PluginError('reward math needs math-verify: pip install "relax-core[tasks]"')
        await self._pool.start()

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        calls = [(f"reward math, task {sample.task.index}:", (label_text(sample), sample.text)) for sample in samples]
        return [Score(float(equal), {"parsed": float(parsed)}) for equal, parsed in await self._pool.call_all(calls)]

    async def close(self) -> None:
        await self._pool.close()


def load_verifier() -> Callable[[str, str], tuple[bool, bool]]:
    """``(label, text) -> (equal, parsed)``, for a worker; imports sympy and builds math-verify's patterns.

    The function raises ``RewardError`` when the label cannot be parsed.
    """
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off

    def check(label: str, text: str) -> tuple[bool, bool]:
        marked = any(mark in label for mark in ("$", "\\boxed", "\\(", "\\["))
        gold = parse(label if marked else f"\\boxed{{{label}}}", fallback_mode="no_fallback", parsing_timeout=None)
        if not gold:
            raise RewardError(f"math-verify cannot parse the label {label!r}")
        answer = parse(text, parsing_timeout=None)
        return verify(gold, answer, timeout_seconds=None, raise_on_error=True), bool(answer)

    check("1", "$1$")
    return check
