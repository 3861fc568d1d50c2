"""A user's reward function: found, checked and called. Runs in worker processes, so it imports little."""

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from relax_core.api.errors import ConfigError, RewardError
from relax_core.rewards.processes import describe
from relax_core.suggestions import did_you_mean

PARAMETERS = ("prompt", "response", "label", "metadata", "token_ids", "stop_reason", "task_index")
"""What a function may ask for by name."""

Verdict = tuple[float | None, dict[str, float]]
"""Reward, ``None`` for an abstention, and named parts."""


def load_user_function(reference: str) -> Callable[[Mapping[str, Any]], Verdict]:
    """Imports ``file.py:name`` or ``package.module:name`` and returns it as a function of all ``PARAMETERS``.

    Raises:
        ConfigError: No such file, module or function; it does not import; it has a parameter that is not offered.
    """
    place, _, name = reference.rpartition(":")
    module = _import(place)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ConfigError(f"reward.function: {place} has no function {name!r}{did_you_mean(name, functions)}")
    wanted = _parameters(reference, function)
    return lambda offered: _verdict(function(**{key: offered[key] for key in wanted}))


def _import(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix != ".py":
        _importing(place, lambda: importlib.import_module(place))
        return sys.modules[place]
    if not path.is_file():
        siblings = [str(path.with_name(sibling.name)) for sibling in path.parent.glob("*.py")]
        raise ConfigError(f"reward.function: there is no file {place}{did_you_mean(place, siblings)}")
    sys.path.insert(0, str(path.parent.resolve()))  # as for a script: its neighbours can be imported
    # The prefix keeps a file called math.py from taking the place of the module it may import.
    spec = importlib.util.spec_from_file_location(f"relax_reward_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    execute = spec.loader.exec_module
    _importing(place, lambda: execute(module))
    return module


def _importing(place: str, load: Callable[[], object]) -> None:
    try:
        load()
    except SyntaxError as error:
        raise ConfigError(f"reward.function: {error.filename}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        raise ConfigError(f"reward.function: importing {place} {describe(error)}") from error


def _parameters(reference: str, function: Callable[..., Any]) -> tuple[str, ...]:
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"reward.function: {reference} is async; it runs in a process of its own, so use plain def")
    wanted = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return PARAMETERS
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.name in PARAMETERS and parameter.kind is not parameter.POSITIONAL_ONLY:
            wanted.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise ConfigError(
                f"reward.function: {reference} has a parameter {parameter.name!r} that is not offered by name"
                f"{did_you_mean(parameter.name, PARAMETERS)}; offered are {', '.join(PARAMETERS)}"
            )
    return tuple(wanted)


def _verdict(value: Any) -> Verdict:
    if not isinstance(value, Mapping):
        return _number("", value), {}
    if "reward" not in value:
        raise RewardError(f"returned a mapping without 'reward'{did_you_mean('reward', map(str, value))}")
    parts = {}
    for name, part in value.items():
        number = _number(f" as {name!r}", part)
        if name != "reward":
            if number is None:
                raise RewardError(f"returned None as {name!r}; only 'reward' may be None")
            parts[str(name)] = number
    return _number("", value["reward"]), parts


def _number(place: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, Real):
        raise RewardError(
            f"returned {type(value).__name__}{place}; a number, None to abstain, or a mapping with 'reward' is needed"
        )
    number = float(value)
    if not math.isfinite(number):
        raise RewardError(f"returned {number}{place}, which is not a finite number")
    return number
