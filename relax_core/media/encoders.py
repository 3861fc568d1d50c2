"""The encoders that a run selects, built for a model, at most one for each kind of medium."""

from collections.abc import Sequence
from dataclasses import replace

from relax_core.api.context import Context
from relax_core.api.encoder import Encoder
from relax_core.api.errors import ConfigError
from relax_core.api.media import Kind
from relax_core.config.selection import Selected


def build_encoders(selected: Sequence[Selected], context: Context) -> tuple[Encoder, ...]:
    """The encoders of a run, each for the model of ``context``.

    Raises:
        ConfigError: Two of them take the same kind, or the model neither sees nor hears what one of them makes.
        PluginError: One of them cannot be imported.
    """
    encoders: tuple[Encoder, ...] = tuple(choice.build(context) for choice in selected)
    takers: dict[Kind, Selected] = {}
    for choice, encoder in zip(selected, encoders, strict=True):
        for kind in sorted(encoder.kinds):
            if kind in takers:
                other = takers[kind]
                raise ConfigError(
                    f"{choice.section}: {choice.name} takes {kind}, as {other.name} does ({other.section}); "
                    "a run has one encoder for a kind"
                )
            takers[kind] = choice
    return encoders


def with_encoders(context: Context, selected: Sequence[Selected]) -> Context:
    """The context of a component that holds the model of ``context``, with the encoders of the run.

    Raises:
        ConfigError: As :func:`build_encoders`.
    """
    return replace(context, encoders=build_encoders(selected, context))
