"""Requests as many pilots as the work can use, at the sites where they start soonest. Sites that fail get fewer pilots."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from pilotfish.core.pilots.factory_interface import SiteView
from pilotfish.factories.replication import RECENT_WAITS, assess_pilots
from pilotfish.factories.site_history import BackOff, SiteHistory, read_record
from pilotfish.factories.site_limits import ProposalRound
from pilotfish.factories.upkeep import GRACE_S, BaseFactory

START_S = 10.0
"""Assumed seconds for the start of an agent. Queue waits that are much shorter than this time have little influence on the choice of a
site."""


@dataclass(slots=True, frozen=True)
class DemandSettings:
    workers: int = 0
    """Maximum number of pilots, without pilot replicas; 0: as many as the work can use."""
    window_s: float = 4 * 3600.0
    """Seconds until an event is forgotten."""
    probes: int = 2
    """Maximum recently requested pilots in the queue of a site that is not yet proven to work. Each running pilot of the site allows one
    more."""
    back_off: BackOff = field(default_factory=BackOff)
    max_wait_s: float = 900.0
    """A queued pilot is overdue after this many seconds. If three times the usual wait is longer, that time counts instead."""
    grace_s: float = GRACE_S


class DemandFactory(BaseFactory):
    def __init__(self, settings: DemandSettings | None = None) -> None:
        self._settings = settings or DemandSettings()
        super().__init__(self._settings.grace_s)

    def _fill_up(self, round_: ProposalRound) -> None:
        """Requests pilots first and pilot replicas last, because work that has no pilot yet should get the free places first."""
        settings = self._settings
        records = {view.name: read_record(view, round_.now, settings.window_s, settings.back_off) for view in round_.free_sites()}
        usual, max_pilots = _usual_wait(records), settings.workers
        pilots = assess_pilots(round_, max(settings.max_wait_s, 3 * usual))
        if max_pilots and pilots.active >= max_pilots:
            self._withdraw_rest(round_, pilots.active, max_pilots)
        avoided = pilots.stalled_sites if len(pilots.stalled_sites) < len(records) else {}
        overdue, present = list(pilots.overdue), pilots.expected
        while not max_pilots or present < max_pilots:
            if best := self._best(round_, [view for view in round_.open_sites() if view.name not in avoided], records, usual):
                round_.request(best, self._explain(round_, records[best], usual))
            elif round_.needs or not overdue:
                return
            else:
                group = overdue.pop(0)
                others = [view for view in round_.sites_for_replica(group) if view.name not in avoided]
                best = self._best(round_, others, records, usual)
                if not best:
                    continue
                waited = f"{group[0].id} has waited {round_.now - group[0].requested_at:.0f} s at {group[0].site}"
                round_.request_replica(best, group[0], f"{waited}, {usual:.0f} s are usual; {self._explain(round_, records[best], usual)}")
            records[best].queued += 1
            records[best].fresh += 1
            present += 1

    def _best(self, round_: ProposalRound, sites: list[SiteView], records: dict[str, SiteHistory], usual: float) -> str:
        able = [view.name for view in sites if self._may_ask(round_, records[view.name])]
        return min(able, key=lambda name: _cost(records[name], usual), default="")

    def _may_ask(self, round_: ProposalRound, record: SiteHistory) -> bool:
        """Returns True if a pilot may be requested at a site now. During a back-off, the answer is False. Otherwise, the number of recently
        requested pilots in the queue is limited. The limit is one after failures, and a few until a pilot has proved that the site works. A
        proven site without failures has no such limit."""
        if round_.now < record.not_before:
            round_.look_again(record.not_before)
            return False
        few = 1 if record.setbacks else self._settings.probes + record.running
        if (record.proven and not record.setbacks) or record.fresh < few:
            return True
        round_.look_again(record.stale_at)
        return False

    def _explain(self, round_: ProposalRound, record: SiteHistory, usual: float) -> str:
        work = f"waiting tasks: {round_.view.demand.tasks}, missing cores: {round_.view.demand.cores:g}"
        wait = _expected_wait(record, usual)
        known = "nothing is known of its waits" if not record.waits else f"pilots there wait {wait:.0f} s"
        return f"{work}; {known}, {record.running + record.succeeded} of {record.all} run or succeeded"


def _usual_wait(records: dict[str, SiteHistory]) -> float:
    """Returns the median recent wait over all sites. A site without history is expected to have this wait."""
    waits = sorted(wait for record in records.values() for wait in record.waits[-RECENT_WAITS:])
    return waits[len(waits) // 2] if waits else 0.0


def _expected_wait(record: SiteHistory, usual: float) -> float:
    recent = record.waits[-RECENT_WAITS:]
    seen = sum(recent) / len(recent) if recent else usual
    return max(seen, record.longest_wait)


def _cost(record: SiteHistory, usual: float) -> float:
    """Returns the expected seconds until a pilot that is requested now is useful.

    The result is the expected queue wait and start-up time, multiplied by two factors: the expected number of attempts, and a number that
    grows with the number of queued pilots. Each failure in a row doubles the result. Otherwise a site where all pilots fail would be
    preferred, because its waits are short.
    """
    success = (record.running + record.succeeded + 1) / (record.running + record.succeeded + record.failed + 1)
    crowd = 1 + record.queued / (1 + record.running)
    return (_expected_wait(record, usual) + START_S) / success * crowd * 2.0 ** min(record.setbacks, 20)


def make_demand(pilots: int, rng: random.Random) -> DemandFactory:
    return DemandFactory(DemandSettings(workers=pilots))
