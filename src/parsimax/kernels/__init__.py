"""Fast row kernels: plain functions on tensors that know nothing of the rest."""
