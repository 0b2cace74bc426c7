"""Credentials of sites: watched, told in time, and waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from pilotfish.backends.interface import Command, CommandExchange, CommandOutput, CommandRefused, JobStatus, PilotBatch, UnclearAnswer
from pilotfish.config import make_site
from pilotfish.core.explain import queries, task_reasons
from pilotfish.errors import BadInput
from pilotfish.master.sites import credential_watch
from pilotfish.master.sites.credential_watch import CredentialWatch
from pilotfish.master.sites.site_controller import SiteController
from pilotfish.master.sites.site_pilots import MasterEndpoint
from pilotfish.master.sites.submitted_batches import BatchRegistry, SubmittedBatch
from pilotfish.model import inputs as i
from pilotfish.model.backend_traits import UNKNOWN_TRAITS
from pilotfish.model.site import CANCELLED, REFUSED, PilotSize, Site
from tests.support.machine_stage import Stage

FORM = "%m/%d/%y %H:%M:%S"
SITE = Site(backend="slurm", credentials=("kerberos",), period_s=0.01)
DEADLINE_S = 60.0


class Desk:
    """A site whose klist says what a test wants it to say, and which takes or refuses pilots."""

    def __init__(self) -> None:
        self.left_s: float | None = 8 * 3600.0
        """None: there is no ticket."""
        self.life_s = 10 * 3600.0
        self.silent = False
        self.asked = 0
        self.submitted = 0
        self.needs_ticket = False
        self.places = 0

    async def ask(self, exchange: CommandExchange[Any], submission: bool = False) -> Any:
        if exchange.command.argv[0] == "submit":
            self.submitted += 1
        else:
            self.asked += 1
        return exchange.read(self.answer())

    def answer(self) -> CommandOutput:
        if self.silent:
            return CommandOutput(None, "", "no route to host")
        if self.left_s is None:
            return CommandOutput(3, f"{time.time():.0f}\n", "klist: No credentials cache found")
        now = time.time()
        start, end = (time.strftime(FORM, time.gmtime(at)) for at in (now + self.left_s - self.life_s, now + self.left_s))
        return CommandOutput(0, f"{now:.0f}\n{start}  {end}  krbtgt/HERE@HERE\n")

    async def prepare_batch(self, pilots: Sequence[str], size: PilotSize, host: str) -> SubmittedBatch:
        self.places += 1
        return SubmittedBatch("hpc", f"pf-{pilots[0]}", list(pilots), size, f"/folder/pf-{pilots[0]}", "/bundle", "")

    async def stage_files(self, batch: SubmittedBatch) -> None: ...

    async def read_log_tail(self, batch: SubmittedBatch, number: int) -> str:
        return ""

    async def remove_files(self, batch: SubmittedBatch) -> None: ...

    def change_site(self, site: Site) -> None: ...

    async def close(self) -> None: ...


class Queue:
    """A batch system that says no to whoever has no ticket."""

    traits = UNKNOWN_TRAITS
    arrays = 10

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        def read(answer: CommandOutput) -> list[str]:
            if self.desk.needs_ticket and not self.desk.left_s:
                raise CommandRefused("authentication failed")
            return [f"{batch.tag}_{number}" for number in range(1, batch.count + 1)]

        return CommandExchange(Command(("submit",)), read)

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        return []

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        return []

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        return []

    def past(self, site: Site, jobs: Sequence[str]) -> None:
        return None


async def eventually(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, f"not in time: {what}"
        await asyncio.sleep(0.005)


def run(test: Callable[[], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_watch, "MAX_INTERVAL_S", 0.02)
    monkeypatch.setattr(credential_watch, "MIN_INTERVAL_S", 0.01)
    asyncio.run(test())


def watch_of(desk: Desk, told: list[i.Input], site: Site = SITE) -> CredentialWatch:
    access: Any = desk
    return CredentialWatch("hpc", lambda: site, access, told.append)


def controller_of(desk: Desk, told: list[i.Input], tmp_path: Path) -> SiteController:
    master = MasterEndpoint(told.append, lambda pilot: None, BatchRegistry(tmp_path / "orders"))
    access: Any = desk
    return SiteController("hpc", SITE, Queue(desk), access, master)


# --- the watch -----------------------------------------------------------------------------------------------------------------------


def test_a_ticket_that_is_good_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        told: list[i.Input] = []
        watch = watch_of(Desk(), told)
        assert await watch.require_valid()
        (seen,) = next(item for item in told if isinstance(item, i.CredentialsSeen)).credentials
        assert (seen.name, seen.renew, seen.warn_s, seen.problem) == ("Kerberos ticket", "kinit", 3600.0, "")
        assert seen.left_s == pytest.approx(8 * 3600, abs=60)
        watch.stop()
        assert told[-1] == i.CredentialsSeen("hpc", ())

    run(test, monkeypatch)


@pytest.mark.parametrize("steps", range(4))
def test_who_is_told_to_rest_rests_whatever_happens_just_then(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    async def test() -> None:
        watch = watch_of(Desk(), [])
        assert await watch.require_valid()
        watch._wake.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        watch.stop()
        await eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()}, "nobody asks any more")

    asyncio.run(test())


def test_a_site_without_credentials_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        desk, told = Desk(), list[i.Input]()
        watch = watch_of(desk, told, Site(backend="slurm"))
        watch.start()
        assert await watch.require_valid()
        assert await watch.check()
        watch.stop()
        assert not told and not desk.asked

    run(test, monkeypatch)


def test_a_short_life_is_warned_of_in_its_last_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        desk, told = Desk(), list[i.Input]()
        desk.life_s = desk.left_s = 600.0
        await watch_of(desk, told).check()
        assert isinstance(told[0], i.CredentialsSeen)
        assert told[0].credentials[0].warn_s == pytest.approx(150, abs=1)

    run(test, monkeypatch)


def test_who_has_no_ticket_is_told_how_to_get_one_and_who_gets_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        desk, told = Desk(), list[i.Input]()
        watch = watch_of(desk, told)
        desk.left_s = None
        with pytest.raises(UnclearAnswer, match=r"its Kerberos ticket is missing \(klist: No credentials cache found\): kinit"):
            await watch.require_valid()
        desk.left_s = -300.0
        await eventually(lambda: "ended" in watch.trouble(), "it is asked again")
        assert "its Kerberos ticket ended 5 min" in watch.trouble()
        desk.left_s = 3600.0
        await eventually(lambda: not watch.trouble(), "the new ticket is seen")
        assert await watch.require_valid()
        watch.stop()

    run(test, monkeypatch)


def test_silence_changes_nothing_and_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        desk, told = Desk(), list[i.Input]()
        watch = watch_of(desk, told)
        desk.silent = True
        assert await watch.check()
        assert isinstance(told[0], i.CredentialsSeen) and told[0].credentials[0].problem == "no route to host"
        desk.silent, desk.left_s = False, -60.0
        assert not await watch.check()
        desk.silent = True
        assert not await watch.check()
        assert "ended 1 min" in watch.trouble()

    run(test, monkeypatch)


def test_an_ssh_certificate_is_looked_at_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        desk, told = Desk(), list[i.Input]()
        site = Site(backend="slurm", via="login", credentials=(f"ssh-certificate:{tmp_path}/id-cert.pub",))
        watch = watch_of(desk, told, site)
        assert not await watch.check()
        assert "id-cert.pub cannot be read" in watch.trouble()
        assert not desk.asked

    run(test, monkeypatch)


def test_it_is_asked_more_often_near_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        desk = Desk()
        watch = watch_of(desk, [])
        pauses = []
        for left_s in (7200.0, 600.0, 20.0, -5.0):
            desk.left_s = left_s
            await watch.check()
            pauses.append(watch.interval_s())
        assert pauses[0] == credential_watch.MAX_INTERVAL_S
        assert pauses[1] == pytest.approx(150, abs=1)
        assert pauses[2:] == [credential_watch.MIN_INTERVAL_S] * 2

    asyncio.run(test())


# --- the controller ----------------------------------------------------------------------------------------------------------------------


def accepted(told: list[i.Input]) -> list[str]:
    return [item.pilot for item in told if isinstance(item, i.PilotAccepted)]


def test_pilots_wait_for_a_ticket_and_go_when_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        desk, told = Desk(), list[i.Input]()
        desk.left_s = -300.0
        controller = controller_of(desk, told, tmp_path)
        controller.submit("hpc-1", PilotSize())
        await eventually(
            lambda: any(isinstance(item, i.SiteReachability) and "its Kerberos ticket ended 5 min" in item.trouble for item in told),
            "it says why it waits",
        )
        await eventually(lambda: desk.asked > 2, "it is asked again and again")
        assert desk.places == desk.submitted == 0
        desk.left_s = 3600.0
        await eventually(lambda: accepted(told) == ["hpc-1"], "it is submitted")
        assert not any(isinstance(item, i.PilotEndReported) for item in told)
        assert [item for item in told if isinstance(item, i.SiteReachability)][-1].trouble == ""

    run(test, monkeypatch)


def test_a_refusal_for_want_of_a_ticket_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went away since it was looked at last."""

    async def test() -> None:
        monkeypatch.setattr(credential_watch, "MAX_INTERVAL_S", 300.0)
        desk, told = Desk(), list[i.Input]()
        desk.needs_ticket = True
        controller = controller_of(desk, told, tmp_path)
        controller.submit("hpc-1", PilotSize())
        await eventually(lambda: desk.asked, "it was looked at")
        desk.left_s = None
        await eventually(lambda: desk.submitted and desk.asked > 1, "it was refused, and looked at again")
        assert not any(isinstance(item, i.PilotEndReported) for item in told)
        desk.left_s = 3600.0
        await eventually(lambda: accepted(told) == ["hpc-1"], "it is submitted")

    run(test, monkeypatch)


