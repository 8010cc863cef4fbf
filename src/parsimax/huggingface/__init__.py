"""Sparse attention in models of Hugging Face's transformers.

    px.huggingface.enable(model, alpha=1.5)                      # entmax in every attention layer
    px.huggingface.enable(model, learn_alpha=True)               # one alpha a head, learned
    px.huggingface.save(model, "folder")                         # also if only parts were enabled
    px.huggingface.load(AutoModelForCausalLM, "folder")          # what was saved, with its alphas

Needs ``pip install parsimax[huggingface]``; transformers is imported when a function is called.
"""

from .checkpoint import load, save
from .enabling import alphas, disable, enable

__all__ = ["alphas", "disable", "enable", "load", "save"]
