"""Exchanges a model's weights in place."""

from collections.abc import Mapping

import torch
from torch import Tensor


def copy_weights(own: Mapping[str, Tensor], arrived: Mapping[str, Tensor]) -> None:
    """Copies verified values in place, those of tied names once."""
    written = set()
    with torch.no_grad():
        for name, tensor in arrived.items():
            if own[name].data_ptr() not in written:
                own[name].copy_(tensor)
                written.add(own[name].data_ptr())


def release_weights(network: torch.nn.Module) -> None:
    """Gives the memory of all parameters back; they keep their shapes over a single number."""
    for parameter in network.parameters():
        parameter.data = parameter.data.new_empty(()).expand(parameter.shape)


def restore_weights(network: torch.nn.Module) -> None:
    """Takes memory for all parameters again; their values are undefined."""
    for parameter in network.parameters():
        parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
