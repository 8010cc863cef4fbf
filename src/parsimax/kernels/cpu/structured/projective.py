"""MAP of projective dependency trees: Eisner's (1996) algorithm, in O(n^3).

Scores are as in :mod:`.arborescence`. Every table is stored by the width of a span, ``table[w, i]``
for words i to i + w, so that the innermost loop runs over all spans of one width: over memory that
lies together, without a reduction, which the compiler vectorises. Only values are stored; the
splits are found again, by the same sums, along the best tree alone.

A score of -inf forbids an arc.
"""

from __future__ import annotations

import numpy as np

from parsimax.kernels.cpu.jit import kernel

# What is to be taken apart: a span, and what it is
_RIGHT = 0  # complete, headed by its first word
_LEFT = 1  # complete, headed by its last word
_RIGHT_ARC = 2  # an arc from its first word to its last
_LEFT_ARC = 3  # an arc from its last word to its first


@kernel
def _spans(scores, n, right, left, right_arc, left_arc, joined):
    """Fill the tables; see the names of their spans above.

    The three innermost loops are written out: a function for them is not inlined, and calling it
    takes longer than a loop over one width.
    """
    right[0, :] = 0.0
    left[0, :] = 0.0
    for w in range(1, n):
        count = n - w
        joined[:count] = -np.inf
        for k in range(w):
            a, b = right[k], left[w - 1 - k, k + 1 :]
            for i in range(count):
                value = a[i] + b[i]
                joined[i] = value if value > joined[i] else joined[i]
        for i in range(count):
            right_arc[w, i] = joined[i] + scores[i * n + i + w]
            left_arc[w, i] = joined[i] + scores[(i + w) * n + i]
        to_right, to_left = right[w], left[w]
        to_right[:count] = -np.inf
        to_left[:count] = -np.inf
        for k in range(w):
            a, b = right_arc[k + 1], right[w - k - 1, k + 1 :]
            for i in range(count):
                value = a[i] + b[i]
                to_right[i] = value if value > to_right[i] else to_right[i]
            a, b = left[k], left_arc[w - k, k:]
            for i in range(count):
                value = a[i] + b[i]
                to_left[i] = value if value > to_left[i] else to_left[i]


@kernel
def _push(stack, top, what, i, w):
    if w == 0:  # a word alone
        return top
    stack[top, 0], stack[top, 1], stack[top, 2] = what, i, w
    return top + 1


@kernel
def _collect(stack, top, n, right, left, right_arc, left_arc, chosen):
    """Take the spans on the stack apart, down to words, and note their arcs."""
    while top > 0:
        top -= 1
        what, i, w = stack[top, 0], stack[top, 1], stack[top, 2]
        best, split = -np.inf, 0
        if what == _RIGHT:
            for k in range(1, w + 1):
                value = right_arc[k, i] + right[w - k, i + k]
                if value > best:
                    best, split = value, k
            top = _push(stack, top, _RIGHT_ARC, i, split)
            top = _push(stack, top, _RIGHT, i + split, w - split)
        elif what == _LEFT:
            for k in range(w):
                value = left[k, i] + left_arc[w - k, i + k]
                if value > best:
                    best, split = value, k
            top = _push(stack, top, _LEFT, i, split)
            top = _push(stack, top, _LEFT_ARC, i + split, w - split)
        else:
            for k in range(w):
                value = right[k, i] + left[w - 1 - k, i + k + 1]
                if value > best:
                    best, split = value, k
            head, child = (i, i + w) if what == _RIGHT_ARC else (i + w, i)
            chosen[child] = head * n + child
            top = _push(stack, top, _RIGHT, i, split)
            top = _push(stack, top, _LEFT, i + split + 1, w - 1 - split)


@kernel
def _one_root(scores, n, right, left):
    """(value of the best tree, its root)."""
    best, root = -np.inf, 0
    for r in range(n):
        value = left[r, 0] + right[n - 1 - r, r] + scores[r * n + r]
        if value > best:
            best, root = value, r
    return best, root


@kernel
def _many_roots(scores, n, right, left, first, last):
    """Best value of words 0 to n - 1 under the root, which stands before them.

    ``last[j]``: words 0 to j, of which j hangs from the root; ``first[j + 1]``: words 0 to j.
    """
    first[0] = 0.0
    for j in range(n):
        best = -np.inf
        for k in range(j + 1):
            best = max(best, first[k] + left[j - k, k])
        last[j] = best + scores[j * n + j]
        best = -np.inf
        for k in range(j + 1):
            best = max(best, last[k] + right[j - k, k])
        first[j + 1] = best
    return first[n]


@kernel
def _root_spans(n, right, left, first, last, stack, chosen):
    """Put the spans of the best sequence of trees on the stack."""
    top = 0
    end = n
    while end > 0:
        root, best = 0, -np.inf
        for k in range(end):
            value = last[k] + right[end - 1 - k, k]
            if value > best:
                best, root = value, k
        top = _push(stack, top, _RIGHT, root, end - 1 - root)
        chosen[root] = root * n + root
        start, best = 0, -np.inf
        for k in range(root + 1):
            value = first[k] + left[root - k, k]
            if value > best:
                best, start = value, k
        top = _push(stack, top, _LEFT, start, root - start)
        end = start
    return top


def workspace(dims):
    """Floats and integers that the oracle wants: the four tables, and spans to take apart."""
    n = dims[0]
    return 4 * n * n + 3 * n + 1, 3 * (2 * n + 2)


@kernel
def oracle(scores, extra, dims, chosen, floats, integers):
    """Best projective tree; ``dims`` is (n, n, 1 if one word only may hang from the root).

    If several may, the root stands before the sentence: no arc passes over a word that hangs from
    it. ``chosen[m]`` is the arc into word m. If every tree has an arc of -inf, -inf is returned and
    ``chosen`` is -1.
    """
    n = dims[0]
    tables = floats[: 4 * n * n].reshape(4, n, n)
    right, left, right_arc, left_arc = tables[0], tables[1], tables[2], tables[3]
    rest = floats[4 * n * n :]
    stack = integers[: 3 * (2 * n + 2)].reshape(2 * n + 2, 3)
    _spans(scores, n, right, left, right_arc, left_arc, rest[:n])
    top = 0
    if dims[2] != 0:
        best, root = _one_root(scores, n, right, left)
        if best > -np.inf:
            chosen[root] = root * n + root
            top = _push(stack, 0, _LEFT, 0, root)
            top = _push(stack, top, _RIGHT, root, n - 1 - root)
    else:
        last, first = rest[n : 2 * n], rest[2 * n : 3 * n + 1]
        best = _many_roots(scores, n, right, left, first, last)
        if best > -np.inf:
            top = _root_spans(n, right, left, first, last, stack, chosen)
    if not best > -np.inf:
        chosen[:n] = -1
        return -np.inf
    _collect(stack, top, n, right, left, right_arc, left_arc, chosen)
    return 0.0
