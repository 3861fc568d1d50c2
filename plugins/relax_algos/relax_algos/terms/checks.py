"""Settings that would have no effect are refused."""

from collections.abc import Mapping

from relax_core.config import AlgorithmConfig


def refuse_ignored(config: AlgorithmConfig, used: Mapping[str, tuple[bool, str]]) -> None:
    """Refuses a setting that differs from its default and that nothing reads.

    Args:
        config: The settings.
        used: By the name of a setting, whether it is read, and what it takes to be read.

    Raises:
        ValueError: Naming the first of them.
    """
    for name, (is_used, condition) in used.items():
        if not is_used and getattr(config, name) != type(config).model_fields[name].default:
            raise ValueError(f"{name} would be ignored: it needs {condition}")
