"""The sites of a running master: added, changed and removed, each pilot with whoever sent it; and no site can end the master."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pilotfish import plugins
from pilotfish.backends.interface import ENDED, PilotBatch
from pilotfish.errors import BadInput
from pilotfish.master.sites import site_access, ssh_connection
from pilotfish.master.sites.site_controller import CONNECTION_KEYS
from pilotfish.master.sites.site_router import SiteRouter
from pilotfish.master.sites.submitted_batches import BatchRegistry
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model.settings import PoolSettings
from pilotfish.model.site import LOCAL, REFUSED, PilotSize, Site
from pilotfish.store.keyring import open_keyring
from pilotfish.store.pool_directory import PoolDirectory
from tests.support.fake_site import PATIENCE_S, PERIOD_S, FakeSite, hasty

ONE = PilotSize()
POND = Site(backend="slurm", period_s=PERIOD_S)


class Way:
    """Access to a fake batch system."""

    def __init__(self, system: FakeSite, runner: Any, master_address: tuple[str, int]) -> None:
        self.system, self.runner, self.master_address = system, runner, master_address
        self.on_new_endpoints: Callable[[], None] = lambda: None
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.system, name)

    async def prepare_batch(self, *about: Any) -> Any:
        batch = await self.system.prepare_batch(*about)
        batch.site = self.runner.name
        return batch

    def change_site(self, site: Site) -> None:
        self.runner.site = site

    async def close(self) -> None:
        self.closed = True


class LocalPilots:
    """Stands for the controller of this machine; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def submit(self, pilot: str, size: PilotSize) -> None:
        self.asked.append(("submit", pilot))

    def adopt(self, pilot: str, size: PilotSize, job: str) -> None:
        self.asked.append(("adopt", pilot))

    def cancel(self, pilot: str) -> None:
        self.asked.append(("cancel", pilot))

    async def end(self) -> None:
        self.asked.append(("end", ""))


class Harbour:
    """Site controllers over one fake batch system, ``pond`` and its like all leading to it."""

    def __init__(self, directory: Path) -> None:
        self.pool = PoolDirectory(directory / "pools" / "shoal").make()
        self.system = FakeSite()
        self.ways: list[Way] = []
        self.told: list[i.Input] = []
        self.start()

    def start(self) -> None:
        """A master, perhaps after another one was killed."""
        self.ways.clear()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        self.here = LocalPilots()
        self.controllers = SiteRouter(self.pool, open_keyring(self.pool.directory), PoolSettings(), self.told.append, lambda pilot: None)
        self.controllers.local = self.here  # type: ignore[assignment]

    def way(self, runner: Any, keyring: Any, master_address: tuple[str, int]) -> Way:
        self.ways.append(Way(self.system, runner, master_address))
        return self.ways[-1]

    def describe(self, name: str, site: Site | None) -> None:
        self.controllers.perform(e.DescribeSite(name, site))

    def submit(self, pilot: str) -> None:
        self.controllers.perform(e.SubmitPilot(pilot, pilot.partition("-")[0], ONE))

    def jobs(self) -> dict[str, str]:
        return {item.pilot: item.job for item in self.told if isinstance(item, i.PilotAccepted)}

    def gone(self) -> dict[str, i.PilotEndReported]:
        return {item.pilot: item for item in self.told if isinstance(item, i.PilotEndReported)}

    def order_files(self) -> list[str]:
        return [batch.tag for batch in BatchRegistry(self.pool.directory / "orders").all()]

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (self.told[-5:], self.system.commands[-5:])
            await asyncio.sleep(0.002)


