"""Matching, for any ranks: what always holds, and how good it commonly is, with the optimum from scipy to compare."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

from pilotfish.portable.expressions.greedy_matching import greedy

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Pairs = list[tuple[float, int, str]]

any_ranks = st.integers(-3, 3).map(float) | st.floats(-1e6, 1e6)
sparse = st.dictionaries(st.tuples(st.integers(0, 12), st.sampled_from("uvwxyz")), any_ranks, max_size=60)
capacities = st.dictionaries(st.sampled_from("uvwxyz"), st.integers(0, 4))
UNHURRIED = settings(deadline=None)


def one_by_one(ranks: Iterable[tuple[float, int, str]], capacity: dict[str, int] | None = None) -> dict[int, str]:
    """Serve workers one after the other, each with the best remaining tasks: what a queue does that sees one worker at a time."""
    pairs, matched = list(ranks), dict[int, str]()
    for each in sorted({worker for _, _, worker in pairs}):
        matched.update(greedy([(rank, task, worker) for rank, task, worker in pairs if worker == each and task not in matched], capacity))
    return matched


both_ways = pytest.mark.parametrize("match", [greedy, one_by_one])
Match = Callable[..., dict[int, str]]


@both_ways
@UNHURRIED
@given(sparse, capacities)
def test_only_pairs_that_are_allowed_are_matched_and_no_worker_takes_more_than_it_can(
    match: Match, allowed: dict[tuple[int, str], float], capacity: dict[str, int]
) -> None:
    matched = match([(rank, task, worker) for (task, worker), rank in allowed.items()], capacity)
    assert all(pair in allowed for pair in matched.items())
    taken = Counter(matched.values())
    assert all(count <= capacity.get(worker, 1) for worker, count in taken.items())


@both_ways
@UNHURRIED
@given(sparse, capacities)
def test_no_pair_is_left_that_could_be_added(match: Match, allowed: dict[tuple[int, str], float], capacity: dict[str, int]) -> None:
    matched = match([(rank, task, worker) for (task, worker), rank in allowed.items()], capacity)
    taken = Counter(matched.values())
    left = [(task, worker) for task, worker in allowed if task not in matched and taken[worker] < capacity.get(worker, 1)]
    assert not left


@both_ways
@UNHURRIED
@given(sparse, capacities, st.randoms(use_true_random=False))
def test_the_order_in_which_ranks_are_reported_does_not_matter(
    match: Match, allowed: dict[tuple[int, str], float], capacity: dict[str, int], dice: random.Random
) -> None:
    pairs = [(rank, task, worker) for (task, worker), rank in allowed.items()]
    once = match(pairs, capacity)
    dice.shuffle(pairs)
    assert list(match(iter(pairs), capacity).items()) == list(once.items())


@UNHURRIED
@given(sparse)
def test_the_highest_rank_of_all_is_always_matched(allowed: dict[tuple[int, str], float]) -> None:
    matched = greedy([(rank, task, worker) for (task, worker), rank in allowed.items()])
    if allowed:
        assert max(allowed.values()) == max(allowed[pair] for pair in matched.items())


def test_of_equal_ranks_the_older_task_comes_first_and_then_the_first_worker() -> None:
    pairs = [(1.0, task, worker) for task in (9, 3, 7) for worker in ("b", "a")]
    assert list(greedy(pairs).items()) == [(3, "a"), (7, "b")]
    assert list(greedy(pairs, {"b": 2}).items()) == [(3, "a"), (7, "b"), (9, "b")]


def test_one_worker_at_a_time_may_take_what_is_worth_far_more_to_another() -> None:
    pairs = [(2.0, 1, "a"), (1000.0, 1, "b"), (1.0, 2, "a"), (0.0, 2, "b")]
    assert one_by_one(pairs) == {1: "a", 2: "b"}
    assert greedy(pairs) == {1: "b", 2: "a"}


def test_a_rank_that_is_not_a_number_is_none() -> None:
    assert greedy([(float("nan"), 1, "a"), (0.0, 2, "a")]) == {2: "a"}


# --- how good it is ---------------------------------------------------------------------------------------------------------------------


def pairs_of(matrix: Matrix) -> Pairs:
    return [(float(rank), task, f"{worker:04d}") for (task, worker), rank in np.ndenumerate(matrix)]


def total(matrix: Matrix, matched: dict[int, str]) -> float:
    return float(sum(matrix[task, int(worker)] for task, worker in matched.items()))


def optimum(matrix: Matrix) -> float:
    return float(matrix[linear_sum_assignment(matrix, maximize=True)].sum())


@UNHURRIED
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 12), st.integers(1, 3), st.sampled_from([2, 5, 1000]))
def test_the_sum_is_at_least_half_of_the_optimum(seed: int, tasks: int, workers: int, room: int, steps: int) -> None:
    matrix: Matrix = np.random.default_rng(seed).integers(0, steps, (tasks, workers)).astype(float)
    capacity = {f"{worker:04d}": room for worker in range(workers)}
    found = total(matrix, greedy(pairs_of(matrix), capacity))
    best = optimum(np.repeat(matrix, room, axis=1))
    assert best / 2 <= found <= best


def test_half_of_the_optimum_is_all_that_is_promised() -> None:
    matrix: Matrix = np.array([[1.001, 1.0], [1.0, 0.0]])
    assert total(matrix, greedy(pairs_of(matrix))) == pytest.approx(optimum(matrix) / 2, rel=0.001)


def uniform(dice: np.random.Generator, shape: tuple[int, int]) -> Matrix:
    return dice.random(shape)


def cache_hits(dice: np.random.Generator, shape: tuple[int, int]) -> Matrix:
    """1 where the worker has the file that the task needs: each has two of as many files as there are workers."""
    tasks, workers = shape
    needed = dice.integers(0, workers, tasks)
    held = dice.integers(0, workers, (workers, 2))
    hits: Matrix = (needed[:, None, None] == held[None]).any(axis=2).astype(float)
    return hits


def clustered(dice: np.random.Generator, shape: tuple[int, int]) -> Matrix:
    """Eight groups of tasks, and for each some workers that suit it, more or less."""
    task_groups, worker_groups = dice.integers(0, 8, shape[0]), dice.integers(0, 8, shape[1])
    affinity = dice.random((8, 8)) + 2.0 * np.eye(8)
    ranks: Matrix = affinity[task_groups[:, None], worker_groups[None]] + 0.1 * dice.random(shape)
    return ranks


@pytest.mark.parametrize("shape", [(50, 50), (200, 100)], ids=lambda shape: f"{shape[0]}x{shape[1]}")
@pytest.mark.parametrize(("make", "least"), [(uniform, 0.95), (cache_hits, 0.9), (clustered, 0.9)])
def test_commonly_it_is_near_the_optimum_and_no_worse_than_one_worker_at_a_time(
    make: Callable[[np.random.Generator, tuple[int, int]], Matrix], least: float, shape: tuple[int, int]
) -> None:
    dice = np.random.default_rng(2026)
    shares = []
    for _ in range(10):
        matrix = make(dice, shape)
        pairs, best = pairs_of(matrix), optimum(matrix)
        shares.append((total(matrix, greedy(pairs)) / best, total(matrix, one_by_one(pairs)) / best))
    collective, in_turn = (sum(column) / len(shares) for column in zip(*shares, strict=True))
    print(f"{make.__name__} {shape}: greedy {collective:.3f} of the optimum, one by one {in_turn:.3f}")
    assert least <= collective <= 1.0
    assert collective >= in_turn - 0.001
