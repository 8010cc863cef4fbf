"""Where the parameters of alpha go: on the device of their layer, in float32 or more."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

Place = tuple[torch.device, torch.dtype]


def place_of(name: str, layer: nn.Module, model: nn.Module) -> Place:
    """Device and dtype of a new parameter of a layer of a model."""
    own = list(_tensors(layer)) or list(_tensors(model))  # one that is quantised may have none
    device = own[0].device if own else torch.device("cpu")
    if device.type == "meta":
        device = _device_of_hooks(layer) or device
    if device.type == "meta" and any(each.device.type != "meta" for each in _tensors(model)):
        raise ValueError(
            f"learn_alpha: the parameters of the layer {name!r} are on the meta device, and it "
            "does not say where it runs; enable the model before its parameters are moved away"
        )
    like = next((each.dtype for each in own if each.is_floating_point()), torch.float32)
    # small steps of alpha would be lost in half precision
    return device, torch.float64 if like == torch.float64 else torch.float32


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _device_of_hooks(layer: nn.Module) -> torch.device | None:
    """Where accelerate brings the parameters of a layer, or of what is in it, when it runs."""
    for module in layer.modules():
        hook = getattr(module, "_hf_hook", None)
        for each in (hook, *getattr(hook, "hooks", ())):
            device = getattr(each, "execution_device", None)
            if device is not None:
                return torch.device(device)
    return None
