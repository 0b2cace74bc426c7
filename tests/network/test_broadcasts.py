"""Tests one content for many agents: it leaves the master about once and reaches all of them despite failures."""

from __future__ import annotations

from tests.engines import processes
from tests.network.conftest import SpreadOut
from tests.network.test_cut_links import MB, digest

SIZE = 8 * MB


def test_a_broadcast_leaves_the_master_at_most_twice(spread_out: SpreadOut) -> None:
    names = [f"node{number}" for number in range(6)]
    pool = spread_out(*names)
    pool.master.shape(80)
    path = pool.write_input("input", SIZE)
    before = pool.master.bytes_out()
    with pool.run() as run:
        futures = [pool.digest_at(run, name, path) for name in names]
        assert {future.result(timeout=processes.PATIENCE_S).text.split()[0] for future in futures} == {digest(path)}
    assert pool.master.bytes_out() - before <= 2 * SIZE
    pool.assert_nobody_was_blamed(run)


def test_agents_that_cannot_reach_each_other_get_it_from_the_master(spread_out: SpreadOut) -> None:
    names = [f"node{number}" for number in range(4)]
    pool = spread_out(*names)
    pool.network.keep_apart(names)
    path = pool.write_input("input", SIZE)
    with pool.run() as run:
        futures = [pool.digest_at(run, name, path) for name in names]
        assert {future.result(timeout=processes.PATIENCE_S).text.split()[0] for future in futures} == {digest(path)}
    assert pool.master.bytes_out() > len(names) * SIZE
    assert not any(pool.said_by(name) for name in names), "this is nothing to complain of"
    pool.assert_nobody_was_blamed(run)


def test_a_broadcast_goes_on_without_one_that_dies_amid_it(spread_out: SpreadOut) -> None:
    """The first agent fetches it from the master, and the others fetch it from the first while it arrives."""
    others = [f"node{number}" for number in range(3)]
    pool = spread_out("first", *others)
    pool.master.shape(12)
    path = pool.write_input("input", SIZE)
    before = {name: pool.network[name].bytes_in() for name in ("first", *others)}

    def have_more_than(size: int, *names: str) -> bool:
        return all(pool.network[name].bytes_in() - before[name] > size for name in names)

    with pool.run() as doomed, pool.run() as run:
        pool.digest_at(doomed, "first", path)
        processes.wait_until(lambda: have_more_than(MB, "first"), "the first one gets it")
        futures = [pool.digest_at(run, name, path) for name in others]
        processes.wait_until(lambda: have_more_than(2 * MB, *others), "the others get it")
        assert pool.network["first"].bytes_out() > 2 * MB, "they get it through the first one"
        pool.kill("first")
        assert not any(future.done() for future in futures)
        pool.master.shape(100)
        assert {future.result(timeout=processes.PATIENCE_S).text.split()[0] for future in futures} == {digest(path)}
        doomed.cancel()
