"""What all stages of a local run share: engine, rewards, weight sync, evaluators. Opened once, closed in reverse."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from relax_core.api.dataset import Dataset
from relax_core.api.engine import Engine
from relax_core.api.errors import ConfigError
from relax_core.api.media import MediaError, Prompt
from relax_core.config.load import RunConfig
from relax_core.dataflow.placement import generates_apart
from relax_core.dataflow.plan import Plan
from relax_core.media.prompts import MediaPrompts
from relax_core.models.prompts import PromptCodec
from relax_core.models.vocabulary import require_same_vocabulary
from relax_core.roles.collaborators import Prompts
from relax_core.roles.evaluator import Evaluator
from relax_core.roles.scoring import Scorer
from relax_core.runtimes.components import Builder, check_capabilities, sampling_parameters
from relax_core.runtimes.evaluation import open_evaluators, start_scorer
from relax_core.runtimes.publishing import make_publisher, open_service
from relax_core.weights.probe import Probe
from relax_core.weights.publisher import Publisher

PROBE_PROMPT = 32
"""Tokens of the first task's prompt that the probe continues: enough to see a fault, cheap at every publication."""

PROBE_TASKS = 8
"""Tasks of which one must have media that can be used."""

PROBE_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5}
"""In nats. Two bfloat16 implementations of one model differ by up to 0.3 on single tokens; old weights by far more."""


@dataclass(frozen=True)
class Session:
    """The shared parts; there is no engine where nothing generates, and no evaluators without an evaluation.
    ``engines``, by name, receive publications."""

    prompts: Prompts
    publisher: Publisher
    engines: Mapping[str, Engine]
    scorer: Scorer | None
    evaluators: Sequence[Evaluator]

    @property
    def engine(self) -> Engine | None:
        """The one that generates for all."""
        return next(iter(self.engines.values()), None)


@asynccontextmanager
async def open_session(builder: Builder, path: Path, plan: Plan, dataset: Dataset) -> AsyncIterator[Session]:
    """Builds and starts everything the stages share.

    Args:
        builder: Builds components.
        path: Folder of the policy the engine begins with.
        plan: Plan of the main stage.
        dataset: Tasks of the main stage; the first prompt that training takes is the probe's.
    """
    config = builder.config
    async with AsyncExitStack() as stack:
        codec = make_codec(builder, path, plan)
        prompts = open_prompts(builder, path, codec, stack)
        engine = None
        if plan.role("rollout") is not None or config.eval_sets:
            engine = await builder.engine(path, apart=generates_apart(plan))
            stack.push_async_callback(engine.close)
            check_capabilities(engine, plan, config)
        sync = config.weight_sync.build(builder.context)
        stack.push_async_callback(sync.close)
        engines = {} if engine is None else {"engine-0": engine}
        probe = await make_probe(config, prompts, dataset)
        publisher = make_publisher(config, engines, sync, builder.context.count, probe)
        stack.push_async_callback(publisher.close)
        service = open_service(config, publisher, builder.context.directory)
        if service is not None:
            stack.callback(service.close)
        scorer = await start_scorer(builder, config.rewards, stack)
        evaluators = [] if engine is None else await open_evaluators(builder, engine, prompts, scorer, stack)
        yield Session(prompts, publisher, engines, scorer, evaluators)


def make_codec(builder: Builder, path: Path, plan: Plan) -> PromptCodec:
    """The policy's tokenizer, seen to be that of the teacher too where there is one."""
    codec = builder.codec(path)
    if plan.role("teacher") is not None:
        require_same_vocabulary(codec.tokenizer, builder.teacher_source())
    return codec


def open_prompts(builder: Builder, path: Path, codec: PromptCodec, stack: AsyncExitStack) -> Prompts:
    """What makes prompts of tasks, closed with the stack."""
    prompts = builder.prompts(path, codec)
    if isinstance(prompts, MediaPrompts):
        stack.callback(prompts.close)
    return prompts


async def make_probe(config: RunConfig, prompts: Prompts, dataset: Dataset) -> Probe | None:
    """The run's mismatch probe; ``None`` where it is switched off."""
    run = config.run
    if not run.probe.every:
        return None
    sampling = sampling_parameters(run.sampling)
    # Greedy log-probabilities are those of temperature 1, and a trainer divides by the temperature.
    temperature = sampling.temperature or 1.0
    sampling = replace(sampling, max_new_tokens=run.probe.tokens, temperature=temperature, stop=())
    tolerance = run.probe.tolerance or PROBE_TOLERANCE[run.model.dtype]
    prompt = await _probe_prompt(prompts, dataset)
    # A prompt with media is taken whole: cut within a medium it would be none.
    ids = prompt.token_ids if prompt.media else prompt.token_ids[:PROBE_PROMPT]
    return Probe(ids, sampling, tolerance, run.probe.on_mismatch == "fail", run.seed, tuple(prompt.media))


async def _probe_prompt(prompts: Prompts, dataset: Dataset) -> Prompt:
    """The first prompt that can be used.

    Raises:
        ConfigError: None of the first can: the dataset is not what it is meant to be.
    """
    first = [dataset[index] for index in range(min(PROBE_TASKS, len(dataset)))]
    for task in first:
        try:
            return await prompts.encode(task)
        except MediaError as error:
            problem = error
    raise ConfigError(f"dataset: none of the first {len(first)} tasks can be used, the last one since {problem}")
