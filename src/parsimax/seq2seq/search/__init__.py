"""Greedy, sampled, beam and exact search, with certificates."""
