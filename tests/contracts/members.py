"""What the suite must know of each registered mapping: example parameters, an oracle, its limits.

To put a new mapping under the whole contract, register it and add one entry to ``FAMILIES``; a test
fails until that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from tests.oracles import regularizers, rows

import parsimax as px

Row = np.ndarray


def distance(p: Row, expected: Row, **_: float) -> Row:
    """How far a float64 result is off, entry by entry."""
    return np.abs(p - expected)


@dataclass(frozen=True)
class Family:
    """One registered mapping as the contract sees it. Callables take its arguments by keyword."""

    oracle: Callable[..., Row]
    regularizer: Callable[..., Any]
    examples: tuple[dict[str, float], ...] = ({},)  # every one is checked for accuracy
    typical: tuple[int, ...] = (0,)  # which examples go through everything else
    parameter: str | None = None  # the argument that may be a tensor, if any
    room: Callable[..., float] = lambda **_: 1.0  # how far that argument may move
    mass: Callable[..., float] = lambda **_: 1.0
    cap: Callable[..., float] = lambda **_: 1.0  # the most that one entry may receive
    groups: bool = False  # equal entries move as one, so Omega is not smooth where they meet
    reaches: bool = False  # scores far below the largest count
    triton: bool = True  # whether it has a kernel for the GPU
    single: Callable[..., float] = lambda **_: 2e-6  # float32 against float64
    double: Callable[..., Row] = distance  # what must be below 1e-12 in float64
    permutes: bool = True
    orders: bool = True
    # (arguments that must be refused, what the message must say besides the argument's name)
    refuses: tuple[tuple[dict[str, float], str], ...] = ()


def _entmax_distance(p: Row, expected: Row, alpha: float) -> Row:
    """Above alpha = 2 in units of the scores: there p^(alpha - 1) is Lipschitz in them, p is not.

    A score that moves by one ulp moves its probability by ulp^(1/(alpha - 1)), 1e-5 at alpha = 4,
    so what can be asked of float64 is that every entry is right for a score within 1e-12.
    """
    if alpha <= 2:
        return np.abs(p - expected)
    beta = alpha - 1
    return np.abs(p**beta - expected**beta) / beta


def _normmax_distance(p: Row, expected: Row, alpha: float) -> Row:
    """In probability, or in units of the scores, whichever is closer, entry by entry.

    p = r^(1/(alpha - 1)) / sum with r = z - tau. An ulp in the largest score moves tau by an ulp
    and with it every entry of a crowd at the threshold, so that the largest *probability* moves by
    that ulp times the size of the crowd; r = (p / |p|)^(alpha - 1) shows that it is only that.
    """

    def score(q: Row) -> Row:
        order = np.longdouble(alpha)
        return (q / (q**order).sum(-1, keepdims=True) ** (1 / order)) ** (order - 1)

    with np.errstate(invalid="ignore"):
        return np.fmin(np.abs(p - expected), np.abs(score(p) - score(expected)))


def _steep(alpha: float) -> float:
    return 2e-6 if alpha <= 2 else 5e-3


ALPHAS = (1.0, 1 + 1e-6, 1.0001, 1.01, 1.1, 1.3, 1.5, 1.7, 1.9, 1.999, 2.0, 2.5, 4.0)

STRENGTHS = (
    ({"lam": -0.1}, "at least 0.*got -0.1"),
    ({"lam": float("nan")}, "at least 0.*got nan"),
    ({"lam": float("inf")}, "finite.*got inf"),
)
BOUNDS = (
    ({"upper": -0.1}, "at least 0.*got -0.1"),
    ({"upper": float("nan")}, "at least 0.*got nan"),
)

FAMILIES: dict[str, Family] = {
    "softmax": Family(rows.softmax, regularizers.softmax),
    "sparsemax": Family(rows.sparsemax, regularizers.sparsemax),
    "entmax": Family(
        rows.entmax,
        regularizers.entmax,
        examples=tuple({"alpha": alpha} for alpha in ALPHAS),
        typical=tuple(ALPHAS.index(alpha) for alpha in (1.0, 1.3, 1.5, 2.0, 2.5)),
        parameter="alpha",
        single=_steep,
        double=_entmax_distance,
        refuses=(
            ({"alpha": 0.999}, "at least 1.*got 0.999"),
            ({"alpha": -1.5}, "at least 1.*got -1.5"),
            ({"alpha": float("nan")}, "at least 1.*got nan"),
            ({"alpha": float("inf")}, "finite.*got inf"),
        ),
    ),
    "sparsegen": Family(
        rows.sparsegen,
        regularizers.sparsegen,
        examples=tuple({"lam": lam} for lam in (0.5, -3.0, 0.0, 0.999999, -1e6)),
        typical=(0, 1),
        parameter="lam",
        room=lambda lam: 1 - lam,
        refuses=(
            ({"lam": 1.0}, "less than 1.*got 1.0"),
            ({"lam": 2.5}, "less than 1.*got 2.5"),
            ({"lam": float("nan")}, "less than 1.*got nan"),
            ({"lam": float("-inf")}, "finite.*got -inf"),
        ),
    ),
    "normmax": Family(
        rows.normmax,
        regularizers.normmax,
        examples=tuple({"alpha": alpha} for alpha in (2.0, 1.5, 1.001, 1.1, 3.0, 10.0, 100.0)),
        typical=(0, 1, 4),
        parameter="alpha",
        room=lambda alpha: alpha - 1,
        single=_steep,
        double=_normmax_distance,
        refuses=(
            ({"alpha": 1.0}, "greater than 1.*got 1.0"),
            ({"alpha": 0.5}, "greater than 1.*got 0.5"),
            ({"alpha": float("nan")}, "greater than 1.*got nan"),
            ({"alpha": float("inf")}, "finite.*got inf"),
        ),
    ),
    "budget": Family(
        rows.budget,
        regularizers.budget,
        examples=tuple({"k": k} for k in (1.25, 2, 1, 1e-6, 0.5, 30.999)),
        typical=(0, 1),
        parameter="k",
        room=lambda k: min(k, 0.5),
        mass=lambda k: k,
        refuses=(
            ({"k": -0.5}, "at least 0.*got -0.5"),
            ({"k": float("nan")}, "at least 0.*got nan"),
            ({"k": float("inf")}, "finite.*got inf"),
        ),
        reaches=True,
    ),
    "fusedmax": Family(
        rows.fusedmax,
        regularizers.fusedmax,
        examples=tuple({"lam": lam} for lam in (0.1, 0.5, 1e-3, 20.0)),
        typical=(0, 1),
        parameter="lam",
        room=lambda lam: lam,
        permutes=False,
        orders=False,
        groups=True,
        reaches=True,
        triton=False,
        refuses=STRENGTHS,
    ),
    "oscarmax": Family(
        rows.oscarmax,
        regularizers.oscarmax,
        examples=tuple({"lam": lam} for lam in (0.1, 0.01, 1e-4, 3.0)),
        typical=(0, 1),
        parameter="lam",
        room=lambda lam: lam,
        groups=True,
        reaches=True,
        triton=False,
        refuses=STRENGTHS,
    ),
    # bounds for every entry are tested in tests/mappings/test_constrained.py
    "constrained_softmax": Family(
        rows.constrained_softmax,
        regularizers.constrained_softmax,
        examples=tuple({"upper": upper} for upper in (0.6, 1.0, 0.05)),
        cap=lambda upper: upper,
        reaches=True,
        triton=False,
        refuses=BOUNDS,
    ),
    "constrained_sparsemax": Family(
        rows.constrained_sparsemax,
        regularizers.constrained_sparsemax,
        examples=({"upper": 0.6}, {"upper": 1.0}, {"upper": 0.05}, {"upper": 0.7, "lower": 1e-5}),
        cap=lambda upper, lower=0.0: upper,
        reaches=True,
        triton=False,
        refuses=BOUNDS,
    ),
}


@dataclass(frozen=True, eq=False)
class Member:
    """A registered mapping at example arguments."""

    name: str
    arguments: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = ",".join(f"{key}={value:.10g}" for key, value in self.arguments.items())
        return f"{self.name}({inside})" if inside else self.name

    @property
    def family(self) -> Family:
        return FAMILIES[self.name]

    @cached_property
    def mapping(self) -> px.mappings.Mapping:
        return px.mappings.registry()[self.name](**self.arguments)

    def function(self, z: Any, *args: Any, **options: Any) -> Any:
        """The public function, e.g. ``px.entmax(z, alpha=1.3, ...)``."""
        return getattr(px, self.name)(z, *args, **{**self.arguments, **options})

    @property
    def mass(self) -> float:
        return self.family.mass(**self.arguments)

    @property
    def smallest(self) -> int:
        """The smallest row that has a solution."""
        return max(1, int(np.ceil(self.mass / self.cap)))

    @property
    def cap(self) -> float:
        """The most that one entry may receive."""
        return self.family.cap(**self.arguments)

    def pattern(self, p: Row) -> bytes:
        """What must stay as it is for the mapping to be smooth."""
        bounds = (p > 0) + 2 * (p >= self.cap)
        groups = p[:, None] == p if self.family.groups else bounds[:0]
        return bounds.tobytes() + groups.tobytes()

    @property
    def parameter(self) -> float:
        """The value of the argument that may be a tensor."""
        return float(self.arguments[self.family.parameter])

    def oracle(self, z: Row, **arguments: float) -> Row:
        """One row in extended precision."""
        return self.family.oracle(z, **{**self.arguments, **arguments})

    def oracle_rows(self, z: Row) -> Row:
        """Every row of a matrix."""
        return np.stack([self.oracle(row) for row in z])


MEMBERS = [
    Member(name, arguments) for name, family in FAMILIES.items() for arguments in family.examples
]
TYPICAL = [
    Member(name, family.examples[i]) for name, family in FAMILIES.items() for i in family.typical
]
WITH_PARAMETER = [member for member in TYPICAL if member.family.parameter]
ON_GPU = [member for member in TYPICAL if member.family.triton]
PARAMETERS_ON_GPU = [member for member in WITH_PARAMETER if member.family.triton]