def test_a_refusal_is_told_even_if_nobody_can_look_at_tickets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(watch: CredentialWatch) -> bool:
        raise OSError("too many open files")

    async def test() -> None:
        monkeypatch.setattr(CredentialWatch, "check", check)
        desk, told = Desk(), list[i.Input]()
        desk.needs_ticket, desk.left_s = True, None
        controller_of(desk, told, tmp_path).submit("hpc-1", PilotSize())
        await eventually(lambda: any(isinstance(item, i.PilotEndReported) and item.cause == REFUSED for item in told), "it is refused")

    run(test, monkeypatch)


def test_a_pilot_that_waits_for_a_ticket_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        desk, told = Desk(), list[i.Input]()
        desk.left_s = None
        controller = controller_of(desk, told, tmp_path)
        controller.submit("hpc-1", PilotSize())
        await eventually(lambda: any(isinstance(item, i.SiteReachability) for item in told), "it says why it waits")
        controller.cancel("hpc-1")
        await eventually(lambda: any(isinstance(item, i.PilotEndReported) and item.cause == CANCELLED for item in told), "it is gone")
        assert i.CredentialsSeen("hpc", ()) in told

    run(test, monkeypatch)


# --- what a person sees ---------------------------------------------------------------------------------------------------------------


def test_status_warns_in_time_and_why_names_the_command() -> None:
    stage = Stage()
    stage.tell(i.SitesRead({"hpc": SITE}))
    stage.ask("site_use", site="hpc")
    (task,) = stage.work()

    def see(*seen: i.CredentialSeen) -> list[tuple[str, list[str]]]:
        stage.tell(i.CredentialsSeen("hpc", seen))
        return [(one.text, list(one.commands)) for one in task_reasons.warnings(stage.machine) if one.code == "credential"]

    assert see(i.CredentialSeen("Kerberos ticket", 7200.0, 3600.0, "kinit")) == []
    assert see(i.CredentialSeen("Kerberos ticket", 2400.0, 3600.0, "kinit")) == [
        ("site hpc: its Kerberos ticket ends in 40 min", ["kinit"])
    ]
    assert queries.QUERIES["sites"](stage.machine, {})[-1]["trouble"] == ""
    stage.tell(after_s=2700.0)
    row = queries.QUERIES["sites"](stage.machine, {})[-1]
    assert (row["trouble"], row["reason"]["commands"]) == ("its Kerberos ticket ended 5 min ago", ["kinit"])
    reasons = task_reasons.explain_task(stage.machine, task)["reasons"]
    assert ("site-trouble", ["kinit"]) in [(reason["code"], reason["commands"]) for reason in reasons]
    assert see() == []
    assert queries.QUERIES["sites"](stage.machine, {})[-1]["trouble"] == ""


@pytest.mark.parametrize(("written", "hint"), [("kerberros", "kerberos, x509, ssh-certificate, token"), ("ssh-certificate", "id_ed25519")])
def test_a_credential_that_cannot_be_watched_is_an_error(written: str, hint: str) -> None:
    assert make_site("hpc", {"backend": "slurm", "credentials": ["kerberos", "x509:/tmp/proxy"]}, "sites.toml").credentials
    with pytest.raises(BadInput) as caught:
        make_site("hpc", {"backend": "slurm", "credentials": [written]}, "sites.toml")
    assert written in str(caught.value)
    assert hint in caught.value.hint