def use_backend(monkeypatch: pytest.MonkeyPatch, name: str, system: Any) -> None:
    """Let the sites of this backend be spoken to through ``system``."""
    load = plugins.load

    def make() -> Any:
        return system

    make.traits = plugins.traits(name)  # type: ignore[attr-defined]
    monkeypatch.setattr(plugins, "load", lambda kind, wanted: make if (kind, wanted) == ("backends", name) else load(kind, wanted))


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Harbour], Coroutine[Any, Any, None]]], Harbour]:
    """Plays a story; at its end nothing may be under way."""
    monkeypatch.setattr(ssh_connection, "MAX_TEMPORARY_PATH", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(story: Callable[[Harbour], Coroutine[Any, Any, None]]) -> Harbour:
        async def whole() -> Harbour:
            harbour = Harbour(tmp_path)
            use_backend(monkeypatch, "slurm", harbour.system)
            monkeypatch.setattr(site_access, "SiteAccess", harbour.way)
            await story(harbour)
            harbour.system.faults, harbour.system.down = {}, None
            await harbour.controllers.end()
            await harbour.until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
            assert all(way.closed for way in harbour.ways)
            return harbour

        with hasty():
            return asyncio.run(whole())

    return run


def test_pilots_of_this_machine_go_to_the_local_controller(play: Any) -> None:
    async def story(harbour: Harbour) -> None:
        harbour.controllers.perform(e.SubmitPilot("local-1", LOCAL, ONE))
        harbour.controllers.perform(e.AdoptPilot("local-2", LOCAL, ONE, "7:1"))
        harbour.controllers.perform(e.CancelPilot("local-1"))
        assert harbour.here.asked == [("submit", "local-1"), ("adopt", "local-2"), ("cancel", "local-1")]

    harbour = play(story)
    assert not harbour.ways and not (harbour.pool.directory / "orders").exists()


def test_a_pilot_that_no_controller_has_is_gone_when_it_is_cancelled(play: Any) -> None:
    async def story(harbour: Harbour) -> None:
        harbour.controllers.perform(e.CancelPilot("local-7"))
        harbour.controllers.perform(e.CancelPilot("pond-8"))
        assert not harbour.here.asked
        assert [(gone.well, gone.reason) for gone in harbour.gone().values()] == [(True, "was not running")] * 2

    play(story)


def test_a_site_that_is_added_gets_a_courier_that_ends_with_the_master(play: Any) -> None:
    async def story(harbour: Harbour) -> None:
        harbour.controllers.set_address("127.0.0.1", 77)
        harbour.describe("pond", POND)
        harbour.describe("lake", POND)
        harbour.submit("pond-1")
        harbour.submit("lake-2")
        await harbour.until(lambda: len(harbour.jobs()) == 2)
        assert [(way.runner.name, way.master_address) for way in harbour.ways] == [("pond", ("127.0.0.1", 77)), ("lake", ("127.0.0.1", 77))]

    harbour = play(story)
    assert set(harbour.gone()) == {"pond-1", "lake-2"} and not any(job.listed for job in harbour.system.jobs.values())
    assert harbour.order_files() == []


def test_a_pilot_for_a_site_that_is_not_there_is_refused(play: Any) -> None:
    async def story(harbour: Harbour) -> None:
        harbour.submit("reef-1")
        gone = harbour.gone()["reef-1"]
        assert (gone.well, gone.cause) == (False, REFUSED) and "there is no site reef" in gone.reason

    play(story)


def test_limits_of_a_site_change_without_another_courier(play: Any) -> None:
    async def story(harbour: Harbour) -> None:
        harbour.describe("pond", POND)
        harbour.submit("pond-1")
        await harbour.until(harbour.jobs)
        changed = Site(backend="slurm", period_s=PERIOD_S, max_pilots=99, walltime_s=7.0, queue="long")
        harbour.describe("pond", changed)
        (way,) = harbour.ways
        assert way.runner.site is changed and not way.closed
        sites: list[Site] = []
        submit = harbour.system.submit

        def spy(site: Site, batch: PilotBatch) -> Any:
            sites.append(site)
            return submit(site, batch)

        harbour.system.submit = spy  # type: ignore[method-assign]
        harbour.submit("pond-2")
        await harbour.until(lambda: len(harbour.jobs()) == 2)
        assert sites == [changed]

    play(story)


OTHER: dict[str, Any] = {
    "backend": "sge",
    "via": "login",
    "hosts": ("crab",),
    "folder": "/scratch/pf",
    "options": {"ssh_config": "there"},
    "environment": {"SLURM_CONF": "there"},
    "commands_at_once": 7,
    "submissions_per_minute": 7.0,
    "reach": "direct",
    "address": "master.example.org",
}


@pytest.mark.parametrize("field", CONNECTION_KEYS)
def test_a_site_that_is_spoken_to_in_another_way_gets_another_courier_and_its_pilots_keep_theirs(
    play: Any, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    async def story(harbour: Harbour) -> None:
        use_backend(monkeypatch, "sge", harbour.system)
        harbour.describe("pond", POND)
        harbour.submit("pond-1")
        await harbour.until(harbour.jobs)
        harbour.describe("pond", Site(**{"backend": "slurm", "period_s": PERIOD_S, field: OTHER[field]}))
        harbour.submit("pond-2")
        await harbour.until(lambda: len(harbour.jobs()) == 2)
        former, present = harbour.ways
        assert former.runner.site is POND and not former.closed
        harbour.controllers.perform(e.CancelPilot("pond-1"))
        await harbour.until(lambda: list(harbour.gone()) == ["pond-1"])
        await harbour.until(lambda: former.closed)
        assert not present.closed, "who has nobody left to look after holds no connection"
        harbour.controllers.perform(e.CancelPilot("pond-2"))
        await harbour.until(lambda: len(harbour.gone()) == 2)

    play(story)


def test_a_site_that_is_removed_is_left_and_may_come_back(play: Any) -> None:
    async def story(harbour: Harbour) -> None:
        harbour.describe("pond", POND)
        harbour.submit("pond-1")
        await harbour.until(harbour.jobs)
        harbour.controllers.perform(e.CancelPilot("pond-1"))
        await harbour.until(harbour.gone)
        harbour.describe("pond", None)
        await harbour.until(lambda: harbour.ways[0].closed)
        harbour.submit("pond-2")
        assert "there is no site pond" in harbour.gone()["pond-2"].reason
        harbour.describe("pond", POND)
        harbour.submit("pond-3")
        await harbour.until(lambda: "pond-3" in harbour.jobs())

    play(story)


def test_pilots_of_a_site_that_is_removed_are_looked_after_to_their_end(play: Any) -> None:
    """The machine describes a site as gone only when its pilots are; whoever does otherwise loses none of them."""

    async def story(harbour: Harbour) -> None:
        harbour.describe("pond", POND)
        harbour.submit("pond-1")
        await harbour.until(harbour.jobs)
        harbour.describe("pond", None)
        harbour.system.show(phase=ENDED, reason="it ended")
        await harbour.until(harbour.gone)
        await harbour.until(lambda: harbour.ways[0].closed)

    play(story)


def test_a_site_for_which_no_courier_can_be_made_does_not_end_the_master(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    control_directory = ssh_connection.control_directory

    def refuse(pool: Path) -> Path:
        raise BadInput("/tmp/pilotfish-0 belongs to another user", "chown 0 /tmp/pilotfish-0")

    async def story(harbour: Harbour) -> None:
        monkeypatch.setattr(ssh_connection, "control_directory", refuse)
        harbour.describe("pond", POND)
        assert any(isinstance(item, i.SiteReachability) and "belongs to another user" in item.trouble for item in harbour.told)
        harbour.submit("pond-1")
        assert harbour.gone()["pond-1"].cause == REFUSED and "belongs to another user" in harbour.gone()["pond-1"].reason
        harbour.controllers.perform(e.AdoptPilot("pond-2", "pond", ONE, "17"))
        assert "pond-2" not in harbour.gone(), "it may well be at work"
        monkeypatch.setattr(ssh_connection, "control_directory", control_directory)
        harbour.describe("pond", POND)
        harbour.submit("pond-3")
        await harbour.until(lambda: "pond-3" in harbour.jobs())

    play(story)


@pytest.mark.parametrize("kind", ["place", "stage", "submit", "query", "past", "find", "cancel", "clear"])
def test_whatever_a_site_does_nothing_of_it_reaches_the_master(play: Any, kind: str) -> None:
    async def story(harbour: Harbour) -> None:
        harbour.system.faults[kind] = [RecursionError("strange"), OSError("strange")]
        harbour.system.lost_replies = int(kind == "find")
        harbour.describe("pond", POND)
        harbour.submit("pond-1")
        await harbour.until(harbour.jobs)
        if kind == "past":
            harbour.system.jobs["1"].listed = False
        else:
            harbour.controllers.perform(e.CancelPilot("pond-1"))
        await harbour.until(harbour.gone)
        await harbour.until(lambda: not harbour.order_files())
        assert harbour.system.faults[kind] == []

    play(story)


def test_a_disk_that_takes_no_orders_only_delays_them(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write, faults = BatchRegistry.write, [OSError("No space left on device")] * 3

    def reluctant(registry: BatchRegistry, batch: Any) -> None:
        if faults:
            raise faults.pop()
        write(registry, batch)

    async def story(harbour: Harbour) -> None:
        monkeypatch.setattr(BatchRegistry, "write", reluctant)
        harbour.describe("pond", POND)
        harbour.submit("pond-1")
        await harbour.until(harbour.jobs)
        assert len(harbour.system.asked("submit")) == 1

    play(story)


# --- what a master left that was killed -----------------------------------------------------------------------------------------------


def test_orders_whose_pilots_are_gone_are_cleared_after_a_restart_and_no_others(play: Any) -> None:
    async def story(harbour: Harbour) -> None:
        harbour.describe("pond", POND)
        harbour.submit("pond-1")
        harbour.submit("pond-2")
        await harbour.until(lambda: len(harbour.jobs()) == 2)
        left, kept = (harbour.system.jobs[harbour.jobs()[pilot]].tag for pilot in ("pond-1", "pond-2"))
        harbour.start()
        harbour.describe("pond", POND)
        harbour.controllers.perform(e.AdoptPilot("pond-2", "pond", ONE, harbour.jobs()["pond-2"]))
        await harbour.until(lambda: harbour.order_files() == [kept])
        assert harbour.system.cleared == [left]
        await harbour.until(lambda: not harbour.system.jobs[harbour.jobs()["pond-1"]].listed)
        assert harbour.system.jobs[harbour.jobs()["pond-2"]].listed

    harbour = play(story)
    assert harbour.order_files() == []


def test_orders_of_a_site_that_is_no_longer_described_are_forgotten_at_the_end(play: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can clear them, and whoever stops a pool need not start a master for them again and again."""

    async def story(harbour: Harbour) -> None:
        harbour.describe("pond", POND)
        harbour.submit("pond-1")
        await harbour.until(harbour.jobs)
        harbour.start()

    harbour = play(story)
    assert harbour.order_files() == [] and "there is no site pond any more; left there: /site/" in caplog.text


def test_the_place_for_connections_goes_with_the_master_unless_somebody_is_logged_in(play: Any) -> None:
    async def story(harbour: Harbour) -> None:
        harbour.describe("pond", POND)
        assert harbour.ways[0].runner._sockets.is_dir()

    harbour = play(story)
    sockets = harbour.ways[0].runner._sockets
    assert not sockets.exists()
    ssh_connection.control_directory(harbour.pool.directory)
    (sockets / "of-a-person").touch()
    ssh_connection.remove_control_directory(harbour.pool.directory)
    assert (sockets / "of-a-person").exists()
