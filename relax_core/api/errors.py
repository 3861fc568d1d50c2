"""Errors by what the user can do about them; the command line turns each class into its exit code."""


class RelaxError(Exception):
    """Failed work: the run started and could not go on. Exit code 1."""

    exit_code = 1


class ConfigError(RelaxError):
    """Bad input: one line that names file, key, value and the nearest right one. Exit code 2."""

    exit_code = 2


class PluginError(RelaxError):
    """A component that the configuration selects cannot be used. Exit code 3."""

    exit_code = 3


class RewardError(RelaxError):
    """A reward raised, returned NaN, or ran past its time limit; names the reward, the task and the place."""


class TransportError(RelaxError):
    """A transport was misused (unknown column, second write, expired lease) or is gone."""


class TransportLost(TransportError):
    """The server behind a transport is gone, with all rows it held."""


class EndOfStream(TransportError):
    """The producer finished and this consumer has acknowledged every row: there will never be another."""


class LeaseExpired(TransportError):
    """The lease ran out before it was acknowledged; its rows have been handed out again."""


class DeadlineExceeded(RelaxError):
    """A wait reached its deadline; names what was waited for and the state of each party."""


class PromptTooLong(RelaxError):
    """A prompt leaves no room for an answer in an engine's context."""


class WeightSyncError(RelaxError):
    """A publication did not arrive whole, or an engine does not compute what the trainer computes."""


class TrainingError(RelaxError):
    """Training cannot go on, for example after several updates in a row with non-finite gradients."""
