"""Names of measures as a page writes them."""

from __future__ import annotations

import re

from parsimax.analysis.audit import Estimate

_METHODS = {
    "gradient_norm": "gradient",
    "gradient_x_input": "gradient × input",
    "integrated_gradients": "integrated gradients",
    "leave_one_out": "leave-one-out",
}
_SOURCES = {
    "inputs": "of words",
    "hidden": "of hidden states",
    "inputs-to-hidden": "of words for hidden states",
}
_NAME = re.compile(rf"\b({'|'.join(_METHODS)})(\([^)]*\))?:(inputs-to-hidden|inputs|hidden)")
_KEY = re.compile(r" \([a-z_0-9]+/[^()]*(\([^()]*\)[^()]*)*\)$")

MEASURES = {
    "tau_b": "agreement in order (τ-b)",
    "tau_b_ceiling": "the most that ties allow",
    "tau_b_of_ceiling": "agreement as a share of that",
    "tau_b_significant": "share of texts with evidence of any agreement",
    "tau_b_support": "agreement on attended words alone",
    "tau_b_difference": "agreement with hidden states less agreement with words",
    "entropy": "spread (normalised entropy)",
    "density": "share of words with any attention",
    "own_share": "share of a hidden state that is due to its own word",
    "own_first": "share of hidden states moved most by their own word",
    "comprehensiveness": "drop when the first words are removed",
    "sufficiency": "drop when only the first words are kept",
    "comprehensiveness_difference": "drop when removed, less that of random words",
    "sufficiency_difference": "drop when kept alone, less that of random words",
    "prediction_moved": "move of the prediction",
    "decision_changed": "share of decisions changed",
    "jsd": "distance from attention (Jensen–Shannon)",
    "far": "share of texts with very different weights",
    "mixed": "share of texts where the search had to be mixed with attention",
}


def subject(name: str) -> str:
    """An importance, or anything else that a measure is of.

    >>> subject("gradient_norm:inputs"), subject("leave_one_out:hidden"), subject("attention")
    ('gradient of words', 'leave-one-out of hidden states', 'attention')
    """
    return _NAME.sub(lambda m: f"{_METHODS[m[1]]}{_options(m[2])} {_SOURCES[m[3]]}", name)


def method(name: str) -> str:
    """The method of an importance alone.

    >>> method("gradient_x_input:inputs"), method("random")
    ('gradient × input', 'random order')
    """
    if name == "random":
        return "random order"
    return _NAME.sub(lambda m: f"{_METHODS[m[1]]}{_options(m[2])}", name)


def measure(name: str) -> str:
    """What a measure is called.

    >>> measure("top_3_overlap"), measure("far")
    ('overlap of the first 3 words', 'share of texts with very different weights')
    """
    found = re.fullmatch(r"top_(\d+)_overlap", name)
    return f"overlap of the first {found[1]} words" if found else MEASURES.get(name, name)


def plain(sentence: str) -> str:
    """A sentence of a verdict without the names that code has for things.

    >>> plain("gradient_norm:inputs: 0.4 over 9 texts (tau_b/attention/gradient_norm:inputs)")
    'gradient of words: 0.4 over 9 texts'
    """
    return subject(_KEY.sub("", sentence))


def number(value: float, digits: int = 2) -> str:
    """A number with a real minus sign; a dash where it is not defined."""
    if value != value:
        return "–"
    shown = f"{value:.{digits}f}"
    return f"{0:.{digits}f}" if float(shown) == 0 else shown.replace("-", "−")


def interval(estimate: Estimate, digits: int = 2) -> str:
    """Mean and interval."""
    if not estimate.count:
        return "–"
    if estimate.low != estimate.low:
        return number(estimate.mean, digits)
    low, high = number(estimate.low, digits), number(estimate.high, digits)
    return f"{number(estimate.mean, digits)} [{low}, {high}]"


def _options(given: str | None) -> str:
    if not given:
        return ""
    return f" ({given.strip('()').replace('_', ' ').replace('=', ' ').replace(chr(39), '')})"
