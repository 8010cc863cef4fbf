"""Sparse, structured and adaptive attention and outputs for PyTorch."""
