"""Which calls torch.compile has traced, when nothing is really called yet.

A checkpoint may not set attributes of what is outside while it is traced, and one that is read
becomes a guard. So what follows is run by the tracer itself, as a constant of the graph. It is not
told which layer it is about, since then no two layers could share compiled code: calls lie within
each other, and the last that began is the one. If a graph breaks within a call, its end is traced
without its beginning, and nothing is known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class _Call:
    """Of a block, or of a layer in it."""

    of_block: bool
    # of a block: layers that ran, by whether that is cross-attention; of a layer: it attended
    done: set[bool] = field(default_factory=set)


class _Trace(threading.local):
    """What the calling thread traces."""

    name: Any = None

    def __init__(self) -> None:
        self.calls: list[_Call] = []


_trace = _Trace()


def by_tracer(function: Function) -> Function:
    """All that torch.compiler.assume_constant_result does; calling it imports Dynamo."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@by_tracer
def block_begins() -> None:
    """The tracer has come to a block."""
    _calls().append(_Call(of_block=True))


@by_tracer
def layer_begins(cross: bool) -> bool:
    """Returns whether its block is part of the same trace."""
    calls = _calls()
    within = bool(calls) and calls[-1].of_block
    if within:
        calls[-1].done.add(cross)
    calls.append(_Call(of_block=False))
    return within


@by_tracer
def attends() -> bool:
    """A layer asks for attention. Returns whether its beginning is part of the same trace."""
    calls = _calls()
    within = bool(calls) and not calls[-1].of_block
    if within:
        calls[-1].done.add(True)
    return within


@by_tracer
def layer_ends() -> bool:
    """Returns whether it has not asked for attention, as far as is known."""
    call = _ended(of_block=False)
    return call is not None and not call.done


@by_tracer
def block_ends(given_states: bool) -> bool | None:
    """Returns which layer has not run, as far as is known: True is cross-attention."""
    call = _ended(of_block=True)
    expected = (False, True) if given_states else (False,)
    return None if call is None else next((x for x in expected if x not in call.done), None)


def _calls() -> list[_Call]:
    """Those of this trace; one that was given up, as all are at the first graph break, is over."""
    try:
        name = torch._guards.CompileContext.current_trace_id()
    except AttributeError:  # another torch, of which nothing is known
        return []
    if name != _trace.name:
        _trace.name, _trace.calls = name, []
    return _trace.calls


def _ended(of_block: bool) -> _Call | None:
    """The last call of its kind; those inside of it that raised are over with it."""
    calls = _calls()
    while calls:
        call = calls.pop()
        if call.of_block == of_block:
            return None if _traced_once() else call
    return None


def _traced_once() -> bool:
    """Whether there are regions (nested_compile_region) that are not traced each time they run."""
    try:
        tracing = torch._guards.TracingContext.get()
        regions = tracing.hop_dispatch_set_cache.get_cache(torch.ops.higher_order.invoke_subgraph)
        return bool(regions.dynamo_installed_submodules)  # type: ignore[union-attr]
    except (AttributeError, RuntimeError):  # another torch: rather no alarm than a false one
        return True
