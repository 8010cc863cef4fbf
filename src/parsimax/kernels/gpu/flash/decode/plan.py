"""All launches of a step, with everything but the addresses: nothing here keeps a tensor alive."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parsimax.kernels.gpu.chain import Chain, Launch
from parsimax.kernels.gpu.flash.arguments import ADDED, kind_of, mask_kind
from parsimax.kernels.gpu.flash.problem import UNLIMITED
from parsimax.kernels.gpu.sizes import pieces, power_of_two

from .output import parts_kernel
from .places import ANY_PAGES, SHORT_PAGES, WHOLE_CACHE, WHOLE_PAGES
from .problem import Cut, Problem
from .scores import promising_kernel, scores_kernel
from .soft import soft_kernel
from .solve import solve_kernel
from .total import sum_kernel
from .uppers import uppers_kernel

_ENOUGH = 2e-3  # surplus of mass at which one more step is the last: it leaves about its square
_FEW_PAGES = 8  # that may make up a block
# Who reads values last adds up all parts of a tile if that takes it a microsecond or two, and the
# registers that it has: numbers of all parts, and of one
_MOST_ADDED, _MOST_OF_PART = 40 << 10, 1024

# tensors of every step
GIVEN = (
    "q", "k", "v", "seen", "lengths", "table", "alphas", "middle", "width", "radius", "out"
)  # fmt: skip
_ALIGNED = 32  # numbers: 128 bytes


class Plan:
    """What a step allocates and launches; written once, for problems that differ in numbers alone.

    Attributes:
        shape: Of the output.
        room: Numbers of float32 that all scratch takes together.
        places: Where in it each piece begins, in bytes.
        chain: Of kernels, for the tensors of GIVEN and then the pieces of scratch.
    """

    def __init__(self, p: Problem) -> None:
        self.shape = (*p.q.shape[:3], p.v.shape[3])
        self.room = 0
        self.places: list[int] = []
        self._which = {name: i for i, name in enumerate(GIVEN)}
        self._pieces: list[tuple[torch.dtype, int]] = []
        self.chain = Chain(_Writer(self, p).launches())

    def piece(self, name: str, numbers: int, dtype: torch.dtype = torch.float32) -> None:
        """Room for so many numbers of four bytes."""
        self._which[name] = len(self._which)
        self._pieces.append((dtype, numbers))
        self.places.append(4 * self.room)
        self.room += pieces(numbers, _ALIGNED) * _ALIGNED

    def which(self, names: str) -> tuple[int, ...]:
        """Places of tensors among all."""
        return tuple([self._which[name] for name in names.split()])

    def cut(self, scratch: Tensor) -> dict[str, Tensor]:
        """The pieces as tensors, by their names."""
        found = {}
        names = [*self._which][len(GIVEN) :]
        for name, place, (dtype, numbers) in zip(names, self.places, self._pieces, strict=True):
            piece = scratch[place // 4 : place // 4 + numbers]
            found[name] = piece if dtype == scratch.dtype else piece.view(dtype)
        return found


class _Writer:
    """Which kernels with which arguments."""

    def __init__(self, plan: Plan, p: Problem) -> None:
        self.plan, self.p, self.cut = plan, p, Cut.of(p)
        heads, q_heads = p.k.shape[1], p.q.shape[1]
        self.counts = (heads, q_heads // heads, p.q.shape[2], p.capacity)
        self.band = p.band or (UNLIMITED, UNLIMITED)
        self.length_step = 0 if p.lengths is None else p.lengths.stride(0)
        table_steps = (0, 0) if p.table is None else p.table.stride()
        self.pages = (p.k.shape[0], self.length_step, *table_steps)
        self.seen_steps = (0, 0, 0, 0) if p.seen is None else p.seen.stride()
        self.tensor = isinstance(p.alpha, Tensor)
        self.beta = 0.0 if isinstance(p.alpha, Tensor) else p.alpha - 1.0
        self.size, self.values = _padded(p.q), _padded(p.v)
        self.causal = {"CAUSAL": p.band is not None, "LENGTHS": p.lengths is not None}
        self.reading = {
            **self.causal,
            "PAGED": _paged(p, self.cut.tiles.columns),
            "PAGE": 1 if p.table is None else p.k.shape[2],
            "ROWS": self.cut.rows,
            "COLUMNS": self.cut.tiles.columns,
        }
        kind, near = kind_of(p.alpha)
        self.chosen = {"KIND": kind, "NEAR": near, "TENSOR": self.tensor}

    def launches(self) -> list[Launch]:
        """In order."""
        if self.beta == 0.0 and not self.tensor:
            splits = self.cut.splits(self.cut.tiles.soft_programs)
            return [self.soft(splits), self.total(splits, soft=True)]
        tiles = self.cut.tiles
        splits = self.cut.splits(tiles.value_programs, tiles.value_parts)
        numbers = self.cut.real * self.values  # of a part
        by_last = splits * numbers <= _MOST_ADDED and numbers <= _MOST_OF_PART
        add = self.together(splits, numbers) if by_last else 0
        scores = self.promising() if self.bounded() else [self.scores()]
        found = [*scores, self.solve(), self.parts(splits, add)]
        return found if by_last else [*found, self.total(splits, soft=False)]

    def together(self, parts: int, numbers: int) -> int:
        """How many parts of so many numbers are read together to be added up."""
        return min(max(1, self.cut.tiles.add // numbers), power_of_two(parts))

    def stages(self, indirect: bool) -> int:
        """For Triton, which shares stages among loads and those that load where from."""
        stages = self.cut.tiles.stages
        return 2 * stages - 1 if indirect else stages

    def soft(self, splits: int) -> Launch:
        """Keys and values in one pass."""
        p, cut = self.p, self.cut
        rows = cut.all_tiles * splits * cut.rows
        self.plan.piece("parts", rows * self.values)
        self.plan.piece("mass", rows)
        self.plan.piece("top", rows)
        names = "q k v seen lengths table parts mass top"
        numbers = (
            p.scale, *self.counts, p.q.shape[3], p.v.shape[3], cut.row_tiles, splits,
            *self.band, *self.pages,
            *p.q.stride()[:3], *p.k.stride(), *p.v.stride(), *self.seen_steps,
        )  # fmt: skip
        options = {
            **self.reading, "MASK": mask_kind(p.seen),
            "K_STRIDED": p.k.stride(3) != 1, "V_STRIDED": p.v.stride(3) != 1,
            "WHOLE": self.size == p.q.shape[3], "SIZE": self.size,
            "WHOLE_VALUES": self.values == p.v.shape[3], "VALUES": self.values,
            "num_warps": cut.tiles.warps, "num_stages": self.stages(p.table is not None),
        }  # fmt: skip
        grid = (splits * cut.all_tiles,)  # the others may not be larger than 65,535
        return Launch(soft_kernel, grid, self.plan.which(names), numbers, options)

    def scores(self) -> Launch:
        """Of all keys, and the largest of every block."""
        p, cut = self.p, self.cut
        splits = cut.splits(cut.tiles.programs)
        self.places_of_scores()
        names = "q k alphas seen lengths table scores tops"
        numbers = (
            p.scale, self.beta, *self.counts, p.q.shape[3], cut.row_tiles, splits, cut.line,
            *self.all_steps(),
        )  # fmt: skip
        options = {
            **self.reading_keys(), "TENSOR": self.tensor,
            "num_stages": self.stages(p.table is not None),
        }  # fmt: skip
        grid = (splits * cut.all_tiles,)
        return Launch(scores_kernel, grid, self.plan.which(names), numbers, options)

    def places_of_scores(self) -> None:
        """Of every key, and the largest of every block."""
        cut = self.cut
        self.plan.piece("scores", cut.all_rows * cut.line * cut.tiles.columns)
        self.plan.piece("tops", cut.all_rows * cut.line)

    def all_steps(self) -> tuple[int, ...]:
        """Of whoever reads keys for all queries."""
        p = self.p
        return (
            *self.band, *self.pages, *p.q.stride()[:3], *p.k.stride(), *self.seen_steps,
        )  # fmt: skip

    def reading_keys(self) -> dict[str, Any]:
        """What they are told."""
        p = self.p
        return {
            **self.reading, "MASK": mask_kind(p.seen), "STRIDED": p.k.stride(3) != 1,
            "WHOLE": self.size == p.q.shape[3], "SIZE": self.size,
            "num_warps": self.cut.tiles.warps,
        }  # fmt: skip

    def bounded(self) -> bool:
        """Whether there are bounds of keys, which say nothing where numbers are added to scores."""
        return self.p.bounds is not None and mask_kind(self.p.seen) != ADDED

    def promising(self) -> list[Launch]:
        """Scores where bounds of the keys allow any weight."""
        p, cut, tiles, bounds = self.p, self.cut, self.cut.tiles, self.p.bounds
        assert bounds is not None
        assert tiles.columns % bounds.block == 0
        together = max(1, tiles.looked_at * bounds.block // tiles.columns)
        lookers, splits = cut.splits(tiles.looking_programs), cut.splits(tiles.programs)
        longest = pieces(cut.blocks, splits)
        self.places_of_scores()
        self.plan.piece("uppers", cut.all_rows * cut.line)
        self.plan.piece("found", cut.all_tiles * lookers * cut.rows)
        self.plan.piece("promising", cut.all_tiles * splits * longest, torch.int32)
        size, steps, options = p.q.shape[3], self.all_steps(), self.reading_keys()
        looking = Launch(
            uppers_kernel, (lookers * cut.all_tiles,),
            self.plan.which("q k seen lengths table middle width radius uppers tops found"),
            (p.scale, *self.counts, size, cut.row_tiles, lookers, cut.line, bounds.middle.shape[2],
             *steps),
            {**options, "BLOCK": bounds.block, "TOGETHER": together,
             "num_stages": tiles.looking_stages},
        )  # fmt: skip
        reading = Launch(
            promising_kernel, (splits * cut.all_tiles,),
            self.plan.which("q k alphas seen lengths table uppers found promising scores tops"),
            (p.scale, self.beta, *self.counts, size, cut.row_tiles, splits, cut.line, lookers,
             longest, *steps),
            {**options, "TENSOR": self.tensor, "REAL": cut.real, "MANY": self.looked_through(),
             "num_stages": self.stages(True)},
        )  # fmt: skip
        return [looking, reading]

    def looked_through(self) -> int:
        """Numbers of blocks that are read together, of each of the queries of a tile."""
        cut = self.cut
        return max(1, min(cut.tiles.value_many // cut.real, power_of_two(cut.blocks)))

    def solve(self) -> Launch:
        """The threshold of each query."""
        cut, tiles = self.cut, self.cut.tiles
        self.plan.piece("lists", cut.all_rows * cut.line, torch.int32)
        for name in ("top", "x", "low"):
            self.plan.piece(name, cut.all_rows)
        self.plan.piece("arrived", cut.all_rows, torch.int32)
        names = "alphas lengths scores tops lists top x low arrived"
        numbers = (self.beta, _ENOUGH, *self.counts, cut.line, *self.band, self.length_step)
        most = power_of_two(cut.blocks)
        options = {
            **self.chosen, **self.causal,
            "HOLD": min(tiles.hold, most), "FEW": min(tiles.few, most),
            "COLUMNS": tiles.columns, "MANY": min(tiles.many, most),
            # sums of the threads of a row must not differ in the last digit: see reductions.solid
            "num_warps": tiles.solve_warps, "enable_fp_fusion": False,
        }  # fmt: skip
        return Launch(solve_kernel, (cut.all_rows,), self.plan.which(names), numbers, options)

    def parts(self, splits: int, add: int) -> Launch:
        """Values of live blocks; ``add`` parts are added up together by the last of a tile."""
        p, cut, tiles = self.p, self.cut, self.cut.tiles
        longest = pieces(cut.blocks, splits)
        self.plan.piece("shares", cut.all_tiles * splits * longest, torch.int32)
        self.plan.piece("parts", cut.all_tiles * splits * cut.rows * self.values)
        self.plan.piece("mass", cut.all_tiles * splits * cut.rows)
        names = "v alphas lengths table scores tops top x low shares parts mass arrived out"
        numbers = (
            self.beta, *self.counts, p.v.shape[3], cut.row_tiles, splits, cut.line, longest,
            *self.band, *self.pages, *p.v.stride(),
        )  # fmt: skip
        few_registers = cut.rows * self.values * p.v.element_size() <= 4096
        options = {
            **self.chosen, **self.reading, "ROUGH": p.q.dtype != torch.float32,
            "STRIDED": p.v.stride(3) != 1, "REAL": cut.real,
            "MANY": self.looked_through(),
            "WHOLE": self.values == p.v.shape[3], "VALUES": self.values, "ADD": add,
            "maxnreg": tiles.registers if few_registers else None,
            "num_warps": tiles.value_warps, "num_stages": self.stages(True),
        }  # fmt: skip
        grid = (splits * cut.all_tiles,)
        return Launch(parts_kernel, grid, self.plan.which(names), numbers, options)

    def total(self, splits: int, soft: bool) -> Launch:
        """Of all parts, for each query."""
        p, cut = self.p, self.cut
        names = "parts mass alphas lengths top out"
        numbers = (*self.counts, p.v.shape[3], cut.row_tiles, splits, self.length_step)
        options = {
            "SOFT": soft, "TENSOR": self.tensor, "LENGTHS": p.lengths is not None,
            "ROWS": cut.rows, "VALUES": self.values,
            "MANY": self.together(splits, self.values), "num_warps": 4,
        }  # fmt: skip
        return Launch(sum_kernel, (cut.all_rows,), self.plan.which(names), numbers, options)


def _paged(p: Problem, columns: int) -> int:
    if p.table is None:
        return int(WHOLE_CACHE.value)
    size = p.k.shape[2]
    if size % columns == 0:
        return int(WHOLE_PAGES.value)
    short = columns % size == 0 and columns // size <= _FEW_PAGES
    return int((SHORT_PAGES if short else ANY_PAGES).value)


def _padded(x: Tensor) -> int:
    return max(16, power_of_two(x.shape[3]))
