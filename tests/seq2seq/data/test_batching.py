"""Which examples go together: every one once, none over the limit, the same for everybody."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parsimax.seq2seq.data.batching import BatchSampler
from parsimax.seq2seq.data.plan import Shuffler, cut_by_tokens

lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=80)
samplers = st.fixed_dictionaries(
    {
        "size": st.integers(30, 90),
        "unit": st.sampled_from(["sentences", "tokens"]),
        "seed": st.integers(0, 2**40),
        "shuffle": st.booleans(),
        "bucket": st.sampled_from([None, 0, 1, 3]),
    }
)


def sampler(pairs, **options):
    return BatchSampler([s for s, _ in pairs], [t for _, t in pairs], **options)


def some_lengths(count, seed=0):
    draw = random.Random(seed)
    return [(draw.randint(1, 30), draw.randint(1, 30)) for _ in range(count)]


@given(lengths, samplers, st.integers(0, 3))
def test_every_example_once(pairs, options, epoch):
    batches = sampler(pairs, **options)
    batches.set_epoch(epoch)
    listed = list(batches)
    assert sorted(i for batch in listed for i in batch) == list(range(len(pairs)))
    assert all(listed)
    assert len(batches) == batches.batches == len(listed)
    assert all(type(i) is int for batch in listed for i in batch)


@given(lengths, samplers)
def test_no_batch_is_over_the_limit(pairs, options):
    for batch in sampler(pairs, **options):
        if options["unit"] == "tokens":
            assert len(batch) * max(max(pairs[i]) for i in batch) <= options["size"]
        else:
            assert len(batch) <= options["size"]


@given(st.lists(st.integers(1, 9)), st.integers(9, 40))
def test_token_batches_are_as_large_as_they_can_be(sizes, limit):
    """Against a loop that adds one example at a time."""
    expected, begin = [], 0
    for i in range(1, len(sizes) + 1):
        if i == len(sizes) or max(sizes[begin : i + 1]) * (i + 1 - begin) > limit:
            expected.append([begin, i])
            begin = i
    assert cut_by_tokens(np.array(sizes, dtype=np.int32), limit).tolist() == expected


@given(lengths, samplers, st.integers(1, 5))
def test_ranks_share_the_same_batches(pairs, options, world):
    """What validation needs: over all ranks nothing is repeated and nothing is dropped."""
    whole = list(sampler(pairs, **options))
    shares = [list(sampler(pairs, rank=r, world=world, **options)) for r in range(world)]
    assert {len(share) for share in shares} == {len(whole)}  # as many steps on every rank
    for number, batch in enumerate(whole):
        parts = [share[number] for share in shares]
        assert sorted(i for part in parts for i in part) == sorted(batch)
        assert parts == [batch[r::world] for r in range(world)]


@given(lengths, samplers, st.data())
def test_skip_goes_on_where_it_was(pairs, options, data):
    whole = list(sampler(pairs, **options))
    resumed = sampler(pairs, **options)
    done = data.draw(st.integers(0, len(whole)))
    resumed.skip(done)
    assert len(resumed) == len(whole) - done
    assert resumed.batches == len(whole)
    assert list(resumed) == whole[done:]
    resumed.set_epoch(0)  # a trainer says so at the beginning of the epoch it resumes
    assert list(resumed) == whole[done:]
    resumed.set_epoch(1)
    assert len(resumed) == resumed.batches
    resumed.set_epoch(0)
    assert list(resumed) == whole


def test_skip_too_many():
    batches = sampler(some_lengths(10), size=5)
    with pytest.raises(ValueError, match="at most the 2 of epoch 0, got 3"):
        batches.skip(3)
    with pytest.raises(ValueError, match="batches"):
        batches.skip(-1)


def test_seeds_and_epochs_differ():
    pairs = some_lengths(500)
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1)):
        batches = sampler(pairs, size=16, seed=seed, bucket=5)
        batches.set_epoch(epoch)
        orders.append(list(batches))
        assert list(batches) == orders[-1]
    for i, one in enumerate(orders):
        for other in orders[i + 1 :]:
            assert one != other
            # not only the order of the batches: which examples meet differs as well
            assert len({*map(frozenset, one)} & {*map(frozenset, other)}) < 3


def test_order_has_nothing_to_do_with_other_random_numbers():
    pairs = some_lengths(100)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    first = list(sampler(pairs, size=7))
    before = torch.get_rng_state()
    torch.rand(3)
    np.random.rand(3)  # noqa: NPY002
    after = torch.get_rng_state()
    assert list(sampler(pairs, size=7)) == first
    assert torch.equal(torch.get_rng_state(), after)
    assert not torch.equal(before, after)


def test_order_stays_as_it_is():
    """Resuming after an upgrade needs the same permutations."""
    assert Shuffler(3, 1).permutation(10).tolist() == [0, 6, 2, 1, 3, 7, 4, 9, 8, 5]
    assert sorted(Shuffler(0, 0).permutation(1000).tolist()) == list(range(1000))


def test_permutations_are_even():
    """Every place for every element about equally often: 6 sigma of a binomial."""
    trials, size = 3000, 5
    counts = np.zeros((size, size))
    for epoch in range(trials):
        counts[np.arange(size), Shuffler(0, epoch).permutation(size)] += 1
    expected = trials / size
    assert abs(counts - expected).max() < 6 * (expected * (1 - 1 / size)) ** 0.5


def test_not_shuffled_is_the_order_of_the_corpus():
    pairs = some_lengths(50)
    for options in ({"size": 8}, {"size": 64, "unit": "tokens"}):
        batches = sampler(pairs, shuffle=False, **options)
        assert [i for batch in batches for i in batch] == list(range(50))
        batches.set_epoch(3)
        assert [i for batch in batches for i in batch] == list(range(50))


@pytest.mark.parametrize("unit", ["sentences", "tokens"])
def test_buckets_spare_padding(unit):
    draw = random.Random(0)
    pairs = [
        (n, max(1, n + draw.randint(-2, 2))) for n in (draw.randint(1, 60) for _ in range(3000))
    ]
    size = 20 if unit == "sentences" else 640

    def padded(bucket):
        batches = sampler(pairs, size=size, unit=unit, bucket=bucket)
        return sum(len(b) * sum(max(pairs[i][side] for i in b) for side in (0, 1)) for b in batches)

    real = sum(s + t for s, t in pairs)
    assert padded(50) < 1.12 * real
    assert padded(0) > 1.6 * real


def test_buckets_do_not_order_the_epoch_by_length():
    pairs = [(n, n) for n in range(1, 1001)]
    firsts = [max(batch) for batch in sampler(pairs, size=10, bucket=100)]
    assert firsts != sorted(firsts)
    rises = sum(a < b for a, b in pairwise(firsts))
    assert 30 < rises < 70  # of 99


def test_one_sentence_over_the_limit():
    with pytest.raises(
        ValueError,
        match=r"size=20 tokens.*target of example 1 has 35 symbols \(2 of 3 examples.*"
        r"size at least 35.*max_target_length",
    ):
        BatchSampler([3, 30, 20], [25, 35, 20], 20, "tokens")
    assert list(BatchSampler([3, 20], [1, 20], 20, "tokens", shuffle=False)) == [[0], [1]]


def test_signature():
    pairs = some_lengths(20)
    base = {"size": 40, "unit": "tokens", "seed": 1, "bucket": 3}
    same = sampler(pairs, rank=1, world=2, **base)
    same.set_epoch(5)
    assert same.signature == sampler(pairs, **base).signature
    changes = [{"size": 41}, {"unit": "sentences"}, {"seed": 2}, {"bucket": 4}, {"shuffle": False}]
    others = {sampler(pairs, **(base | change)).signature for change in changes}
    others.add(sampler([(t, s) for s, t in pairs], **base).signature)
    assert len(others | {same.signature}) == len(changes) + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be a whole number of at least 1, got 0"),
        ({"size": 2.5}, "size must"),
        ({"unit": "words"}, "unit must be one of sentences, tokens, got 'words'"),
        ({"seed": -1}, "seed must"),
        ({"bucket": -1}, "bucket must"),
        ({"world": 2, "rank": 2}, "rank must be less than world=2, got 2"),
        ({"source_lengths": [1, 2, 3]}, "same examples, got 3 and 2"),
        ({"source_lengths": [1.0, 2.0]}, "source_lengths must be a row of whole numbers"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        BatchSampler(**({"source_lengths": [1, 2], "target_lengths": [1, 2], "size": 4} | options))


def test_epoch_is_a_whole_number():
    with pytest.raises(ValueError, match="epoch"):
        sampler(some_lengths(3), size=2).set_epoch(-1)
