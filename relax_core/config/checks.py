"""What keys of a run ask of one another. Each check yields the key that is wrong, and one line about it."""

from collections.abc import Iterator

from relax_core.api.algorithm import Requirements
from relax_core.api.errors import ConfigError
from relax_core.config.base import AlgorithmConfig, Config, TrainerConfig
from relax_core.config.model_check import check_model, check_teacher
from relax_core.config.problems import Key, dotted
from relax_core.config.run import RunSections
from relax_core.config.run_config import RunConfig
from relax_core.config.selection import Selected
from relax_core.config.validation import show
from relax_core.dataflow.columns import TEACHER_LOGPROBS
from relax_core.dataflow.placement import fronts, publishes_beside
from relax_core.dataflow.plan import FROZEN

Finding = tuple[Key, str]

REPLICATED = ("reward",)
"""Fronts that may have several replicas."""


def check(config: RunConfig) -> Iterator[Finding]:
    """Everything that is wrong between keys which are right on their own."""
    requirements = requirements_of(config.algorithm)
    yield from _check_mode(config.run)
    yield from check_model(config.run.model)
    yield from _check_teacher(config, requirements)
    yield from _check_length(config.run)
    yield from _check_batch(config.run)
    yield from _check_streaming(config, requirements)
    yield from _check_plan(config)
    if requirements.supervised:
        yield from _check_supervised(config)
    else:
        yield from _check_rollout(config, requirements)
        yield from _check_publication(config)
    yield from _check_evaluation(config)
    yield from _check_media(config)
    yield from _check_schedule(config.trainer)
    if config.warmup_algorithm is not None:
        yield from _check_warmup(config.warmup_algorithm)
    if config.warmup_trainer is not None:
        yield from _check_schedule(config.warmup_trainer)


def _check_media(config: RunConfig) -> Iterator[Finding]:
    for key, value in () if config.encoders else _changed(config.run.media).items():
        yield ("media", key), f"{show(value, ('media', key))} would be ignored: the run has no `encoders`"


def _check_warmup(algorithm: Selected) -> Iterator[Finding]:
    requirements, at = requirements_of(algorithm), ("warmup", "algorithm")
    if not requirements.supervised:
        yield at, f"{algorithm.name} is not supervised; a warm-up must be, as sft is"
    elif frozen := sorted(requirements.needs & {column.name for column in FROZEN.values()}):
        yield at, f"{algorithm.name} needs {frozen[0]}, and a warm-up has no model beside the policy; use sft"


def check_runtime(config: RunConfig, runtime: str) -> Iterator[Finding]:
    """What a runtime asks of the components, and of the settings that are its own."""
    for selected in (config.transport, config.weight_sync):
        able = getattr(selected.config, "runtimes", ("local",))
        if runtime not in able:
            yield (
                (selected.section, "name"),
                f"{selected.name} works with --runtime {' and '.join(able)}, not {runtime}",
            )
    keeps_newest = getattr(config.weight_sync.config, "keeps_newest", True)
    if runtime == "serve" and not keeps_newest and not config.run.publication.service:
        late = "engines that are started again would find no weights"
        yield ("publication", "service"), f"false is not possible with weight_sync {config.weight_sync.name}: {late}"
    yield from _check_ranks(config.trainer, config.run.serve.actor_ranks if runtime == "serve" else 1)
    if runtime == "serve":
        yield from _check_fronts(config)
    else:
        for place, value in {("serve", key): value for key, value in _changed(config.run.serve).items()}.items():
            yield place, f"{show(value, place)} would be ignored: the runtime is {runtime}; use --runtime serve"


def _check_ranks(trainer: Selected, ranks: int) -> Iterator[Finding]:
    assert isinstance(trainer.config, TrainerConfig), "selection has checked the class"
    if ranks == 1:
        for key, value in trainer.config.ignored_on_one_rank().items():
            at = (*trainer.section.split("."), key)
            yield at, f"{value} would be ignored: the trainer has one rank; use --runtime serve with serve.actor_ranks"


def _check_fronts(config: RunConfig) -> Iterator[Finding]:
    known = fronts(config.plan())
    for name, front in config.run.serve.roles.items():
        if name not in known:
            yield ("serve", "roles", name), f"the run has no such front; it has {', '.join(sorted(known))}"
        elif front.replicas > 1 and name not in REPLICATED:
            alone = f"only {', '.join(REPLICATED)} keeps nothing from one group to another"
            yield ("serve", "roles", name, "replicas"), f"{front.replicas} is not possible: {alone}"


