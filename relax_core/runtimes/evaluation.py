"""The evaluators of a run, and the evaluation of a model outside of one."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from relax_core.api.context import Context
from relax_core.api.engine import Capability, Engine
from relax_core.api.errors import ConfigError
from relax_core.config.load import RunConfig, Selected
from relax_core.config.run_config import EvalSet
from relax_core.metrics.counters import Counters
from relax_core.rewards.processes import describe
from relax_core.roles.collaborators import Prompts
from relax_core.roles.evaluator import Evaluator, HeldOut
from relax_core.roles.scoring import Scorer
from relax_core.runtimes.components import Builder, sampling_parameters
from relax_core.runtimes.device import resolve_device


async def open_evaluators(
    builder: Builder, engine: Engine, prompts: Prompts, scorer: Scorer | None, stack: AsyncExitStack
) -> list[Evaluator]:
    """An evaluator for each set of the configuration.

    Args:
        builder: Builds components.
        engine: Generates.
        prompts: Encodes and decodes.
        scorer: The run's rewards where they are started, for sets that have no others.
        stack: Closes the rewards that are started here.

    Raises:
        ConfigError: A set asks the engine for what it cannot do, or has no tasks.
    """
    run, started = builder.config.run, [(builder.config.rewards, scorer)]
    evaluators = []
    for selected in builder.config.eval_sets:
        judge = next((judge for rewards, judge in started if judge and rewards == selected.rewards), None)
        if judge is None:
            judge = await start_scorer(builder, selected.rewards, stack)
            started.append((selected.rewards, judge))
        assert judge is not None, "an evaluation without rewards is refused"
        held_out = _held_out(builder, selected, engine)
        evaluators.append(Evaluator(held_out, engine, prompts, judge, run.seed, run.timeouts.generation))
    return evaluators


async def start_scorer(builder: Builder, rewards: tuple[Selected, ...], stack: AsyncExitStack) -> Scorer | None:
    """Some rewards as one, closed with the stack; ``None`` for none."""
    if not rewards:
        return None
    scorer = builder.scorer(rewards)
    stack.push_async_callback(scorer.close)
    await scorer.start()
    return scorer


def _held_out(builder: Builder, selected: EvalSet, engine: Engine) -> HeldOut:
    settings = selected.settings
    if settings.sampling.stop and Capability.STOP_STRINGS not in engine.capabilities:
        needed = f"{selected.dataset.section.removesuffix('.dataset')}.sampling.stop"
        name = builder.config.engine.component.name
        raise ConfigError(f"engine: {name} lacks {Capability.STOP_STRINGS.value}, which {needed} needs")
    if builder.config.encoders and Capability.MEDIA not in engine.capabilities:
        name = builder.config.engine.component.name
        raise ConfigError(f"engine: {name} lacks {Capability.MEDIA.value}, which encoders need")
    dataset = builder.dataset(selected.dataset)
    tasks = [dataset[index] for index in range(min(len(dataset), settings.tasks or len(dataset)))]
    return HeldOut(selected.name, tasks, sampling_parameters(settings.sampling), settings.samples_per_task)


async def evaluate_model(config: RunConfig, run_id: str) -> Mapping[str, Any]:
    """Evaluates the model of a configuration on its sets, without trainer, transport or a run's folder.

    Args:
        config: Names model, engine and sets.
        run_id: Name for components that ask.

    Returns:
        ``sets``, by name, with ``score``, ``tasks`` and ``metrics``, or ``tasks`` and ``error`` where it failed; the
        only set of a configuration is called ``eval``. ``counters``: errors, abstentions and the like.

    Raises:
        RelaxError: Nothing could be evaluated: model, engine, a dataset or a reward cannot be built.
    """
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    counters = Counters()
    with TemporaryDirectory(prefix="relax-eval-") as folder:
        device = resolve_device(config.run.device)
        builder = Builder(config, Context(run_id, config.run.seed, Path(folder), device=device, count=counters.add))
        path = builder.initial_model()
        async with AsyncExitStack() as stack:
            engine = await builder.engine(path)
            stack.push_async_callback(engine.close)
            prompts = builder.prompts(path, builder.codec(path))
            evaluators = await open_evaluators(builder, engine, prompts, None, stack)
            sets = {evaluator.held_out.name or "eval": await _evaluated(evaluator) for evaluator in evaluators}
    return {"sets": sets, "counters": counters.totals()}


async def _evaluated(evaluator: Evaluator) -> dict[str, Any]:
    tasks = len(evaluator.held_out.tasks)
    try:
        evaluation = await evaluator.evaluate()
    except Exception as error:  # a plugin may raise anything; it is told in the result, and the other sets go on
        return {"tasks": tasks, "error": describe(error)}
    return {"score": evaluation.score, "tasks": tasks, "metrics": evaluation.metrics}
