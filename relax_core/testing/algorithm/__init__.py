"""What every algorithm promises, and a way to write the tokens of a micro-batch by hand."""

import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from relax_core.api.algorithm import Algorithm
from relax_core.testing.algorithm.loss import LossRules
from relax_core.testing.algorithm.prepare import PrepareRules
from relax_core.testing.algorithm.tokens import make_tokens, select_rows, sum_loss

HEAVY = {"torch", "transformers", "ray"}
"""Packages that a machine need not have to check a configuration."""

__all__ = ["AlgorithmContract", "make_tokens", "select_rows", "sum_loss"]


class AlgorithmContract(PrepareRules, LossRules):
    """Subclass it, override the fixture ``algorithm``, and ``entry`` for columns that core does not know.

    The algorithm's class must be in a module that another process can import. The configuration given by the fixture
    may have any settings; its class must also be valid with none.
    """

    def test_configuration_is_strict_and_has_defaults(self, algorithm: Algorithm) -> None:
        kind = type(algorithm.config)
        kind()
        with pytest.raises(ValidationError):
            assert not kind.model_validate({"no_such_setting": 1}), "an unknown setting is accepted"

    def test_requirements_are_pure(self, algorithm: Algorithm) -> None:
        config = algorithm.config
        again = type(config).model_validate(config.model_dump())
        assert config.requirements() == config.requirements() == again.requirements(), "requirements() are not pure"

    def test_configuration_is_light(self, algorithm: Algorithm) -> None:
        module = type(algorithm.config).__module__
        program = f"import sys, {module}; print(*sorted({HEAVY!r} & sys.modules.keys()))"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", program]
        imported = subprocess.run(command, env=environment, timeout=120, check=True, capture_output=True, text=True)
        heavy = imported.stdout.split()
        assert not heavy, f"`relax config check` imports {module}, which imports {', '.join(heavy)}"
