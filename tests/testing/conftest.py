"""Which rules of a contract suite something breaks."""

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any

import pytest

Broken = dict[str, str]
"""What went wrong first, by rule: ``AssertionError`` with the rule's message, or what the subject itself raised."""
DEADLINE = 120.0
FindBroken = Callable[..., Broken]


@pytest.fixture
def broken_rules() -> FindBroken:
    """``broken_rules(contract, fixtures, leave_out)``: tries all rules, each with every set of its parameters.

    ``fixtures`` gives by name what makes a fixture's value, anew for each try.
    """

    def find(contract: type, fixtures: dict[str, Callable[[], Any]], leave_out: Collection[str] = ()) -> Broken:
        broken = {}
        for name, rule in inspect.getmembers(contract, inspect.isfunction):
            if name.startswith("test_") and name not in leave_out:
                problem = _first_problem(contract(), rule, fixtures)
                if problem is not None:
                    broken[name] = problem
        return broken

    return find


def _first_problem(contract: Any, rule: Any, fixtures: dict[str, Callable[[], Any]]) -> str | None:
    for parameters in _parameters(rule):
        wanted = [name for name in inspect.signature(rule).parameters if name != "self" and name not in parameters]
        try:
            ended = rule(contract, **{name: fixtures[name]() for name in wanted}, **parameters)
            if inspect.isawaitable(ended):
                asyncio.run(_within(ended))
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception) as error:
            return f"{type(error).__name__}: {error}"
    return None


async def _within(rule: Awaitable[None]) -> None:
    async with asyncio.timeout(DEADLINE):
        await rule


def _parameters(rule: Any) -> Iterator[dict[str, Any]]:
    """Every set of parameters that pytest would give to a rule."""
    marks = [mark for mark in getattr(rule, "pytestmark", ()) if mark.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        yield dict(zip((mark.args[0] for mark in marks), values, strict=True))
