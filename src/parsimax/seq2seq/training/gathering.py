"""States and sums that are spread over processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from parsimax.seq2seq.models.transformer import Transformer

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
    for unit in _units(model):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for name in ("measure", "attention", "start", "step"):
        register_fsdp_forward_method(model, name)


def _units(model: nn.Module) -> list[nn.Module]:
    """The parts of a Transformer that are called as a whole, inner ones first.

    A part's weights are fetched whenever it is called, and all processes have to call it equally
    often. A recurrent layer is called once a symbol, and processes have sentences of different
    lengths: a recurrent model is fetched as a whole. Keys of the source are made before the
    decoder's layers are called.
    """
    if not isinstance(model, Transformer):
        return []
    apart = [layer.get_submodule("context.key_value") for layer in model.decoder]
    return [*apart, *model.encoder, *model.decoder]


def model_state(model: nn.Module) -> State:
    """The whole weights; every process has to ask for them."""
    return {name: whole(value) for name, value in model.state_dict().items()}


@torch.no_grad()
def set_model_state(model: nn.Module, state: State) -> None:
    """Give a model its weights, or each process its part of them."""
    sharded = {n: v for n, v in model.state_dict().items() if isinstance(v, DTensor)}
    model.load_state_dict({n: v for n, v in state.items() if n not in sharded}, strict=not sharded)
    for name, mine in sharded.items():
        mine.copy_(_part(state[name], mine))


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The whole moments by parameter name, so that any number of processes can take them.

    torch's own gathering is not used: before the first step it makes moments by a step with a rate
    of 0, which counts as a step in Adam's bias correction.
    """
    names = _names(model)
    return {
        "state": {
            names[p]: {key: whole(value) for key, value in moments.items()}
            for p, moments in optimizer.state.items()
        },
        "groups": [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ],
    }


def set_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Give an optimiser its moments, or each process its part of them.

    Options of groups are taken if the groups are the same ones; those that a config has are set
    anew in any case.
    """
    names = _names(model)
    if len(state["groups"]) == len(optimizer.param_groups):
        for group, options in zip(optimizer.param_groups, state["groups"], strict=True):
            group.update(options)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments = state["state"].get(names[parameter])
            if moments is not None:
                optimizer.state[parameter] = {
                    key: _moment(value, parameter) for key, value in moments.items()
                }


def _moment(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.shape != parameter.shape:  # a count of steps
        return value.to(parameter.device)
    if isinstance(parameter, DTensor):
        return _part(value, parameter)
    return value.to(parameter.device, parameter.dtype, copy=True)


def _part(value: Tensor, like: DTensor) -> DTensor:
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def _names(model: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def whole(values: Tensor) -> Tensor:
    """A tensor with all its parts, on the CPU if they were spread over processes."""
    return values.full_tensor().cpu() if isinstance(values, DTensor) else values


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