def requirements_of(algorithm: Selected) -> Requirements:
    """What a selected algorithm asks of the plan."""
    assert isinstance(algorithm.config, AlgorithmConfig), "selection has checked the class"
    return algorithm.config.requirements()


def _check_mode(run: RunSections) -> Iterator[Finding]:
    surplus, bound = run.rollout.surplus, run.max_staleness
    if run.mode == "colocate" and bound > 0 and not surplus:
        yield (
            ("max_staleness",),
            f"{bound} has no effect in mode colocate, where only a `rollout.surplus` is ever stale",
        )
    if run.release_memory and run.mode != "colocate":
        yield ("release_memory",), f"true is not possible: in mode {run.mode} engine and trainer have a device each"
    if surplus and not bound and run.on_stale == "drop" and not run.rollout.mask_older_tokens:
        yield (
            ("rollout", "surplus"),
            f"{surplus} groups go on under later weights, and with max_staleness 0 they would be dropped: give "
            "max_staleness 1 or more, rollout.mask_older_tokens, or on_stale keep or reweight",
        )
    if "protect_after" in _changed(run.rollout) and not surplus:
        value = run.rollout.protect_after
        yield ("rollout", "protect_after"), f"{value} would be ignored: without a surplus no group is stopped"
    if run.mode == "colocate" and not surplus:
        one_version = "would be ignored: in mode colocate without a `rollout.surplus` all tokens are of one version"
        if run.rollout.mask_older_tokens:
            yield ("rollout", "mask_older_tokens"), f"true {one_version}"
        if run.on_stale != "drop":
            yield ("on_stale",), f"{run.on_stale} {one_version}"


def _check_publication(config: RunConfig) -> Iterator[Finding]:
    run = config.run
    if run.publication.overlap and not publishes_beside(config.plan(), run.max_staleness, True):
        why = "max_staleness is 0" if run.mode != "colocate" else "in mode colocate engine and trainer take turns"
        yield ("publication", "overlap"), f"true is not possible: {why}"
    if run.publication.delta and run.release_memory:
        yield ("publication", "delta"), "true would be ignored: release_memory leaves engines nothing that changes"
    if "host" in _changed(run.publication) and not run.publication.service:
        value = show(run.publication.host, ("publication", "host"))
        yield ("publication", "host"), f"{value} would be ignored: publication.service is false"


def _check_streaming(config: RunConfig, requirements: Requirements) -> Iterator[Finding]:
    run = config.run
    if not run.batch.streaming:
        return
    if run.mode == "colocate":
        yield (
            ("batch", "streaming"),
            f"true has no effect in mode {run.mode}, where a batch is complete before its turn",
        )
    elif run.batch.updates_per_batch * run.batch.epochs_per_batch > 1:
        yield ("batch", "streaming"), "true needs one update per batch: each of several has groups from all of it"
    elif requirements.scope == "batch":
        yield ("batch", "streaming"), f"true is not possible: {config.algorithm.name} prepares over the whole batch"


def _check_length(run: RunSections) -> Iterator[Finding]:
    if run.updates is None and run.epochs is None:
        yield ("updates",), "missing: give `updates` (optimizer steps) or `epochs` (passes over the dataset)"
    elif run.updates is not None and run.epochs is not None:
        yield ("epochs",), f"{run.epochs} contradicts `updates`, which is {run.updates}: give one of them"
    per_batch = run.batch.updates_per_batch * run.batch.epochs_per_batch
    if run.updates is not None and run.updates % per_batch:
        nearest = max(round(run.updates / per_batch), 1) * per_batch
        made = f"{per_batch} updates (batch.updates_per_batch x batch.epochs_per_batch)"
        yield ("updates",), f"{run.updates} ends in the middle of a batch of {made}; did you mean {nearest}?"


def _check_batch(run: RunSections) -> Iterator[Finding]:
    batch = run.batch
    if batch.tasks % batch.updates_per_batch:
        divisors = [number for number in range(1, batch.tasks + 1) if batch.tasks % number == 0]
        nearest = min(divisors, key=lambda number: abs(number - batch.updates_per_batch))
        yield (
            ("batch", "updates_per_batch"),
            f"{batch.updates_per_batch} does not divide `batch.tasks`, which is {batch.tasks}; did you mean {nearest}?",
        )


