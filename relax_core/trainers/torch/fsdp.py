"""One model dealt to the ranks of the default process group (FSDP2, Zhao et al. 2023, arXiv:2304.11277).

A rank holds a float32 part of every parameter, which is the master, of its gradient and of its optimizer state. A layer
is whole, in the compute dtype, while it computes. All ranks call everything here together, and in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from relax_core.config import TrainerConfig
from relax_core.models.parts import tower_of
from relax_core.trainers.optimizer import MasterOptimizer
from relax_core.trainers.torch.model import HOST, Model


def shard(module: nn.Module, dtype: torch.dtype, device: str) -> None:
    """Deals the float32 parameters of a module, on the host, to all ranks: layer by layer, and what is in no layer.

    Towers that see or hear are no layers: a rank may have nothing to see where others have.

    Args:
        module: Holds a transformers model; its own ``forward`` is the only way into it from now on.
        dtype: In which it computes.
        device: Where.
    """
    mesh = init_device_mesh(torch.device(device).type, (torch.distributed.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    layers = [
        layer
        for name, layer in module.named_modules()
        if isinstance(layer, GradientCheckpointingLayer) and tower_of(name) is None
    ]
    for part in (*layers, module):
        sharded = fully_shard(part, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
        # Gradients are sums until ``apply`` divides them.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


class ShardedOptimizer(MasterOptimizer):
    """AdamW on this rank's parts of the parameters; all ranks call ``apply`` together.

    Args:
        config: Learning rate, clipping and the rest.
        parameters: Of a module that was sharded, by name.
        exact: Whether the model computes in float32, so that its own folder holds all there is to know of it.
    """

    def __init__(self, config: TrainerConfig, parameters: Mapping[str, nn.Parameter], exact: bool) -> None:
        self.sharded = {name: _sharded(parameter) for name, parameter in parameters.items()}
        self.exact = exact
        parts = {name: parameter.to_local().detach() for name, parameter in self.sharded.items()}
        super().__init__(config, parts, parts)

    def reduce(self) -> dict[str, Tensor]:
        """This rank's parts of the gradients, which are sums over the ranks as soon as they are there."""
        self.link()
        for name, parameter in self.sharded.items():
            gradient = parameter.grad
            self.masters[name].grad = None if gradient is None else _sharded(gradient).to_local()
        return super().reduce()

    def total_norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Of the whole gradient: the parts of all ranks together."""
        square = torch.tensor(super().total_norm(gradients) ** 2, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(square)
        return math.sqrt(square.item())

    def clear(self) -> None:
        super().clear()
        for parameter in self.sharded.values():
            parameter.grad = None

    def link(self) -> None:
        """Parts are found anew after the parameters were moved."""
        for name, parameter in self.sharded.items():
            self.masters[name].data = parameter.to_local().detach()

    def tensors(self) -> dict[str, Tensor]:
        """This rank's parts of everything that is not in the model's own folder."""
        self.link()
        masters = {} if self.exact else {f"master.{name}": master for name, master in self.masters.items()}
        return {**super().tensors(), **masters}

    def whole(self) -> Iterator[tuple[str, Tensor]]:
        """Tensors by name, whole on every rank, one after the other."""
        for full_name, part in self.tensors().items():
            # A step count is a scalar, and the same on every rank.
            parameter = self.sharded[full_name.partition(".")[2]]
            yield full_name, _gathered(parameter, part) if part.ndim else part

    def load(self, tensors: Mapping[str, Tensor], counters: Mapping[str, int]) -> None:
        """Takes over what :meth:`whole` gave, on however many ranks."""
        self.link()
        super().load({name: self._part(name, whole) for name, whole in tensors.items()}, counters)

    def _part(self, full_name: str, whole: Tensor) -> Tensor:
        parameter = self.sharded.get(full_name.partition(".")[2])
        return whole if parameter is None or not whole.ndim else part_of(whole, parameter)

    def take_gradients(self, device: str) -> dict[str, Tensor]:
        """Takes this rank's parts of the gradients away, onto another device."""
        found = {name: each.grad for name, each in self.sharded.items() if each.grad is not None}
        gradients = {name: _sharded(gradient).to_local().to(device) for name, gradient in found.items()}
        self.clear()
        return gradients

    def give_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Gives back what :meth:`take_gradients` took."""
        for name, gradient in gradients.items():
            parameter = self.sharded[name]
            parameter.grad = _like(parameter, gradient.to(parameter.device))

    @property
    def _device(self) -> torch.device:
        return next(iter(self.sharded.values())).device


def whole_tensors(model: Model, dtype: torch.dtype, keep: bool) -> dict[str, Tensor]:
    """The state of a sharded model as one of ``dtype`` has it, on the host: never more than one tensor on a device.

    Args:
        model: Inside a module that was sharded.
        dtype: Of its parameters.
        keep: Whether this rank wants it; those who do not get nothing.
    """
    gathered: dict[int, Tensor] = {}
    whole: dict[str, Tensor] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in model.state_dict().items():
        parameter = parameters.get(name)
        key = id(tensor if parameter is None else parameter)  # tied parameters are one
        if key not in gathered:
            full = tensor if parameter is None else _gathered(_sharded(parameter), _local(parameter).to(dtype))
            gathered[key] = full.to(HOST, copy=True) if keep else torch.empty(0)
        if keep:
            whole[name] = gathered[key]
    return whole


def load_tensors(model: Model, whole: Mapping[str, Tensor]) -> None:
    """Puts this rank's parts of whole tensors into a sharded model."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            part = _sharded(parameter)
            part.to_local().copy_(part_of(whole[name], part))


def part_of(whole: Tensor, parameter: DTensor) -> Tensor:
    """This rank's part of a tensor that lies on all ranks, as it has one of ``parameter``."""
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(whole.to(parameter.device), mesh, placements, src_data_rank=None).to_local().clone()


def _local(parameter: Tensor) -> Tensor:
    return _sharded(parameter.detach()).to_local()


def _gathered(parameter: DTensor, part: Tensor) -> Tensor:
    """Whole, by way of the device on which ranks meet, from wherever the parts are: they may have been released."""
    return _like(parameter, part.to(parameter.device_mesh.device_type)).full_tensor()


def _like(parameter: DTensor, part: Tensor) -> DTensor:
    """A tensor of which this is this rank's part, laid out as a parameter."""
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride())


def _sharded(tensor: Tensor) -> DTensor:
    assert isinstance(tensor, DTensor), "the module was not sharded"
    return tensor
