"""The losses as Modules, with the arguments of ``torch.nn.CrossEntropyLoss``."""

from __future__ import annotations

from abc import ABC
from typing import Any

from torch import Tensor, nn

from parsimax.attention.choice import hold, read_mapping, shown
from parsimax.losses import (
    entmax_loss,
    fenchel_young_loss,
    linear_entmax_loss,
    sparsemax_loss,
)
from parsimax.losses.targets import check_options
from parsimax.mappings import Mapping
from parsimax.mappings.entmax import check_alpha

from .mappings import MappingModule


class ClassLoss(nn.Module, ABC):
    """The settings that the losses share with ``torch.nn.CrossEntropyLoss``."""

    def __init__(self, ignore_index: int, reduction: str, label_smoothing: float) -> None:
        super().__init__()
        check_options(None, ignore_index, reduction, label_smoothing, 0)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def _settings(self) -> dict[str, Any]:
        return {
            "ignore_index": self.ignore_index,
            "reduction": self.reduction,
            "label_smoothing": self.label_smoothing,
        }

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        return ", ".join(f"{name}={value!r}" for name, value in self._settings().items())


class EntmaxLoss(ClassLoss):
    """``px.entmax_loss``, which is cross-entropy at ``alpha=1``.

    ``alpha`` may be a tensor, and as a Parameter it is registered. Beware of learning it by this
    loss alone: it only falls as alpha grows, whatever the data.

    >>> import torch, parsimax as px
    >>> loss = px.nn.EntmaxLoss(alpha=1.5)
    >>> loss(torch.tensor([[3.0, 0.0, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """

    alpha: Any
    weight: Tensor | None

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(ignore_index, reduction, label_smoothing)
        self.register_buffer("weight", weight)
        check_alpha(alpha)
        hold(self, "alpha", alpha)

    def forward(self, z: Tensor, target: Tensor) -> Tensor:
        """The loss of scores (N, C, ...) for class indices or probabilities."""
        return entmax_loss(z, target, self.alpha, self.weight, **self._settings())

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        return f"alpha={shown(self.alpha)}, {super().extra_repr()}"


class SparsemaxLoss(ClassLoss):
    """``px.sparsemax_loss`` (Martins & Astudillo 2016).

    >>> import torch, parsimax as px
    >>> px.nn.SparsemaxLoss()(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(ignore_index, reduction, label_smoothing)
        self.register_buffer("weight", weight)

    def forward(self, z: Tensor, target: Tensor) -> Tensor:
        """The loss of scores (N, C, ...) for class indices or probabilities."""
        return sparsemax_loss(z, target, weight=self.weight, **self._settings())


class FenchelYoungLoss(ClassLoss):
    """``px.fenchel_young_loss`` of any mapping (Blondel, Martins & Niculae 2020).

    ``mapping`` is a mapping, its text, or one of the Modules of ``px.nn`` such as ``Sparsegen``,
    which may hold a Parameter.

    >>> import torch, parsimax as px
    >>> loss = px.nn.FenchelYoungLoss("sparsegen(lam=0.5)")
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """

    mapping: Any
    weight: Tensor | None

    def __init__(
        self,
        mapping: Mapping | str | MappingModule,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(ignore_index, reduction, label_smoothing)
        self.register_buffer("weight", weight)
        if isinstance(mapping, nn.Module) and not isinstance(mapping, MappingModule):
            raise TypeError(
                "mapping must be a mapping, its text or one of the mapping Modules of px.nn, got "
                f"{type(mapping).__name__}"
            )
        self.mapping = read_mapping(mapping)

    def forward(self, z: Tensor, target: Tensor) -> Tensor:
        """The loss of scores (N, C, ...) for class indices or probabilities."""
        held = isinstance(self.mapping, MappingModule)
        mapping = self.mapping.mapping if held else self.mapping
        return fenchel_young_loss(z, target, mapping, weight=self.weight, **self._settings())

    def extra_repr(self) -> str:
        """Shown in ``print(module)``, which shows a mapping that is a Module by itself."""
        if isinstance(self.mapping, Mapping):
            return f"mapping={self.mapping}, {super().extra_repr()}"
        return super().extra_repr()


class LinearEntmaxLoss(ClassLoss):
    """``px.linear_entmax_loss``: the last linear layer and its loss, without all logits at once.

    The matrix belongs to the model, often tied to its embeddings, so it is given in the call.

    >>> import torch, parsimax as px
    >>> hidden, matrix = torch.randn(5, 4), torch.randn(10, 4)
    >>> px.nn.LinearEntmaxLoss()(hidden, matrix, torch.arange(5)).shape
    torch.Size([])
    """

    alpha: Any
    class_weight: Tensor | None

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(ignore_index, reduction, label_smoothing)
        self.register_buffer("class_weight", class_weight)
        check_alpha(alpha)
        hold(self, "alpha", alpha)

    def forward(
        self, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """The loss of scores ``hidden @ weight.T + bias``."""
        return linear_entmax_loss(
            hidden, weight, target, bias, self.alpha, self.class_weight, **self._settings()
        )

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        return f"alpha={shown(self.alpha)}, {super().extra_repr()}"
