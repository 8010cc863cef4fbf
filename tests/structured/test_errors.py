"""What sparsemap refuses, and in which words."""

import pytest
import torch

import parsimax as px
from parsimax.structured import Budget, FromOracle, Matching, Sequence

Z = torch.randn(2, 4, 3)


@pytest.mark.parametrize(
    ("structure", "scores", "lengths", "words"),
    [
        (Sequence(), Z, [5, 2], r"between 0 and .*4 x 3, got 5 for rows of item 0"),
        (Sequence(), Z, [4, -1], r"got -1 for rows of item 1"),
        (Sequence(), Z, [[4, 3], [2, 2]], r"lengths of Sequence must have shape \(2,\)"),
        (Matching(), Z, [[4, 3], [4, 4]], r"got 4 for columns of item 1"),
        (Matching(), Z, [4, 2], r"got 4 for columns of item 0"),
        (Matching(), Z, [3], r"\(2,\) or \(2, 2\), got \(1,\)"),
        (Budget(2), torch.randn(2, 5), [6, 2], r"got 6 for columns of item 0"),
        (Budget(3), torch.randn(2, 5), [3, 2], r"got 2 items; k = 3 .*item 1"),
        (FromOracle(torch.zeros_like), torch.zeros(2, 2, 2, 2), [1, 1], r"\(B, d\) or \(B, n, m\)"),
    ],
)
def test_lengths(structure, scores, lengths, words):
    with pytest.raises(ValueError, match=words):
        px.sparsemap(scores, structure, torch.tensor(lengths))


def test_lengths_are_integers_in_a_tensor():
    with pytest.raises(TypeError, match=r"integer dtype, got torch\.float32"):
        px.sparsemap(Z, Sequence(), torch.tensor([1.0, 2.0]))
    with pytest.raises(TypeError, match="lengths must be a tensor of integers, got list"):
        px.sparsemap(Z, Sequence(), [1, 2])


@pytest.mark.parametrize(
    ("transitions", "words"),
    [
        (torch.zeros(3, 4), r"\(k, k\), .*got \(3, 4\)"),
        (torch.zeros(4), r"got \(4,\)"),
        (torch.zeros(4, 4), r"\(3, 3\), \(3, 3, 3\) or \(2, 3, 3, 3\) .*got \(4, 4\)"),
        (torch.zeros(4, 3, 3), r"got \(4, 3, 3\)"),
        (torch.zeros(3, 3, 3, 3), r"got \(3, 3, 3, 3\)"),
    ],
)
def test_transitions_of_a_wrong_shape(transitions, words):
    with pytest.raises(ValueError, match=words):
        px.sparsemap(Z, Sequence(transitions))


def test_transitions_of_a_wrong_kind():
    with pytest.raises(TypeError, match="floating-point"):
        Sequence(torch.zeros(3, 3, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"torch\.Tensor or None, got list"):
        Sequence([[0.0]])


def test_scores():
    with pytest.raises(ValueError, match=r"at least 2 dimensions, got shape \(3,\)"):
        px.sparsemap(torch.zeros(3), Matching())
    with pytest.raises(TypeError, match="floating-point"):
        px.sparsemap(torch.zeros(2, 3, 3, dtype=torch.int64), Matching())
    with pytest.raises(ValueError, match="batch dimension"):
        px.sparsemap(torch.zeros(3), FromOracle(torch.zeros_like))
    with pytest.raises(ValueError, match="got 3 items; k = 4"):
        px.sparsemap(torch.zeros(2, 3), Budget(4))
    with pytest.raises(ValueError, match="mask must broadcast"):
        px.sparsemap(Z, Matching(), mask=torch.ones(5, dtype=torch.bool))


def test_arguments():
    with pytest.raises(TypeError, match=r"px\.structured.*use Matching\(\)"):
        px.sparsemap(Z, Matching)
    with pytest.raises(ValueError, match="tol must be above 0 and finite, got 0"):
        px.sparsemap(Z, Matching(), tol=0)
    for bad in (0, 1.5, True):
        with pytest.raises(ValueError, match="max_iter must be an int of at least 1"):
            px.sparsemap(Z, Matching(), max_iter=bad)
    with pytest.raises(ValueError, match="k of Budget must be at least 0, got -1"):
        Budget(-1)
    for bad in (1.5, True, "2"):
        with pytest.raises(TypeError, match="k of Budget must be an int"):
            Budget(bad)


def test_warm_start_must_fit():
    warm = px.sparsemap(Z, Matching())
    with pytest.raises(TypeError, match="result of sparsemap, got Tensor"):
        px.sparsemap(Z, Matching(), warm_start=warm.marginals)
    with pytest.raises(ValueError, match=r"Matching and scores of shape \(1, 4, 3\), got one"):
        px.sparsemap(Z[:1], Matching(), warm_start=warm)
    with pytest.raises(ValueError, match=r"got one for Matching"):
        px.sparsemap(Z, Sequence(), warm_start=warm)
    two = px.sparsemap(Z[0], Budget(2))
    with pytest.raises(ValueError, match=r"warm_start must be a result for Budget"):
        px.sparsemap(Z[0], Budget(1), warm_start=two)


@pytest.mark.parametrize(
    ("oracle", "error", "words"),
    [
        (
            lambda z: z[:1] > 0,
            ValueError,
            r"shape of the scores it was given, \(4, 3\), got \(1, 3\)",
        ),
        (lambda z: z, ValueError, "zeros and ones, got .* among them"),
        (lambda z: (z > 0).tolist(), TypeError, "got list"),
    ],
)
def test_an_oracle_that_returns_the_wrong_thing(oracle, error, words):
    with pytest.raises(error, match=words):
        px.sparsemap(Z, FromOracle(oracle))


def test_an_oracle_must_be_callable():
    with pytest.raises(TypeError, match="map_oracle must be a function"):
        FromOracle(torch.zeros(3))


def test_what_an_oracle_raises_comes_through():
    def broken(z):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        px.sparsemap(Z, FromOracle(broken))


def test_values_are_needed():
    with pytest.raises(ValueError, match="meta tensor has none"):
        px.sparsemap(torch.zeros(2, 3, 3, device="meta"), Matching())


@pytest.mark.parametrize(
    ("tol", "error", "words"),
    [
        ("x", TypeError, "tol must be a number, got str"),
        (torch.tensor(1e-6), TypeError, "tol must be a number, got Tensor"),
        (None, TypeError, "tol must be a number"),
        (-1, ValueError, "tol must be above 0 and finite, got -1"),
        (0.0, ValueError, "tol must be above 0"),
        (float("nan"), ValueError, "tol must be above 0"),
    ],
)
def test_tolerances(tol, error, words):
    """Attention says so when it is made."""
    with pytest.raises(error, match=words):
        px.sparsemap(torch.zeros(1, 2, 2), Matching(), tol=tol)
    with pytest.raises(error, match=words):
        px.nn.StructuredAttention(4, 4, tol=tol)
    with pytest.raises(error, match=words):
        px.nn.LatentTreeAttention(4, tol=tol)


def test_a_class_in_place_of_a_structure():
    with pytest.raises(ValueError, match=r"use Matching\(\)"):
        px.nn.StructuredAttention(4, 4, structure=Matching)
    with pytest.raises(ValueError, match=r"use Arborescence\(\)"):
        px.nn.LatentTreeAttention(4, tree=px.structured.Arborescence)
