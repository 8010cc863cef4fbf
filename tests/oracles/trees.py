"""Every dependency tree of a few words, and every monotone alignment, by enumeration."""

import itertools

import numpy as np


def _reaches_root(heads):
    """No cycle: from every word, heads lead to one that is its own, and so hangs from the root."""
    for word in range(len(heads)):
        for _ in heads:
            word = heads[word]
        if heads[word] != word:
            return False
    return True


def _is_projective(heads):
    """No two arcs cross, where the root stands before the first word."""
    arcs = [
        (-1 if head == word else min(head, word), max(head, word))
        for word, head in enumerate(heads)
    ]
    return not any(a < c < b < d for a, b in arcs for c, d in arcs)


def head_lists(n, single_root=True, projective=False):
    """Heads of the n words of every tree; a word that hangs from the root is its own head."""
    return [
        heads
        for heads in itertools.product(range(n), repeat=n)
        if _reaches_root(heads)
        and (not single_root or sum(h == m for m, h in enumerate(heads)) == 1)
        and (not projective or _is_projective(heads))
    ]


def trees(n, single_root=True, projective=False):
    """(number of trees, n, n) of 0 and 1, as [tree, head, child]."""
    lists = np.array(head_lists(n, single_root, projective))
    out = np.zeros((len(lists), n, n))
    out[np.arange(len(lists))[:, None], lists, np.arange(n)] = 1.0
    return out


def monotone_alignments(n, m):
    """(number of alignments, n, m) of 0 and 1."""
    rows = np.array(list(itertools.combinations_with_replacement(range(n), m)))
    out = np.zeros((len(rows), n, m))
    out[np.arange(len(rows))[:, None], rows, np.arange(m)] = 1.0
    return out
