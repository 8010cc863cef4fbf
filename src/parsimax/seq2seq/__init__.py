"""Sparse sequence-to-sequence models: data, models, training, search that can prove its result."""
