"""The k highest scores."""

from __future__ import annotations

from parsimax.kernels.cpu.jit import kernel


def workspace(dims):
    """A heap of scores."""
    return dims[2], 0


@kernel
def oracle(scores, extra, dims, chosen, heap, integers):
    """``dims`` is (rows, columns, k). ``chosen`` ascends; of equal scores the first are taken."""
    variables, k = dims[0] * dims[1], dims[2]
    if k == 0:
        return 0.0
    for i in range(k):
        heap[i] = scores[i]
    for i in range(k // 2 - 1, -1, -1):
        _sink(heap, k, i)
    for i in range(k, variables):
        if scores[i] > heap[0]:
            heap[0] = scores[i]
            _sink(heap, k, 0)
    # the lowest that is in, and how many of exactly that score are
    lowest, ties = heap[0], 0
    for i in range(k):
        ties += heap[i] == lowest
    count = 0
    for i in range(variables):
        if scores[i] > lowest:
            chosen[count] = i
            count += 1
        elif scores[i] == lowest and ties > 0:
            chosen[count] = i
            count += 1
            ties -= 1
    return 0.0


@kernel
def _sink(heap, k, i):
    """Restore the heap, lowest first, below place ``i``."""
    while True:
        child = 2 * i + 1
        if child >= k:
            return
        if child + 1 < k and heap[child + 1] < heap[child]:
            child += 1
        if heap[i] <= heap[child]:
            return
        heap[i], heap[child] = heap[child], heap[i]
        i = child
