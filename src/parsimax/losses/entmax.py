r"""The losses of alpha-entmax (Peters, Niculae & Martins 2019): cross-entropy at alpha = 1.

.. math:: \ell_c(z) = \Omega^*(z) - z_c = \langle p^* - e_c, z \rangle + H_\alpha(p^*)
"""

from __future__ import annotations

from torch import Tensor

from parsimax.mappings.entmax import ENTMAX, check_alpha
from parsimax.mappings.rowmap import Parameter

from .fenchel_young import mapping_loss


def entmax_loss(
    z: Tensor,
    target: Tensor,
    alpha: Parameter = 1.5,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    backend: str = "auto",
) -> Tensor:
    r"""The loss whose probabilities are ``entmax(z, alpha)``, with cross_entropy's arguments.

    .. math:: \sum_c w_c \, y_c \, \ell_c(z), \quad
              \ell_c(z) = \Omega^*(z) - z_c, \quad
              \Omega^*(z) = \langle p^*, z \rangle + H_\alpha(p^*)

    with y the target after smoothing and w the class weights; :math:`\ell_c = -\log p_c` at alpha =
    1, so there it *is* ``torch.nn.functional.cross_entropy``, for every argument. Without weights
    the gradient is p* - y. The loss of a class index is at least 0, and exactly 0 once its score
    leads by the margin 1 / (alpha - 1).

    ``z`` is (C,), (N, C) or (N, C, d1, ...); ``target`` holds class indices, or probabilities in
    the shape of ``z``, which get a gradient if they require one. "mean" divides as torch does: by
    the sum of the targets' weights for indices, by the number of items for probabilities. Half
    precision is computed in float32 and rounded once; under autocast the result is float32.

    Two cases are more defined than in torch: a mean over no items, or ignored ones only, is 0, and
    a target whose score is -inf has an infinite loss with the gradient p* - y.

    ``alpha`` is a number from 1 up, or a tensor of such numbers that broadcasts to ``z`` with size
    1 along the classes, and may require a gradient. But do not *minimise this loss over alpha*:
    for class indices that is degenerate, because the entropy falls as alpha grows, and the loss
    with it, towards max(z) - z_c, which is 0 for every target with the highest score. Learn alpha
    where it shapes a representation (attention), or give it an objective of its own.

    >>> import torch, parsimax as px
    >>> z = torch.tensor([[2.0, 1.0, -1.0], [3.0, 0.5, 0.0]])
    >>> target = torch.tensor([1, 0])
    >>> px.entmax_loss(z, target, reduction="none")
    tensor([1.0617, 0.0000])
    >>> px.entmax_loss(z, target, alpha=1.0), torch.nn.functional.cross_entropy(z, target)
    (tensor(0.7364), tensor(0.7364))
    """
    return mapping_loss(
        ENTMAX,
        z,
        target,
        check_alpha(alpha),
        "alpha",
        weight,
        ignore_index,
        reduction,
        label_smoothing,
        backend,
        add_regularizer=False,
    )


def sparsemax_loss(
    z: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    backend: str = "auto",
) -> Tensor:
    """The loss of sparsemax (Martins & Astudillo 2016): ``entmax_loss`` at alpha = 2.

    A smooth multi-class hinge: with two classes it is 0 beyond a margin of 1, quadratic within.

    >>> import torch, parsimax as px
    >>> px.sparsemax_loss(torch.tensor([[0.5, 0.0], [1.0, 0.0]]), torch.tensor([0, 0]))
    tensor(0.0312)
    """
    return entmax_loss(
        z, target, 2.0, weight, ignore_index, reduction, label_smoothing, backend=backend
    )
