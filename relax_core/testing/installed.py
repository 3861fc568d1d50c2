"""The contract suites for components of installed plugins, of which nothing is known but what they registered.

What a suite cannot know of a foreign component is skipped with the reason: samples that a reward tells apart, another
dataset of the same class, where a sink writes. The plugin's own tests subclass the contract and give it.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from relax_core.api.algorithm import Algorithm
from relax_core.api.context import Context, ModelSource
from relax_core.api.dataset import Dataset
from relax_core.api.encoder import Encoder
from relax_core.api.engine import Engine
from relax_core.api.errors import RewardError, TransportError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, StopReason, Task
from relax_core.api.sink import Sink
from relax_core.api.transport import Transport
from relax_core.api.weights import WeightSync
from relax_core.component import Component
from relax_core.config import Config
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.registry import load_target, registry
from relax_core.testing.algorithm import AlgorithmContract
from relax_core.testing.dataset import DatasetContract
from relax_core.testing.encoder import EncoderContract, model_that_sees_and_hears
from relax_core.testing.engine import EngineContract, EngineFactory
from relax_core.testing.models import tiny_model
from relax_core.testing.reward import RewardContract, run
from relax_core.testing.sink import SinkContract, Values
from relax_core.testing.trainer import Factory, TrainerContract
from relax_core.testing.transport import TransportContract
from relax_core.testing.transport.fixtures import MakeTransport
from relax_core.testing.weight_sync import EnginesFactory, WeightSyncContract

TASKS = (
    (Task(0, "2+2=", "4"), ("4", "5", "so it is \\boxed{4}", "<think>2</think><answer>4</answer>", "")),
    (Task(0, "Which?", "B", {"choices": ["no", "yes"]}), ("B", "A", "Answer: (B)", "")),
)
"""Tasks and answers of which a reward may like one."""
RUNS = (f"check-{number}" for number in itertools.count())


@dataclass(frozen=True)
class Subject:
    """A component under test.

    Args:
        kind: One of :data:`relax_core.hooks.KINDS`.
        name: ``plugin/component``.
        settings: Of its configuration.
        device: Where it computes.
    """

    kind: str
    name: str
    settings: Mapping[str, Any]
    device: str

    @property
    def settings_known(self) -> frozenset[str]:
        """Keys of its configuration."""
        return frozenset(self._config.model_fields)

    def build(self, directory: Path, model: ModelSource | None = None, **settings: Any) -> Any:
        """The component, with some settings of the suite over those given."""
        config = self._config.model_validate({**self.settings, **settings})
        return load_target(self._component.target)(config, Context(next(RUNS), 0, directory, model, self.device))

    @property
    def _component(self) -> Component:
        return registry().find(self.kind, self.name).component

    @property
    def _config(self) -> type[Config]:
        found: type[Config] = load_target(self._component.config)
        return found


class Installed:
    """A suite of an installed component."""

    subject: ClassVar[Subject]


class InstalledAlgorithm(Installed, AlgorithmContract):
    """The tokens are on the subject's device."""

    @pytest.fixture
    def algorithm(self, tmp_path: Path) -> Algorithm:
        self.device = self.subject.device
        algorithm: Algorithm = self.subject.build(tmp_path)
        return algorithm

    def entry(self, name: str, logprobs: Any, noise: Any) -> Any:
        try:
            return super().entry(name, logprobs, noise)
        except NotImplementedError:
            pytest.skip(f"reads the column {name!r}, of which this suite has no example")


class InstalledReward(Installed, RewardContract):
    """Samples of the first task that the reward does not refuse."""

    @pytest.fixture
    def reward(self, tmp_path: Path) -> Reward:
        reward: Reward = self.subject.build(tmp_path)
        return reward

    @pytest.fixture
    def samples(self, tmp_path: Path) -> Sequence[Sample]:
        for task, texts in TASKS:
            samples = [Sample(task, text, [ord(letter) for letter in text], StopReason.STOP) for text in texts]
            try:
                run(self.subject.build(tmp_path), samples)
            except RewardError as error:
                reason = str(error)
            else:
                return samples
        pytest.skip(f"refuses the tasks of this suite: {reason}")

    def test_different_answers_get_different_scores(self, reward: Reward, samples: Sequence[Sample]) -> None:
        if len({score.value for score in run(reward, samples)[0]}) == 1:
            pytest.skip("scores all samples of this suite the same")

    def test_scores_do_not_depend_on_the_others(self, reward: Reward, samples: Sequence[Sample]) -> None:
        pytest.skip("may compare the samples of a group")


