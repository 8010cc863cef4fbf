"""States and sums that are spread over processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

State = dict[str, Any]


def shard(model: nn.Module, mesh: DeviceMesh, precision: str) -> None:
    """Spread the weights over processes (FSDP): layer by layer, and what is left as one."""
    from torch.distributed.fsdp import (
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    policy = MixedPrecisionPolicy()
    if precision == "bf16-mixed":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for name in ("measure", "attention", "start", "step"):
        register_fsdp_forward_method(model, name)


def _layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a Transformer.

    A layer's weights are fetched whenever it is called, and all processes have to call it equally
    often. A recurrent layer is called once a symbol, and processes have sentences of different
    lengths: a recurrent model is fetched as a whole.
    """
    if any(isinstance(m, nn.RNNBase | nn.RNNCellBase) for m in model.modules()):
        return []
    lists = [m for m in model.children() if isinstance(m, nn.ModuleList)]
    return [layer for layers in lists for layer in layers if list(layer.parameters())]


def model_state(model: nn.Module, sharded: bool) -> State:
    """The whole model's weights, on the CPU where they were spread."""
    if not sharded:
        return model.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=whole)


def set_model_state(model: nn.Module, state: State, sharded: bool) -> None:
    """Give a model its weights."""
    if not sharded:
        model.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, sharded: bool) -> State:
    """The optimiser's moments by parameter name, so that any number of processes can take them."""
    # Before the first step there are no moments, and torch's gathering would make some by a step
    # with a rate of 0, which counts as a step in Adam's bias correction.
    if not sharded or not optimizer.state:
        found = optimizer.state_dict()
        names = _names(model, optimizer)
        return {
            "state": {names[i]: s for i, s in found["state"].items()},
            "groups": [_options(g) for g in found["param_groups"]],
        }
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: State = dict(get_optimizer_state_dict(model, optimizer, options=whole))
    if not state:  # only the first process has it
        return {}
    return {"state": state["state"], "groups": [_options(g) for g in state["param_groups"]]}


def _options(group: State) -> State:
    return {name: value for name, value in group.items() if name != "params"}


def set_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: State, sharded: bool
) -> None:
    """Give an optimiser its moments."""
    names = _names(model, optimizer)
    if not sharded or not state["state"]:
        index = {name: i for i, name in enumerate(names)}
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict(
            {
                "state": {index[name]: s for name, s in state["state"].items()},
                "param_groups": [g | s for g, s in zip(groups, state["groups"], strict=True)],
            }
        )
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    groups = [g | {"params": names} for g in state["groups"]]
    set_optimizer_state_dict(
        model,
        optimizer,
        {"state": state["state"], "param_groups": groups},
        options=StateDictOptions(full_state_dict=True),
    )


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[p] for group in optimizer.param_groups for p in group["params"]]


def sum_over_processes(values: Tensor) -> Tensor:
    """The sum over all processes, in place; the values themselves if there is one process."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values


def gather(value: object) -> list[Any]:
    """What each process has, in the order of their ranks."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
