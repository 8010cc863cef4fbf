"""The mappings as Modules.

A number stays a number. A Parameter is registered, so it is learned, saved and loaded with the
module. A plain tensor moves along with the module, but is not part of its state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from parsimax import mappings
from parsimax.attention.choice import hold


class MappingModule(nn.Module, ABC):
    """A mapping and the dimension it acts on. Subclasses only keep the mapping's arguments."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"dim must be an int, got {type(dim).__name__} {dim!r}")
        self.dim = dim

    @property
    @abstractmethod
    def mapping(self) -> mappings.Mapping:
        """The same as the frozen value that attention, losses and configs take."""

    def forward(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Probabilities along ``dim``; ``mask`` is True where a score may receive some."""
        return self.mapping(z, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        _, _, inside = str(self.mapping).partition("(")
        return f"{inside[:-1]}, dim={self.dim}" if inside else f"dim={self.dim}"


class Softmax(MappingModule):
    """``px.softmax`` along ``dim``.

    >>> import torch, parsimax as px
    >>> px.nn.Softmax()(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    @property
    def mapping(self) -> mappings.Mapping:
        """As a value."""
        return mappings.Softmax()


class Sparsemax(MappingModule):
    """``px.sparsemax`` along ``dim``.

    >>> import torch, parsimax as px
    >>> px.nn.Sparsemax()(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """

    @property
    def mapping(self) -> mappings.Mapping:
        """As a value."""
        return mappings.Sparsemax()


class Entmax(MappingModule):
    """``px.entmax`` along ``dim``; give ``alpha`` as a Parameter to learn it.

    >>> import torch, parsimax as px
    >>> px.nn.Entmax(alpha=1.5)(torch.tensor([2.0, 1.0, -1.0]))
    tensor([0.8307, 0.1693, 0.0000])
    >>> learned = px.nn.Entmax(torch.nn.Parameter(torch.tensor(1.5)))
    >>> dict(learned.state_dict())
    {'alpha': tensor(1.5000)}
    """

    alpha: Any

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1) -> None:
        super().__init__(dim)
        mappings.Entmax(alpha)  # checks it
        hold(self, "alpha", alpha)

    @property
    def mapping(self) -> mappings.Mapping:
        """As a value."""
        return mappings.Entmax(self.alpha)


class Sparsegen(MappingModule):
    """``px.sparsegen`` along ``dim``; give ``lam`` as a Parameter to learn it.

    >>> import torch, parsimax as px
    >>> px.nn.Sparsegen(lam=0.5)(torch.tensor([1.0, 0.5, -1.0]))
    tensor([1., 0., 0.])
    """

    lam: Any

    def __init__(self, lam: float | Tensor = 0.0, dim: int = -1) -> None:
        super().__init__(dim)
        mappings.Sparsegen(lam)  # checks it
        hold(self, "lam", lam)

    @property
    def mapping(self) -> mappings.Mapping:
        """As a value."""
        return mappings.Sparsegen(self.lam)


class Normmax(MappingModule):
    """``px.normmax`` along ``dim``; give ``alpha`` as a Parameter to learn it.

    >>> import torch, parsimax as px
    >>> px.nn.Normmax()(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.6890, 0.3110, 0.0000])
    """

    alpha: Any

    def __init__(self, alpha: float | Tensor = 2.0, dim: int = -1) -> None:
        super().__init__(dim)
        mappings.Normmax(alpha)  # checks it
        hold(self, "alpha", alpha)

    @property
    def mapping(self) -> mappings.Mapping:
        """As a value."""
        return mappings.Normmax(self.alpha)


class Budget(MappingModule):
    """``px.budget`` along ``dim``; give ``k`` as a Parameter to learn it.

    >>> import torch, parsimax as px
    >>> px.nn.Budget(k=2)(torch.tensor([2.0, 0.3, 0.1, -1.0]))
    tensor([1.0000, 0.6000, 0.4000, 0.0000])
    """

    k: Any

    def __init__(self, k: float | Tensor = 2, dim: int = -1) -> None:
        super().__init__(dim)
        mappings.Budget(k)  # checks it
        hold(self, "k", k)

    @property
    def mapping(self) -> mappings.Mapping:
        """As a value."""
        return mappings.Budget(self.k)


class Fusedmax(MappingModule):
    """``px.fusedmax`` along ``dim``; give ``lam`` as a Parameter to learn it.

    >>> import torch, parsimax as px
    >>> px.nn.Fusedmax(lam=0.1)(torch.tensor([1.0, 0.9, 0.2, 0.8]))
    tensor([0.4000, 0.4000, 0.0000, 0.2000])
    """

    lam: Any

    def __init__(self, lam: float | Tensor = 0.1, dim: int = -1) -> None:
        super().__init__(dim)
        mappings.Fusedmax(lam)  # checks it
        hold(self, "lam", lam)

    @property
    def mapping(self) -> mappings.Mapping:
        """As a value."""
        return mappings.Fusedmax(self.lam)


class Oscarmax(MappingModule):
    """``px.oscarmax`` along ``dim``; give ``lam`` as a Parameter to learn it.

    >>> import torch, parsimax as px
    >>> px.nn.Oscarmax(lam=0.1)(torch.tensor([1.0, 0.5, 0.95, 0.0]))
    tensor([0.4417, 0.1167, 0.4417, 0.0000])
    """

    lam: Any

    def __init__(self, lam: float | Tensor = 0.01, dim: int = -1) -> None:
        super().__init__(dim)
        mappings.Oscarmax(lam)  # checks it
        hold(self, "lam", lam)

    @property
    def mapping(self) -> mappings.Mapping:
        """As a value."""
        return mappings.Oscarmax(self.lam)


class ConstrainedSoftmax(MappingModule):
    """``px.constrained_softmax`` along ``dim``, with bounds that broadcast to the scores.

    Bounds that change with every call belong to the function, or to ``px.nn.FertilityAttention``.

    >>> import torch, parsimax as px
    >>> px.nn.ConstrainedSoftmax(upper=0.5)(torch.tensor([60.0, 0.0, 0.0]))
    tensor([0.5000, 0.2500, 0.2500])
    """

    upper: Any

    def __init__(self, upper: float | Tensor = 1.0, dim: int = -1) -> None:
        super().__init__(dim)
        mappings.ConstrainedSoftmax(upper)  # checks it
        hold(self, "upper", upper)

    @property
    def mapping(self) -> mappings.Mapping:
        """As a value."""
        return mappings.ConstrainedSoftmax(self.upper)


class ConstrainedSparsemax(MappingModule):
    """``px.constrained_sparsemax`` along ``dim``, with bounds that broadcast to the scores.

    >>> import torch, parsimax as px
    >>> px.nn.ConstrainedSparsemax(upper=0.5, lower=0.1)(torch.tensor([3.0, 1.0, 0.0]))
    tensor([0.5000, 0.4000, 0.1000])
    """

    upper: Any
    lower: Any

    def __init__(
        self, upper: float | Tensor = 1.0, lower: float | Tensor = 0.0, dim: int = -1
    ) -> None:
        super().__init__(dim)
        mappings.ConstrainedSparsemax(upper, lower)  # checks them
        hold(self, "upper", upper)
        hold(self, "lower", lower)

    @property
    def mapping(self) -> mappings.Mapping:
        """As a value."""
        return mappings.ConstrainedSparsemax(self.upper, self.lower)
