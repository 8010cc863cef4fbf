"""Benchmarks: peers side by side in one run, and no ratio for a result that is wrong."""
