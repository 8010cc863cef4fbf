"""Encoder-decoder models whose attention and output are chosen by mapping."""
