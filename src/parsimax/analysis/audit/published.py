"""Figures that were published, to stand beside ours."""

from __future__ import annotations

from typing import NamedTuple

DATA_SETS = {"imdb": "IMDb", "20news": "20 News", "sst": "SST"}
ENCODERS = {"bilstm": "BiLSTM", "transformer": "Transformer"}

# Meister et al. (2021), Table 1: normalised entropy of the gradient-based importance of inputs for
# hidden states, mean and standard deviation.
TABLE_1: dict[tuple[str, str, str], tuple[float, float]] = {
    ("imdb", "bilstm", "softmax"): (0.71, 0.09),
    ("imdb", "bilstm", "sparsemax"): (0.72, 0.10),
    ("imdb", "transformer", "softmax"): (0.76, 0.08),
    ("imdb", "transformer", "sparsemax"): (0.72, 0.09),
    ("20news", "bilstm", "softmax"): (0.75, 0.12),
    ("20news", "bilstm", "sparsemax"): (0.68, 0.12),
    ("20news", "transformer", "softmax"): (0.48, 0.06),
    ("20news", "transformer", "sparsemax"): (0.46, 0.06),
    ("sst", "bilstm", "softmax"): (0.93, 0.05),
    ("sst", "bilstm", "sparsemax"): (0.91, 0.07),
    ("sst", "transformer", "softmax"): (0.73, 0.09),
    ("sst", "transformer", "sparsemax"): (0.63, 0.08),
}

# The same paper, Table 2: correlation of sparsegen's λ with the entropy of the gradient-based
# importance of inputs for the prediction. BiLSTM with tanh, Transformer with dot attention.
TABLE_2: dict[tuple[str, str], float] = {
    ("imdb", "bilstm"): -0.935,
    ("20news", "bilstm"): -0.675,
    ("sst", "bilstm"): -0.866,
    ("imdb", "transformer"): -0.830,
    ("20news", "transformer"): -0.409,
    ("sst", "transformer"): -0.810,
}


class JainWallace(NamedTuple):
    """One data set of Jain & Wallace (2019), BiLSTM with tanh attention and softmax."""

    tau_gradient: float  # gradient × input, attention detached
    tau_leave_one_out: float
    accuracy: float
    auc: float


JAIN_WALLACE: dict[str, JainWallace] = {
    "sst": JainWallace(0.351, 0.291, 0.808, 0.902),
    "imdb": JainWallace(0.437, 0.341, 0.898, 0.960),
    "20news": JainWallace(0.130, 0.123, 0.922, 0.978),
}


def data_set(name: str) -> str | None:
    """Which of the papers' data sets a config's name begins with.

    >>> data_set("sst-bilstm-tanh"), data_set("reviews")
    ('sst', None)
    """
    first = name.lower().replace("_", "-").split("-")[0]
    return first if first in DATA_SETS else None
