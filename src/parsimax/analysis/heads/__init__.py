"""What the heads of a Transformer do: density, diversity, roles.

Every measure takes :class:`parsimax._core.records.AttentionRecord`, one for each sentence and kind
of attention, and gives one result for each kind. :func:`analyse` takes all measures in one pass.
"""

from parsimax._core.records import AttentionRecord

from .agreement import Agreement, agreement
from .alphas import Trajectory, histogram, read_trajectories, trajectories
from .density import Density, density
from .diversity import Diversity, diversity, jensen_shannon
from .examples import Example
from .huggingface import from_model, from_outputs
from .interrogation import INTERROGATIVES, Interrogation, interrogation
from .merging import Merging, merging
from .positional import Positional, positional
from .relations import search
from .report import HeadReport, ModuleReport, analyse
from .scores import Head, HeadScores
from .tables import head_rows, layer_rows, to_dict, write_csv, write_json
from .words import Word, words

__all__ = [
    "INTERROGATIVES",
    "Agreement",
    "AttentionRecord",
    "Density",
    "Diversity",
    "Example",
    "Head",
    "HeadReport",
    "HeadScores",
    "Interrogation",
    "Merging",
    "ModuleReport",
    "Positional",
    "Trajectory",
    "Word",
    "agreement",
    "analyse",
    "density",
    "diversity",
    "from_model",
    "from_outputs",
    "head_rows",
    "histogram",
    "interrogation",
    "jensen_shannon",
    "layer_rows",
    "merging",
    "positional",
    "read_trajectories",
    "search",
    "to_dict",
    "trajectories",
    "words",
    "write_csv",
    "write_json",
]
