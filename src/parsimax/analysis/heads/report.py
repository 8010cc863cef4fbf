"""Everything about the heads of a model, from one pass over its records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from parsimax._core.records import AttentionRecord

from .alphas import Trajectory
from .checking import Sentence, sentences
from .density import Density, DensityMeasure
from .diversity import Diversity, DiversityMeasure
from .examples import Example, Kind, Pool
from .interrogation import Interrogation, InterrogationMeasure, interrogatives_of
from .merging import Merging, MergingMeasure
from .positional import OFFSETS, Positional, PositionalMeasure
from .words import Marks

_NEIGHBOURS: tuple[tuple[Kind, int], ...] = (("before", -1), ("same", 0), ("after", 1))


@dataclass(frozen=True)
class ModuleReport:
    """All measures of one module; roles are those of self-attention, and None elsewhere."""

    module: str
    layers: int
    heads: int
    sentences: int
    density: Density
    diversity: Diversity
    positional: Positional | None
    merging: Merging | None
    interrogation: Interrogation | None
    alphas: Tensor | None


@dataclass(frozen=True)
class HeadReport:
    """What the heads of one model do.

    Args:
        name: of the model.
        modules: by name, in the order in which records came.
        trajectories: of the alphas during training, by module; empty if they are not known.
        interrogatives: the words that count as interrogative.
        examples: heads that stand out, each on a typical sentence.
    """

    name: str
    modules: Mapping[str, ModuleReport]
    trajectories: Mapping[str, Trajectory] = field(default_factory=dict, repr=False)
    interrogatives: tuple[str, ...] = field(default=(), repr=False)
    examples: tuple[Example, ...] = field(default=(), repr=False)

    @property
    def sentences(self) -> int:
        """How many sentences were read."""
        return max(module.sentences for module in self.modules.values())


class _Module:
    """The measures of one module while records go by."""

    def __init__(
        self,
        first: Sentence,
        interrogatives: Collection[str],
        marks: Marks,
        offsets: Sequence[int],
    ) -> None:
        name = first.record.module
        own = first.record.self_attention
        self.layers, self.heads = first.shape
        self.sentences = 0
        self.density, self.diversity = DensityMeasure(name), DiversityMeasure(name)
        self.positional = PositionalMeasure(name, offsets) if own else None
        self.merging = MergingMeasure(name, marks) if own else None
        self.interrogation = InterrogationMeasure(name, interrogatives, marks) if own else None
        self.pool = Pool(interrogatives, marks)

    def add(self, sentence: Sentence) -> None:
        if (self.positional is not None) != sentence.record.self_attention:
            raise ValueError(
                f"module {sentence.record.module!r}: expected self-attention or attention to "
                "another sentence throughout, got both; give them different names"
            )
        self.sentences += 1
        for measure in (self.density, self.diversity, self.positional, self.merging,
                        self.interrogation, self.pool):  # fmt: skip
            if measure is not None:
                measure.add(sentence)

    def report(self, name: str, alphas: Tensor | None) -> ModuleReport:
        if alphas is not None and alphas.shape != (self.layers, self.heads):
            raise ValueError(
                f"alphas of {name}: expected ({self.layers}, {self.heads}), one a head, got "
                f"{tuple(alphas.shape)}"
            )
        return ModuleReport(
            module=name,
            layers=self.layers,
            heads=self.heads,
            sentences=self.sentences,
            density=self.density.result(),
            diversity=self.diversity.result(),
            positional=self.positional.result() if self.positional else None,
            merging=self.merging.result() if self.merging else None,
            interrogation=self.interrogation.result() if self.interrogation else None,
            alphas=None if alphas is None else alphas.detach().cpu().double(),
        )


def analyse(
    records: Iterable[AttentionRecord],
    *,
    name: str = "model",
    alphas: Mapping[str, Tensor] | None = None,
    trajectories: Mapping[str, Trajectory] | None = None,
    language: str | Collection[str] = "en",
    marks: Marks = "auto",
    offsets: Sequence[int] = OFFSETS,
) -> HeadReport:
    """Measure the heads of a model in one pass, keeping sums and a few sentences.

    Args:
        records: of one model, gone through once.
        name: what reports call the model.
        alphas: (layer, head) of the modules that learned them.
        trajectories: of these alphas, as :func:`parsimax.analysis.heads.read_trajectories` gives.
        language: code of the language of the texts, or its interrogative words.
        marks: how pieces of words are marked.
        offsets: that positional heads may look at.
    """
    asked = interrogatives_of(language)
    measured: dict[str, _Module] = {}
    for sentence in sentences(records):
        module = sentence.record.module
        if module not in measured:
            measured[module] = _Module(sentence, asked, marks, offsets)
        measured[module].add(sentence)
    given = alphas or {}
    if unknown := set(given) - set(measured):
        raise ValueError(
            f"alphas: expected modules among {', '.join(measured)}, got {', '.join(unknown)}"
        )
    modules = {name: each.report(name, given.get(name)) for name, each in measured.items()}
    return HeadReport(
        name=name,
        modules=modules,
        trajectories=dict(trajectories or {}),
        interrogatives=tuple(sorted(asked)),
        examples=tuple(
            example
            for module, each in measured.items()
            for example in _examples(modules[module], each.pool)
        ),
    )


def _examples(report: ModuleReport, pool: Pool) -> Iterable[Example]:
    """One example of each role that a module may have."""
    if report.positional is not None:
        for kind, offset in _NEIGHBOURS:
            if offset in report.positional.offsets:
                for head, mean in report.positional.ranking(offset, 1):
                    yield from _some(pool.positional(kind, head, offset, mean))
    if report.merging is not None:
        for head, mean in report.merging.ranking_split(1):
            yield from _some(pool.merging(head, mean))
    if report.interrogation is not None:
        for head, mean in report.interrogation.ranking(1):
            yield from _some(pool.asking(head, mean, question=True))
            end = report.interrogation.statements.scores[head.layer, head.head].item()
            yield from _some(pool.asking(head, end, question=False))
    if report.positional is not None:
        yield from pool.contrast(report.module, report.density.density) or ()


def _some(example: Example | None) -> tuple[Example, ...]:
    return () if example is None else (example,)
