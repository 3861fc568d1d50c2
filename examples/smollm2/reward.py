"""Reward of arithmetic.yaml: is the answer written as asked, and is it right?"""

import re

ANSWER = re.compile(r"<answer>\s*(-?\d+)\s*</answer>")
RIGHT = 1.0
FORMAT = 0.5
"""Worth of the whole format, a quarter for each of its four parts, so that each step towards it pays."""


def score(response: str, label: str) -> dict[str, float]:
    """1.5 for a right answer in the wanted format; less for a part of it.

    Args:
        response: What the model wrote.
        label: The right number.
    """
    found = ANSWER.findall(response)
    parts = (
        response.count("<answer>") == 1,
        response.count("</answer>") == 1,
        len(found) == 1,
        response.rstrip().endswith("</answer>"),
    )
    form = sum(parts) / len(parts)
    right = float(len(found) == 1 and int(found[0]) == int(label))
    return {"reward": RIGHT * right + FORMAT * form, "right": right, "format": form}
