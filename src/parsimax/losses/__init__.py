"""Fenchel-Young losses with the arguments of ``torch.nn.functional.cross_entropy``."""

from .entmax import entmax_loss, sparsemax_loss
from .fenchel_young import fenchel_young_loss

__all__ = ["entmax_loss", "fenchel_young_loss", "sparsemax_loss"]
