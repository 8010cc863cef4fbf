"""Fenchel-Young losses with the arguments of ``torch.nn.functional.cross_entropy``."""

from .entmax import entmax_loss, sparsemax_loss
from .fenchel_young import fenchel_young_loss
from .linear import linear_entmax_loss

__all__ = ["entmax_loss", "fenchel_young_loss", "linear_entmax_loss", "sparsemax_loss"]
