"""MAP of non-projective dependency trees: the maximum spanning arborescence, in O(n^2).

Scores are n x n, ``scores[h, m]`` for "h is the head of m"; on the diagonal, "m hangs from the
root". Tarjan's (1977) form of the Chu-Liu-Edmonds algorithm on a dense matrix: grow a path
backwards along best incoming arcs, and contract every cycle it closes.

One root is a matter of order, not of a penalty large enough: with arcs compared first by "is not a
root arc" and only then by score, the best arborescence has as few root arcs as there can be, and
Chu-Liu-Edmonds is correct for any such lexicographic order. A cycle holds no root arc, so
contracting never touches the first component, and no score is ever mixed with a big number.

A score of -inf forbids an arc.
"""

from __future__ import annotations

import numpy as np

from parsimax.kernels.cpu.jit import kernel

_ROOT = -1  # as the source of an arc
_NOWHERE = -2  # no arc is allowed


@kernel
def _best_source(inward, root, single_root):
    """The source of the best arc into a node: another node, ``_ROOT`` or ``_NOWHERE``."""
    best, source = -np.inf, _NOWHERE
    for u in range(inward.size):
        if inward[u] > best:
            best, source = inward[u], u
    if root > -np.inf and (source == _NOWHERE or (root > best and not single_root)):
        source = _ROOT
    return source


@kernel
def _contract(inward, arcs, roots, root_arcs, cycle, count, paid, alive):
    """Make the ``count`` nodes of a cycle one node, in the place of ``cycle[0]``."""
    n = alive.size
    c = cycle[0]
    for k in range(count):  # arcs into the cycle
        v = cycle[k]
        row, row_arcs = inward[v], arcs[v]
        for u in range(n):
            row[u] -= paid[k]
        roots[v] -= paid[k]
        if k > 0:
            into, into_arcs = inward[c], arcs[c]
            for u in range(n):
                better = row[u] > into[u]
                into[u] = row[u] if better else into[u]
                into_arcs[u] = row_arcs[u] if better else into_arcs[u]
            if roots[v] > roots[c]:
                roots[c], root_arcs[c] = roots[v], root_arcs[v]
            alive[v] = 0
    for u in range(n):  # arcs out of the cycle
        if alive[u] == 1:
            row, row_arcs = inward[u], arcs[u]
            best, best_arc = row[c], row_arcs[c]
            for k in range(1, count):
                v = cycle[k]
                if row[v] > best:
                    best, best_arc = row[v], row_arcs[v]
                row[v] = -np.inf
            row[c], row_arcs[c] = best, best_arc
    for k in range(count):
        inward[c, cycle[k]] = -np.inf


@kernel
def _expand(n, made, parent, entering, chosen):
    """Undo the contractions, last first: an arc into a cycle displaces the arc of one member."""
    for node in range(made - 1, n - 1, -1):
        member = entering[node] % n
        while parent[member] != node:
            member = parent[member]
        entering[member] = entering[node]
    for m in range(n):
        chosen[m] = entering[m]


@kernel
def _maximum_arborescence(scores, n, single_root, floats, integers, chosen):
    """Fill ``chosen``; whether there is such a tree."""
    inward = floats[: n * n].reshape(n, n)  # inward[v, u]: the arc u -> v, less what it displaces
    roots, paid = floats[n * n : n * n + n], floats[n * n + n : n * n + 2 * n]
    # which arc of the input that is, as an index of scores
    arcs = integers[: n * n].reshape(n, n)
    rest = integers[n * n :]
    root_arcs, name, path, where, alive = (
        rest[:n],
        rest[n : 2 * n],
        rest[2 * n : 3 * n],
        rest[3 * n : 4 * n],
        rest[4 * n : 5 * n],
    )
    parent, entering = rest[5 * n : 7 * n], rest[7 * n : 9 * n]
    for h in range(n):
        for m in range(n):
            inward[m, h] = scores[h * n + m]
            arcs[m, h] = h * n + m
        roots[h] = scores[h * n + h]
        root_arcs[h] = h * n + h
        inward[h, h] = -np.inf
        # Names of nodes: 0 .. n-1 are words, later ones cycles. A cycle takes the place of its
        # first member in these arrays, and name[place] says who stands there now.
        name[h] = h
        alive[h] = 1
        where[h] = -1  # position on the path; -1 where it never was
    # by name: parent, the cycle that a node is a member of; entering, the arc into the node
    made = n
    finished = n  # position of nodes from which the root can be reached: larger than any other
    found_roots = 0

    for start in range(n):
        if alive[start] == 0 or where[start] == finished:
            continue
        length = 1
        path[0] = start
        where[start] = 0
        while True:
            v = path[length - 1]
            u = _best_source(inward[v], roots[v], single_root)
            if u == _NOWHERE:
                return False
            if u == _ROOT:
                entering[name[v]] = root_arcs[v]
                found_roots += 1
                break
            entering[name[v]] = arcs[v, u]
            paid[length - 1] = inward[v, u]
            if where[u] == finished:
                break
            if where[u] < 0:
                path[length] = u
                where[u] = length
                length += 1
                continue
            first = where[u]
            cycle = path[first:length]
            for k in range(cycle.size):
                parent[name[cycle[k]]] = made
            _contract(inward, arcs, roots, root_arcs, cycle, cycle.size, paid[first:length], alive)
            name[u] = made
            made += 1
            length = first + 1
        for k in range(length):
            where[path[k]] = finished

    _expand(n, made, parent, entering, chosen)
    return found_roots == 1 or not single_root


def workspace(dims):
    """Floats and integers that the oracle wants: the contracted graph, and its nodes."""
    n = dims[0]
    return n * n + 2 * n, n * n + 9 * n


@kernel
def oracle(scores, extra, dims, chosen, floats, integers):
    """Best tree; ``dims`` is (n, n, 1 if one word only may hang from the root).

    ``chosen[m]`` is the arc into word m. If every tree has an arc of -inf, -inf is returned and
    ``chosen`` is -1.
    """
    if _maximum_arborescence(scores, dims[0], dims[2] != 0, floats, integers, chosen):
        return 0.0
    chosen[: dims[0]] = -1
    return -np.inf
