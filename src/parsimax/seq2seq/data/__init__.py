"""From files to batches: readers, vocabularies, memory-mapped corpora, samplers."""
