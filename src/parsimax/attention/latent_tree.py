r"""Attention over a sentence by a latent dependency tree (SparseMAP).

.. math:: s_{hm} = k(x_h)^\top q(x_m) / \sqrt{d}, \qquad s_{mm} = r^\top q(x_m) / \sqrt{d}

scores "h is the head of m", and "m hangs from the root", whose key r is learned. Each word attends
to its head, in a mixture of few whole trees.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parsimax._core.records import AttentionOutput
from parsimax.structured import Arborescence, ProjectiveTree, sparsemap
from parsimax.structured.solving import check_tol

from .inputs import check_size
from .memory import check_memory
from .packing import Packing, check_positions

_TREES: dict[str, type[Arborescence] | type[ProjectiveTree]] = {
    "arborescence": Arborescence,
    "projective": ProjectiveTree,
}


@dataclass(frozen=True)
class LatentTree:
    """A mixture of few trees over each sentence, and what words get from it.

    ``structures`` (B, K, n, n) and ``marginals`` are [head, child], the diagonal for the root;
    ``gap`` and ``converged`` (B,) say how exactly it was solved.
    """

    heads: Tensor  # (B, n, dim): the head of each word, the root's vector where it has none
    children: Tensor  # (B, n, dim): the sum of the words that hang from each
    marginals: Tensor  # (B, n, n)
    structures: Tensor
    probabilities: Tensor  # (B, K)
    gap: Tensor
    converged: Tensor


class LatentTreeAttention(nn.Module):
    """Every word attends to its head in a latent dependency tree.

    Args:
        dim: Size of a word's vector.
        tree: ``"arborescence"``, ``"projective"``, or one of these structures with its settings.
        hidden_dim: Size of keys and queries; ``dim`` if None.
        tol: Tolerance of the solver.

    >>> import torch, parsimax as px
    >>> attention = px.nn.LatentTreeAttention(4, tree="projective")
    >>> words = torch.randn(2, 5, 4)
    >>> context, weights = attention(words)
    >>> context.shape, weights.sum(-1).allclose(torch.ones(2, 5))
    (torch.Size([2, 5, 4]), True)
    """

    def __init__(
        self,
        dim: int,
        tree: Arborescence | ProjectiveTree | str = "arborescence",
        hidden_dim: int | None = None,
        *,
        tol: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = check_size(dim, "dim")
        self.hidden_dim = dim if hidden_dim is None else check_size(hidden_dim, "hidden_dim")
        self.tree = _read_tree(tree)
        self.tol = check_tol(tol)
        self.query_proj = nn.Linear(dim, self.hidden_dim, device=device, dtype=dtype)
        self.key_proj = nn.Linear(dim, self.hidden_dim, device=device, dtype=dtype)
        self.root_key = nn.Parameter(torch.empty(self.hidden_dim, device=device, dtype=dtype))
        self.root = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start again at random."""
        self.query_proj.reset_parameters()
        self.key_proj.reset_parameters()
        nn.init.normal_(self.root_key)
        nn.init.normal_(self.root, std=self.dim**-0.5)

    def forward(self, words: Tensor, mask: Tensor | None = None) -> AttentionOutput:
        """Attend.

        Args:
            words: (B, n, dim).
            mask: (B, n), bool, True for the words that there are.

        Returns:
            Context (B, n, dim), each word's head; and weights (B, n, n), one row a word over its
            heads, the diagonal for the root. A masked word has weights and a context of 0.
        """
        found = self.parse(words, mask)
        return AttentionOutput(found.heads, found.marginals.mT)

    def parse(self, words: Tensor, mask: Tensor | None = None) -> LatentTree:
        """Heads and children of all words, and the trees; arguments as in ``forward``."""
        check_memory(words, self.dim, "words", "n")
        packing = Packing.of(check_positions(mask, "mask", words))
        scores = packing.pack(packing.pack(self._scores(words), 1), 2)
        result = sparsemap(scores, self.tree, lengths=packing.lengths, tol=self.tol)
        marginals, structures = (
            packing.unpack(packing.unpack(x, -2), -1) for x in (result.marginals, result.structures)
        )
        from_root = marginals.diagonal(dim1=-2, dim2=-1)
        arcs = marginals - torch.diag_embed(from_root)
        return LatentTree(
            arcs.mT @ words + from_root.unsqueeze(-1) * self.root,
            arcs @ words,
            marginals,
            structures,
            result.probabilities,
            result.gap,
            result.converged,
        )

    def _scores(self, words: Tensor) -> Tensor:
        """(B, head, child), the diagonal for the root."""
        asked = self.query_proj(words) * self.hidden_dim**-0.5
        scores = self.key_proj(words) @ asked.mT
        own = torch.eye(words.shape[1], dtype=torch.bool, device=words.device)
        return torch.where(own, (asked @ self.root_key).unsqueeze(1), scores)

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        return f"dim={self.dim}, tree={self.tree}"


def _read_tree(tree: object) -> Arborescence | ProjectiveTree:
    if isinstance(tree, Arborescence | ProjectiveTree):
        return tree
    if isinstance(tree, str) and tree in _TREES:
        return _TREES[tree]()
    hint = f"; use {tree.__name__}()" if isinstance(tree, type) else ""
    raise ValueError(
        f"tree must be {', '.join(map(repr, _TREES))}, Arborescence(...) or ProjectiveTree(...), "
        f"got {tree!r}{hint}"
    )
