"""Sparse, structured and adaptive attention and outputs for PyTorch."""

from .mappings import budget, entmax, normmax, softmax, sparsegen, sparsemax
