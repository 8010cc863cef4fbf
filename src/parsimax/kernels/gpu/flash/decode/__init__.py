"""Attention of one query, or of a few, to a long cache of keys, contiguous or in pages.

All queries that share keys make up one tile, and its keys are split over many programs. A first
kernel reads every key once and writes the largest score of every block, and all scores of those
that may have weight; a second one finds the threshold of each query on these. A third reads the
values of live blocks alone, and the last of its programs at each tile adds up what they found, or
a fourth kernel if that is much. Softmax, of which every block is alive, takes the fourth and one
that reads keys and values together.
"""
