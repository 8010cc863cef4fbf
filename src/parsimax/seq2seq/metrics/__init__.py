"""What is reported of a model: right words, translation scores, certificates, sparsity."""
