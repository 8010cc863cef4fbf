"""What attention does, and whether it explains anything: heads, and audits of faithfulness.

Everything here works on records (tokens, weights, hidden states, scores) and on callables, never on
a model class of ours, so that any PyTorch model can be studied.
"""
