"""SparseMAP in numba: MAP oracles, the active-set solver, and its derivative."""
