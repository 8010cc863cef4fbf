"""All labellings, matchings and subsets of small instances, and what is optimal among them.

A distribution over listed structures is optimal if and only if none of them scores more than its
average, once the marginals are subtracted from the scores. What it lacks is the ``gap``, and since
the objective is strongly convex, marginals are off by at most sqrt(2 gap) in Euclidean norm.
"""

import itertools

import numpy as np


def labellings(n, k):
    """(k^n, n, k) of 0 and 1."""
    return np.eye(k)[np.array(list(itertools.product(range(k), repeat=n)))]


def matchings(n, m):
    """(number, n, m): the smaller side fully matched, the larger at most once."""
    if n > m:
        return matchings(m, n).transpose(0, 2, 1)
    return np.eye(m)[np.array(list(itertools.permutations(range(m), n)))]


def subsets(d, k):
    """(number, d): exactly k ones."""
    out = np.zeros((len(list(itertools.combinations(range(d), k))), d))
    for row, chosen in zip(out, itertools.combinations(range(d), k), strict=True):
        row[list(chosen)] = 1.0
    return out


def transition_scores(structures, transitions):
    """One number a labelling; transitions (n - 1, k, k)."""
    pairs = structures[:, :-1, :, None] * structures[:, 1:, None, :]
    return np.where(pairs > 0, transitions, 0.0).sum((1, 2, 3))


def gap(structures, scores, probabilities, chosen, extra=None, chosen_extra=None):
    """How much the best of all ``structures`` gains over a distribution over ``chosen`` ones."""
    total = np.tensordot(structures, scores, scores.ndim)
    mine = np.tensordot(chosen, scores, scores.ndim)
    if extra is not None:
        total, mine = total + extra, mine + chosen_extra
    marginals = np.tensordot(probabilities, chosen, 1)
    overlap = np.tensordot(structures, marginals, scores.ndim)
    return (total - overlap).max() - (probabilities @ mine - (marginals**2).sum())
