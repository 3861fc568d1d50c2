"""Checks what a plugin registers, in a process of its own: ``python -m relax_core.testing.import_check PLUGIN``.

Prints its findings as JSON lines. The order matters: first everything that must be light, then what may be heavy.
"""

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

from pydantic import BaseModel

from relax_core.api.errors import ConfigError, PluginError, RelaxError
from relax_core.component import Component
from relax_core.config.sections import SECTIONS
from relax_core.config.selection import config_class
from relax_core.hooks import section
from relax_core.registry import load_target, registry
from relax_core.suggestions import did_you_mean
from relax_core.testing.findings import Finding

HEAVY = frozenset({"torch", "transformers", "ray", "vllm", "sglang", "megatron", "tensorboard", "pyarrow"})
"""Packages that listing plugins and checking configurations must not import."""

BASES = {
    "trainers": "relax_core.api.trainer:Trainer",
    "engines": "relax_core.api.engine:Engine",
    "algorithms": "relax_core.api.algorithm:Algorithm",
    "transports": "relax_core.api.transport:Transport",
    "weight_syncs": "relax_core.api.weights:WeightSync",
    "sinks": "relax_core.api.sink:Sink",
    "rewards": "relax_core.api.reward:Reward",
    "datasets": "relax_core.api.dataset:Dataset",
    "encoders": "relax_core.api.encoder:Encoder",
}
"""The abstract class of each kind."""


def findings(name: str) -> Iterator[Finding]:
    """Everything about the plugin of this name, which is usable."""
    plugin = registry().plugin(name)
    yield _look(name, "loads without heavy packages", _stay_light)
    components = [(kind, component) for kind, found in plugin.components.items() for component in found]
    for kind, component in components:
        yield _look(title(kind, component), "configuration is light", partial(_configure_lightly, component))
    for kind, component in components:
        yield _look(title(kind, component), "configuration", partial(_check_config, kind, component))
        yield _look(title(kind, component), "class", partial(_check_class, kind, component))


def title(kind: str, component: Component) -> str:
    """How a component is called: ``algorithm grpo``."""
    return f"{section(kind)} {component.name}"


def _look(subject: str, check: str, work: Callable[[], None]) -> Finding:
    try:
        work()
    except RelaxError as error:
        return Finding("import", subject, check, "failed", str(error))
    except (Exception, SystemExit) as error:
        return Finding("import", subject, check, "failed", f"{type(error).__name__}: {error}")
    return Finding("import", subject, check)


def _stay_light() -> None:
    if heavy := HEAVY.intersection(sys.modules):
        raise PluginError(f"every command would import {', '.join(sorted(heavy))}")


def _configure_lightly(component: Component) -> None:
    before = HEAVY.intersection(sys.modules)
    module = component.config.partition(":")[0]
    importlib.import_module(module)
    if heavy := HEAVY.intersection(sys.modules) - before:
        raise PluginError(f"`relax config check` would import {', '.join(sorted(heavy))}, by {module}")


def _check_config(kind: str, component: Component) -> None:
    base = next(known.base for known in SECTIONS if known.kind == kind)
    config = config_class(component, base)
    if config.model_config.get("extra") != "forbid":
        raise ConfigError(f"{component.config} accepts unknown keys")
    if "name" in config.model_fields:
        raise ConfigError(f"{component.config}: the key 'name' is core's")
    if not any(field.is_required() for field in config.model_fields.values()):
        _check_round_trip(config())


def _check_round_trip(config: BaseModel) -> None:
    if type(config).model_validate_json(config.model_dump_json()) != config:
        raise ConfigError(f"{type(config).__name__} is not the same after it was written as JSON and read")


def _check_class(kind: str, component: Component) -> None:
    found, base = load_target(component.target), load_target(BASES[kind])
    if not (isinstance(found, type) and issubclass(found, base)):
        raise PluginError(f"{component.target} is no subclass of {BASES[kind].replace(':', '.')}")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        near = [did_you_mean(name, vars(found)) for name in missing]
        raise PluginError(f"{component.target} lacks {', '.join(missing)}{''.join(near)}")
    if len(inspect.signature(found).parameters) < 2:
        raise PluginError(f"{component.target} must be built as Class(config, context)")


if __name__ == "__main__":
    for finding in findings(sys.argv[1]):
        print(json.dumps(asdict(finding)), flush=True)
