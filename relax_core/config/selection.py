"""A component section becomes a component with a checked configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from relax_core.api.context import Context
from relax_core.api.errors import ConfigError, PluginError
from relax_core.component import Component
from relax_core.config.base import Config
from relax_core.config.problems import Key, Problems, dotted
from relax_core.config.sections import Section
from relax_core.config.suggest import suggestion
from relax_core.config.validation import show, unknown_key, validate
from relax_core.registry import load_target, registry


@dataclass(frozen=True)
class Selected:
    """A component that a configuration selects, picklable and without the component's class.

    Args:
        section: Where it was selected: ``algorithm``, ``sinks.1``, ``warmup.trainer``.
        kind: Its kind, one of :data:`relax_core.hooks.KINDS`.
        name: Its name as the configuration writes it.
        plugin: Distribution it comes from.
        version: Version of that distribution.
        component: What the plugin registered.
        config: Its checked configuration.
    """

    section: str
    kind: str
    name: str
    plugin: str
    version: str
    component: Component
    config: Config

    def build(self, context: Context) -> Any:
        """Imports the component's class, and what it needs, and builds it.

        Raises:
            PluginError: It cannot be imported.
        """
        return load_target(self.component.target)(self.config, context)

    def resolved(self) -> dict[str, Any]:
        """The section with all defaults filled in, as plain data."""
        return {"name": self.name, **self.config.model_dump(mode="json")}


def config_class(component: Component, base: type[Config]) -> type[Config]:
    """The configuration class of a component.

    Raises:
        PluginError: It cannot be imported, or does not derive from the base class of its kind.
    """
    found = load_target(component.config)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise PluginError(f"{component.config} must be a subclass of relax_core.config.{base.__name__}")
    return found


def select(section: Section, key: Key, value: Any, problems: Problems, replaced: str | None = None) -> Selected | None:
    """Finds and configures the component that one section names.

    Args:
        section: What may stand there.
        key: Where it stands; differs from the section's key by the index in a list.
        value: What stands there: a name, or a mapping.
        problems: Receives what is wrong; the result is then ``None``.
        replaced: The component which the section named before an override; explains keys left over from it.
    """
    if not isinstance(value, str | Mapping):
        problems.add(key, f"{show(value, key)} selects no component; write its name, or a mapping with `name`")
        return None
    own = {"name": value} if isinstance(value, str) else dict(value)
    name_key = key if isinstance(value, str) else (*key, "name")
    name = own.pop("name", section.default)
    if not isinstance(name, str):
        problems.add(*(_nameless(section, name_key, own) if name is None else (name_key, f"{show(name)} is not text")))
        return None
    try:
        found = registry().find(section.kind, name)
        model = config_class(found.component, section.base)
    except (ConfigError, PluginError) as error:
        problems.add(name_key, str(error), type(error))
        return None
    for part, text in _left_over(own, model, section, replaced) if replaced is not None else ():
        problems.add((*key, part), text)
        del own[part]
    config = validate(model, own, key, problems, {(): ["name"]})
    if config is None:
        return None
    return Selected(dotted(key), section.kind, name, found.plugin.name, found.plugin.version, found.component, config)


def _nameless(section: Section, key: Key, own: Mapping[str, Any]) -> tuple[Key, str]:
    """The problem of a section that names no component: a misspelt `name`, or none at all."""
    for misspelt in get_close_matches("name", own, n=1):
        place = (*key[:-1], misspelt)
        return place, unknown_key(place, own[misspelt], ["name"])
    return key, f"missing{suggestion('', _names(section))}"


def _names(section: Section) -> list[str]:
    return sorted({found.component.name for found in registry().offers(section.kind)})


def _left_over(own: Mapping[str, Any], model: type[Config], section: Section, replaced: str) -> list[tuple[str, str]]:
    """Keys that only the component before an override has, and a line about each."""
    try:
        before = config_class(registry().find(section.kind, replaced).component, section.base)
    except (ConfigError, PluginError):
        return []  # what was replaced need not be right
    known = ["name", *model.model_fields]
    return [
        (part, f"{unknown_key((part,), value, known)} (a key of {replaced!r}, which an override replaced)")
        for part, value in own.items()
        if part in before.model_fields and part not in model.model_fields
    ]
