"""Is it an explanation? Attention beside importance, under tests that could show it is not."""

from .adversarial import Adversarial, Search, adversarial_attention
from .auditable import Auditable, Pull, Text
from .bootstrap import Column, Estimate, estimates
from .divergence import jensen_shannon, normalised_entropy, smoothed_kl, total_variation
from .huggingface import from_model, from_texts
from .importance import importance
from .measures import Measure
from .methods import GradientNorm, GradientTimesInput, IntegratedGradients, LeaveOneOut
from .observe import Exclusion
from .rank import RankCorrelation, kendall_tau, sparsity_ceiling, top_k_overlap
from .result import Audit, Example
from .run import audit
from .trained import (
    AdversarialObjective,
    Comparison,
    adversarial_control,
    compare,
    seed_control,
    uniform_attention,
    uniform_control,
)
from .verdict import Finding, Verdict

__all__ = [
    "Adversarial",
    "AdversarialObjective",
    "Audit",
    "Auditable",
    "Column",
    "Comparison",
    "Estimate",
    "Example",
    "Exclusion",
    "Finding",
    "GradientNorm",
    "GradientTimesInput",
    "IntegratedGradients",
    "LeaveOneOut",
    "Measure",
    "Pull",
    "RankCorrelation",
    "Search",
    "Text",
    "Verdict",
    "adversarial_attention",
    "adversarial_control",
    "audit",
    "compare",
    "estimates",
    "from_model",
    "from_texts",
    "importance",
    "jensen_shannon",
    "kendall_tau",
    "normalised_entropy",
    "seed_control",
    "smoothed_kl",
    "sparsity_ceiling",
    "top_k_overlap",
    "total_variation",
    "uniform_attention",
    "uniform_control",
]
