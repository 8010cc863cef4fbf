"""Kernels that stand ready before the one whose results they read has ended, and values as well.

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


@triton.jit
def fetch_ahead(
    v_ptr, v_row, keys, list_ptr, count, part, parts, MOST: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Have every so many of the listed blocks brought near, at most MOST of them.

    Blocks lie in one piece, and on addresses that are multiples of 16.
    """
    places = tl.arange(0, MOST) * parts + part
    block = tl.load(list_ptr + places, mask=places < count, other=0)
    rows = tl.minimum(keys - block * COLUMNS, COLUMNS)
    size = tl.where(
        places < count, rows * v_row * (v_ptr.dtype.element_ty.primitive_bitwidth // 8), 0
    )
    start = (v_ptr + block.to(tl.int64) * COLUMNS * v_row).to(tl.int64)
    tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        setp.gt.s32 p, $2, 0;
        @p cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, $2;
        }""", "=r,l,r", [start, size], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
