"""Fast row kernels: plain functions on tensors, without autograd and without knowledge of the rest."""