class InstalledDataset(Installed, DatasetContract):
    """One dataset, built again and again."""

    @pytest.fixture
    def build(self, tmp_path: Path) -> Callable[[], Dataset]:
        return lambda: self.subject.build(tmp_path)

    @pytest.fixture
    def other(self) -> Dataset:
        pytest.skip("what other tasks it could have is not known here")


class InstalledEncoder(Installed, EncoderContract):
    """For a model of which there is no more than its configuration; of arrays, which every encoder reads."""

    @pytest.fixture
    def encoder(self, tmp_path: Path) -> Encoder:
        encoder: Encoder = self.subject.build(tmp_path, model_that_sees_and_hears(tmp_path))
        return encoder


class InstalledSink(Installed, SinkContract):
    """That nothing is raised; what has arrived is known to the sink alone."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        sink: Sink = self.subject.build(tmp_path)
        return sink

    def read(self, directory: Path) -> Values:
        pytest.skip("raised nothing; where the numbers have arrived is not known here")


class InstalledTrainer(Installed, TrainerContract):
    """A tiny model on the subject's device."""

    @pytest.fixture(scope="class")
    @classmethod
    def tiny_model_path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A random model of about 80k parameters."""
        return tiny_model(tmp_path_factory.mktemp("model"))

    @pytest.fixture
    def factory(self, tmp_path: Path) -> Factory:
        def start(model_path: Path, dtype: str = "float32", **settings: Any) -> Any:
            trainer = self.subject.build(tmp_path, ModelSource(model_path, dtype), **settings)
            trainer.start()
            return trainer

        return start


class InstalledEngine(Installed, EngineContract):
    """A tiny model on the subject's device; the engine itself says what it can do."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _ask_for_capabilities(cls, model_path: Path) -> None:
        async def ask() -> None:
            engine = await cls._start(model_path)
            cls.capabilities = engine.capabilities
            await engine.close()

        asyncio.run(ask())

    @pytest.fixture
    def engine_factory(self) -> EngineFactory:
        return self._start

    @classmethod
    async def _start(cls, model_path: Path, **settings: Any) -> Engine:
        engine: Engine = cls.subject.build(model_path, ModelSource(model_path), **settings)
        await engine.start()
        return engine


class InstalledTransport(Installed, TransportContract):
    """In real time; rules about a full transport need the setting ``capacity_bytes``."""

    supports_clock = False

    @pytest.fixture
    def make_transport(self, tmp_path: Path) -> MakeTransport:
        try:
            self._built(tmp_path).open((), ())
        except TransportError as error:
            pytest.skip(f"cannot be opened here: {error}")

        def make(capacity_bytes: int = 0, clock: None = None) -> Transport:
            if not capacity_bytes:
                return self._built(tmp_path)
            if "capacity_bytes" not in self.subject.settings_known:
                pytest.skip("has no setting capacity_bytes")
            return self._built(tmp_path, capacity_bytes=capacity_bytes)

        return make

    def _built(self, directory: Path, **settings: Any) -> Transport:
        transport: Transport = self.subject.build(directory, **settings)
        return transport


class InstalledWeightSync(Installed, WeightSyncContract):
    """To engines of the embedded kind, in this process."""

    @pytest.fixture
    def weight_sync(self, tmp_path: Path) -> WeightSync:
        weight_sync: WeightSync = self.subject.build(tmp_path)
        return weight_sync

    @pytest.fixture
    async def engines_factory(self) -> AsyncIterator[EnginesFactory]:
        started: list[Engine] = []

        async def start(model_path: Path, number: int) -> Sequence[Engine]:
            context = Context(next(RUNS), 0, model_path, ModelSource(model_path), self.subject.device)
            engines = [TorchEngine(TorchEngineConfig(), context) for _ in range(number)]
            started.extend(engines)
            await asyncio.gather(*(engine.start() for engine in engines))
            return engines

        yield start
        for engine in started:
            await engine.close()


SUITES: Mapping[str, type[Installed]] = {
    "trainers": InstalledTrainer,
    "engines": InstalledEngine,
    "algorithms": InstalledAlgorithm,
    "transports": InstalledTransport,
    "weight_syncs": InstalledWeightSync,
    "sinks": InstalledSink,
    "rewards": InstalledReward,
    "datasets": InstalledDataset,
    "encoders": InstalledEncoder,
}
"""The suite of each kind."""


def suite(subject: Subject) -> type[Installed]:
    """A class of tests for one component."""
    return type(f"Test_{subject.kind}", (SUITES[subject.kind],), {"subject": subject})
