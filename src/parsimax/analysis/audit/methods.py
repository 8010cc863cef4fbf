"""Measures of importance, chosen by value: what is computed, with every choice spelled out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parsimax._core.validation import check_choice

REMOVALS = ("delete", "zero", "replace")
WEIGHTS = ("recomputed", "kept", "renormalised")


@dataclass(frozen=True)
class GradientNorm:
    """‖∂f/∂x_i‖₂ (Meister et al. 2021, Eqs. 4 and 5).

    Args:
        detach_attention: Treat the weights as constants, so that no gradient flows through the
            scores; only for the prediction, since hidden states do not depend on attention.
    """

    detach_attention: bool = False
    name: ClassVar[str] = "gradient_norm"


@dataclass(frozen=True)
class GradientTimesInput:
    """|Σ_d ∂f/∂x_id · x_id|, with attention held fixed as in Jain & Wallace (2019)."""

    detach_attention: bool = True
    name: ClassVar[str] = "gradient_x_input"


@dataclass(frozen=True)
class IntegratedGradients:
    """|Σ_d x_id ∫₀¹ ∂f(t·x)/∂x_id dt|: the baseline is the zero vector at every token.

    The signed values, before the absolute value is taken, add up to f(x) − f(0) if attention is
    not detached.

    Args:
        detach_attention: Keep the weights that the text itself has, all along the path.
        steps: Nodes of the Gauss–Legendre rule.
    """

    detach_attention: bool = False
    steps: int = 32
    name: ClassVar[str] = "integrated_gradients"

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps must be a positive int, got {self.steps!r}")


@dataclass(frozen=True)
class LeaveOneOut:
    """How far f moves when one token or hidden state is taken away (Meister et al., Eq. 6).

    For the prediction that is the total variation distance, |Δŷ| for two classes.

    Args:
        removal: "delete" makes the text one shorter, as Jain & Wallace do; "zero" puts a zero
            vector in its place; "replace" puts the token ``replacement`` there (inputs only).
        attention: "recomputed" on what is left; "kept": the weights of the whole text, without the
            one that is gone; "renormalised": the same, scaled to sum to one again.
        replacement: The token for "replace", such as the one for unknown words.
    """

    removal: str = "delete"
    attention: str = "recomputed"
    replacement: int | None = None
    name: ClassVar[str] = "leave_one_out"

    def __post_init__(self) -> None:
        check_choice(self.removal, "removal", REMOVALS)
        check_choice(self.attention, "attention", WEIGHTS)
        if (self.removal == "replace") != (self.replacement is not None):
            raise ValueError(
                "replacement must be given with removal='replace' and only then, got "
                f"removal={self.removal!r}, replacement={self.replacement!r}"
            )


Method = GradientNorm | GradientTimesInput | IntegratedGradients | LeaveOneOut

_BY_NAME: dict[str, type[Method]] = {
    cls.name: cls for cls in (GradientNorm, GradientTimesInput, IntegratedGradients, LeaveOneOut)
}


def method_of(method: str | Method) -> Method:
    """A method from its name, with its defaults.

    >>> method_of("gradient_norm")
    GradientNorm(detach_attention=False)
    """
    if isinstance(method, str):
        return _BY_NAME[check_choice(method, "method", _BY_NAME)]()
    if not isinstance(method, Method):
        raise TypeError(
            f"method must be one of {', '.join(_BY_NAME)} or such an object, got {method!r}"
        )
    return method
