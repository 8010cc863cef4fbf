"""Attention of one query, or of a few, to a long cache of keys, contiguous or in pages.

All queries that share keys make up one tile, and its keys are split over many programs. A first
kernel reads every key once and writes the scores, and the largest of every block; a second one
finds the threshold of each query on these. A third reads the values of live blocks alone, and a
last one adds up what its programs found.
"""
