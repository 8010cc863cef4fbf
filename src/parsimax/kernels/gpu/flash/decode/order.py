"""Kernels that stand ready before the one whose results they read has ended.

A kernel lets the next one start, which waits until all that was written before is there: what is
saved is the time of a launch. Both are for kernels launched with ``launch_pdl``, from Hopper on.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """Once all programs have come here, those of the next kernel take the room that is left."""
    if EARLY:
        tl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def wait_for_last(EARLY: tl.constexpr):
    """Until the kernel before this one, which has waited itself, has ended."""
    if EARLY:
        tl.inline_asm_elementwise(
            "griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
