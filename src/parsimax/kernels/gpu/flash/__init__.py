"""Attention over many keys that never holds its weights, and skips the blocks that have none.

A first kernel finds the threshold of every query and which blocks of keys lie above it; all further
ones, for the output and for the gradients, visit those blocks alone.
"""
