"""From files to batches: readers, vocabularies, memory-mapped corpora, samplers.

files -> readers -> textcodec (segmentation, vocabulary) -> corpus -> batching -> Batch
"""