def _check_plan(config: RunConfig) -> Iterator[Finding]:
    try:
        config.plan()
    except ConfigError as error:
        key, _, text = str(error).partition(": ")
        yield tuple(key.split(".")), text


def _check_teacher(config: RunConfig, requirements: Requirements) -> Iterator[Finding]:
    name, teacher = config.algorithm.name, config.run.teacher
    if TEACHER_LOGPROBS.name not in requirements.needs:
        if teacher is not None:
            yield ("teacher",), f"{show(str(teacher.folder))} would be ignored: {name} learns from no teacher"
    elif teacher is None:
        yield ("teacher",), f"missing: {name} learns from a teacher; give `teacher.path`, a folder, or `teacher.name`"
    else:
        yield from check_teacher(teacher)


def _check_rollout(config: RunConfig, requirements: Requirements) -> Iterator[Finding]:
    name, samples = config.algorithm.name, config.run.batch.samples_per_task
    if samples < requirements.min_group_size:
        wanted = f"{name} needs groups of at least {requirements.min_group_size}"
        yield ("batch", "samples_per_task"), f"{wanted}: batch.samples_per_task is {samples}"
    if config.run.sampling.temperature == 0:
        yield ("sampling", "temperature"), "0 is greedy: all samples of a task would be equal; 1.0 is usual in training"
    if requirements.rewards and not config.rewards:
        yield ("reward",), f"missing: {name} learns from rewards; name a reward, such as exact or python"
    elif config.run.rollout.drop_equal_rewards and not config.rewards:
        yield ("rollout", "drop_equal_rewards"), "true would be ignored: the run has no reward"


def _check_supervised(config: RunConfig) -> Iterator[Finding]:
    name, run = config.algorithm.name, config.run
    if config.rewards:
        yield ("reward",), f"{config.rewards[0].name} would be ignored: {name} is supervised and learns from labels"
    if run.mode != "colocate":
        yield ("mode",), f"{run.mode} would be ignored: {name} is supervised, so there is no engine to train beside"
    unused: list[tuple[str, Config]] = [("sampling", run.sampling), ("rollout", run.rollout)]
    if not config.eval_sets:
        unused += [("engine", config.engine.config), ("weight_sync", config.weight_sync.config), ("probe", run.probe)]
        unused += [("publication", run.publication)]
    changed = {(section, key): value for section, model in unused for key, value in _changed(model).items()}
    if "samples_per_task" in _changed(run.batch):
        changed["batch", "samples_per_task"] = run.batch.samples_per_task
    for place, value in changed.items():
        yield place, f"{show(value, place)} would be ignored: {name} is supervised and trains on no samples"


def _changed(model: Config) -> dict[str, object]:
    """What differs from the defaults; that a default is written out does no harm."""
    return model.model_dump(mode="json", exclude_defaults=True)


def _check_evaluation(config: RunConfig) -> Iterator[Finding]:
    for held_out in config.eval_sets:
        at: Key = ("eval", "sets", held_out.name) if held_out.name else ("eval",)
        settings = held_out.settings
        if not held_out.rewards:
            yield (*at, "reward"), "missing: the run has no reward, so the evaluation needs its own"
        if settings.samples_per_task > 1 and settings.sampling.temperature == 0:
            greedy = f"`{dotted(at)}.sampling.temperature` is 0, which is greedy"
            yield (*at, "samples_per_task"), f"{settings.samples_per_task} equal samples: {greedy}"


def _check_schedule(trainer: Selected) -> Iterator[Finding]:
    config = trainer.config
    assert isinstance(config, TrainerConfig), "selection has checked the class"
    at = tuple(trainer.section.split("."))
    if config.schedule == "constant" and config.minimum_learning_rate > 0:
        text = f"{config.minimum_learning_rate} would be ignored: `schedule` is constant"
        yield (*at, "minimum_learning_rate"), text
    if config.minimum_learning_rate > config.learning_rate:
        text = f"{config.minimum_learning_rate} is above `learning_rate`, which is {config.learning_rate}"
        yield (*at, "minimum_learning_rate"), text
