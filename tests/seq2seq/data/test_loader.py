"""Batches as tensors, whoever makes them."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader

from parsimax.seq2seq.data.batching import BatchSampler, collate, make_loader, pad
from parsimax.seq2seq.data.symbols import BOS, EOS, PAD


def sampler(corpus, **options):
    return BatchSampler(corpus.source_lengths, corpus.target_lengths, **options)


def same(a, b):
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in vars(a))


def test_collate(encoded):
    indices = [3, 200, 3, 77]
    batch = collate(encoded, indices)
    assert batch.index.tolist() == indices
    for row, i in enumerate(indices):
        source, target = (side.tolist() for side in encoded[i])
        assert batch.source_lengths[row] == len(source)
        assert batch.source[row].tolist() == source + [PAD] * (batch.source.shape[1] - len(source))
        assert batch.target[row].tolist() == target + [PAD] * (batch.target.shape[1] - len(target))
    assert batch.source.shape[1] == max(len(encoded[i][0]) for i in indices)  # and no wider
    assert batch.target.shape[1] == max(len(encoded[i][1]) for i in indices)
    assert {x.dtype for x in vars(batch).values()} == {torch.int64}
    assert batch.decoder_input[:, 0].tolist() == [BOS] * 4


def test_no_examples(encoded):
    batch = collate(encoded, [])
    assert batch.source.shape == (1, 1)
    assert batch.source_lengths.tolist() == [1]
    assert batch.source[0, 0] == EOS
    assert batch.target.tolist() == [[PAD]]
    assert batch.index.tolist() == [-1]


def test_pad(encoded):
    indices = [5, 9, 100]
    expected = collate(encoded, indices)
    sources, targets = ([encoded[i][side].tolist() for i in indices] for side in (0, 1))
    batch = pad(sources, targets)
    assert torch.equal(batch.source, expected.source)
    assert torch.equal(batch.source_lengths, expected.source_lengths)
    assert torch.equal(batch.target, expected.target)
    assert batch.index.tolist() == [0, 1, 2]
    assert pad(sources).target is None
    with pytest.raises(ValueError, match="at least one symbol"):
        pad([[4], []])
    with pytest.raises(ValueError, match="one for each source, got 1"):
        pad(sources, targets[:1])


@pytest.fixture(scope="module")
def alone(encoded):
    return list(make_loader(encoded, sampler(encoded, size=100, unit="tokens", seed=5)))


@pytest.mark.parametrize("workers", [1, 4])
def test_one_worker_or_four(encoded, alone, workers):
    loader = make_loader(encoded, sampler(encoded, size=100, unit="tokens", seed=5), workers)
    batches = list(loader)
    assert len(loader) == len(batches) == len(alone) > 20
    assert all(map(same, batches, alone))


def test_workers_that_stay_follow_the_epoch(encoded):
    batches = sampler(encoded, size=40)
    loader = make_loader(encoded, batches, 2, persistent=True, prefetch=1)
    for epoch in (0, 1):
        batches.set_epoch(epoch)
        assert [batch.index.tolist() for batch in loader] == list(batches)
    batches.set_epoch(2)
    whole = list(batches)
    batches.skip(2)
    assert [batch.index.tolist() for batch in loader] == whole[2:]
    assert len(loader) == len(whole) - 2


def test_workers_that_are_not_forked(encoded, alone):
    """A corpus is sent to them by its path."""
    batches = sampler(encoded, size=100, unit="tokens", seed=5)
    batches.skip(len(alone) - 3)
    loader = make_loader(encoded, batches, 1)
    loader.multiprocessing_context = multiprocessing.get_context("spawn")
    assert all(map(same, loader, alone[-3:]))


def test_ranks_with_nothing_to_do(encoded):
    batches = [
        list(make_loader(encoded, sampler(encoded, size=50, shuffle=False, rank=r, world=60)))
        for r in range(60)
    ]
    assert {len(of_rank) for of_rank in batches} == {5}
    seen = sorted(
        i for of_rank in batches for batch in of_rank for i in batch.index.tolist() if i >= 0
    )
    assert seen == list(range(201))
    assert batches[59][0].target.tolist() == [[PAD]]


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_draws_no_random_numbers(encoded, workers):
    """Or else dropout would depend on how often a run was resumed."""
    before = torch.get_rng_state()
    for _ in make_loader(encoded, sampler(encoded, size=100), workers):
        pass
    assert torch.equal(torch.get_rng_state(), before)
    # torch's own habit, without which this test would show nothing
    next(iter(DataLoader([1, 2])))
    assert not torch.equal(torch.get_rng_state(), before)


def test_wrong_arguments(encoded):
    batches = sampler(encoded, size=10)
    with pytest.raises(ValueError, match="workers must be a whole number of at least 0, got -1"):
        make_loader(encoded, batches, -1)
    with pytest.raises(ValueError, match="prefetch"):
        make_loader(encoded, batches, 1, prefetch=0)
