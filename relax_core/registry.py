"""Finds a component by the name a configuration writes, and says what is wrong when it cannot be used."""

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from relax_core.api.errors import ConfigError, PluginError
from relax_core.component import Component
from relax_core.discovery import PluginRecord, discover
from relax_core.hooks import section
from relax_core.suggestions import did_you_mean

WELL_KNOWN = {
    "audio": "relax-audio",
    "grpo": "relax-algos",
    "sft": "relax-algos",
    "megatron": "relax-megatron",
    "sglang": "relax-sglang",
    "transferqueue": "relax-transferqueue",
    "vision": "relax-vision",
    "vllm": "relax-vllm",
}
"""Where components live that a configuration may name before their plugin is installed."""


@dataclass(frozen=True)
class Found:
    """A component and the plugin that offers it."""

    plugin: PluginRecord
    component: Component


class Registry:
    """The installed plugins and what they offer.

    Args:
        plugins: What became of each installed plugin, by name.
    """

    def __init__(self, plugins: list[PluginRecord]) -> None:
        self.plugins = plugins

    @classmethod
    def load(cls) -> "Registry":
        """Loads every installed plugin. A command uses :func:`registry`, which does so once."""
        return cls(discover())

    def plugin(self, name: str) -> PluginRecord:
        """The plugin of this name.

        Raises:
            ConfigError: No such plugin is installed.
        """
        for plugin in self.plugins:
            if plugin.name == name:
                return plugin
        installed = [plugin.name for plugin in self.plugins]
        raise ConfigError(f"no plugin {name!r}{did_you_mean(name, installed)} (installed: {', '.join(installed)})")

    def offers(self, kind: str) -> list[Found]:
        """Every component of one kind, one of :data:`relax_core.hooks.KINDS`, also those without their backend."""
        return [Found(plugin, component) for plugin in self.plugins for component in plugin.components.get(kind, ())]

    def find(self, kind: str, name: str) -> Found:
        """The component of a kind, one of :data:`relax_core.hooks.KINDS`, by its name or as ``plugin/name``.

        Raises:
            ConfigError: The name is not offered, or by several plugins.
            PluginError: It belongs to a plugin that is not usable; names the plugin and the reason.
        """
        owner, _, bare = name.rpartition("/")
        if owner:
            _require_usable(self.plugin(owner))
        matching = [
            found for found in self.offers(kind) if found.component.name == bare and owner in ("", found.plugin.name)
        ]
        if not matching:
            if not owner:
                self._blame_unusable(bare)
            raise ConfigError(self._unknown(kind, bare, owner))
        if len(matching) > 1:
            plugins = [found.plugin.name for found in matching]
            raise ConfigError(
                f"{section(kind)} {bare!r} is offered by {' and '.join(plugins)}; write {plugins[0]}/{bare}"
            )
        _require_usable(matching[0].plugin)
        return matching[0]

    def _blame_unusable(self, name: str) -> None:
        """Raises PluginError if a plugin that offers nothing is the one that by its own name should offer this."""
        for plugin in self.plugins:
            own = {plugin.name, plugin.name.removeprefix("relax-"), *plugin.entry_points}
            if not plugin.components and (name in own or plugin.name == WELL_KNOWN.get(name)):
                _require_usable(plugin)

    def _unknown(self, kind: str, name: str, owner: str) -> str:
        offers = self.offers(kind)
        near = [found.component.name for found in offers if owner in ("", found.plugin.name)]
        message = f"no {section(kind)} {name!r}{f' in {owner}' if owner else ''}{did_you_mean(name, near)}"
        home = WELL_KNOWN.get(name)
        if home and home not in [plugin.name for plugin in self.plugins]:
            message += f"; it comes with {home}: pip install {home}"
        installed = sorted({found.component.name for found in offers})
        message += f" (installed: {', '.join(installed) or 'none'}"
        broken = [plugin for plugin in self.plugins if not plugin.components]
        if broken:
            message += (
                f"; not loaded: {', '.join(f'{plugin.name}, {plugin.status}: {plugin.detail}' for plugin in broken)}"
            )
        return f"{message})"


@cache
def registry() -> Registry:
    """The plugins of this process, loaded at the first call."""
    return Registry.load()


def load_target(target: str) -> Any:
    """The class behind ``"package.module:Class"``.

    Raises:
        PluginError: It cannot be imported; with the reason.
    """
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        raise PluginError(f"cannot import {target}: {type(error).__name__}: {error}") from error


def _require_usable(plugin: PluginRecord) -> None:
    if plugin.status != "ok":
        raise PluginError(f"plugin {plugin.name} is not usable ({plugin.status}): {plugin.detail}")
