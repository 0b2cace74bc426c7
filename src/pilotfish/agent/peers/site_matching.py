"""Matching among the agents of a site: its master is lent tasks in bulk, asks all how they like them, and gives each what suits best.

What is asked of all goes through the broadcast, with one answer that is put together on the way; only what is given goes straight to
whom it is given. An agent says by itself when it has room again, and gets the best of what is left by what it said before, so that nobody
waits for the next round. A gift is under way until it is acknowledged, and then it is claimed from the pool's master; one that is not
acknowledged is given again. What was lent and is not claimed is the pool's master's own again when this site gets another master.

Pure, like ``peer.py``; the host of an agent drives both. Inputs
    reigns(term, contact, now)      this peer (maybe ourselves) is the master of the site
    lent(header, body, now)         the pool's master lends tasks: ["lend", specs, tasks] and the body of an Assign
    dropped(items, back, now)       it wants these attempts, [task, attempt] each, back, or (not ``back``) nobody wants them any more
    delivered(name, payload, now)   a broadcast that wants an answer came
    gathered(result, now)           what all answered to a broadcast of ours
    told(sender, message, now)      a message for us alone
    has_room(free, now)             so much of everything is free here now, and nothing waits for it
    received(sender, header, now)   these tasks were given to us
    connected(term, now)            the pool's master can be spoken to (again); disconnected(): it cannot
    unreachable(node, now)

Effects (tuples)
    ("spread", payload, seconds)    to all peers, with answers
    ("answer", name, answer)        to a broadcast
    ("tell", contact, message)      to one peer
    ("give", contact, header, parts)   tasks for a peer (maybe ourselves): an Assign as it would come from the pool's master; it is to say
                                    ``received`` to its own SiteWork
    ("send", header)                to the pool's master
    ("alive",)                      the pool's master was heard of, through our site's
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ...portable.expressions.evaluation import BadExpression, parse
from ...portable.expressions.greedy_matching import greedy
from .contacts import NEVER, Contact, Effect, MalformedMessage
from .task_backlog import BacklogTask, TaskBacklog

ROUND_S = 1.0
"""Rounds are at least so far apart."""
NEWS_S = 3.0
"""The same while nobody has room: they shall know what there is when they have."""
CALL_S = 10.0
"""If there is nothing to ask, all are called so often, to see who is there."""
ANSWER_S = 5.0
PATIENCE_S = 20.0
"""If nothing was gathered by then, nothing will be: all are asked again."""
MISSED_CALLS = 2
MOST_ANNOUNCED = 500
CLAIM_S = 1.0
"""Claims wait so long for others to go with: nobody waits for them."""
LOST_S = 5.0
"""A gift that is not acknowledged for so long is given again, to anybody."""
_ROUNDING = 1e-6

Amounts = Dict[str, float]


class SiteWorker:
    """Another agent of the site, or ourselves, as its master knows it."""

    __slots__ = ("contact", "worker", "free", "bases", "ranks", "specs", "missed", "under_way", "version")

    def __init__(self, contact: Contact, worker: str) -> None:
        self.contact = contact
        self.worker = worker
        self.free: Amounts = {}
        self.bases: Dict[int, float] = {}
        """Specs whose tasks it can run, and how much it likes them as such."""
        self.ranks: Dict[int, float] = {}
        """Tasks that it likes more or less than others of their spec."""
        self.specs: Dict[int, None] = {}
        """Those that it was given."""
        self.missed = 0
        self.under_way: Dict[int, Tuple[BacklogTask, Amounts, float]] = {}
        """What it was given and has not acknowledged, and when."""
        self.version = 0
        """How many gifts it had received when we last heard how much room it has."""

    def says(self, free: Mapping[str, Any], version: int) -> None:
        """It has so much room, not counting what is under way to it. An answer may come later than what was said after it."""
        if version >= self.version:
            self.version = version
            self.free = {str(name): float(amount) for name, amount in free.items()}
            for _, needs, _ in self.under_way.values():
                self.take(needs)

    @property
    def has_room(self) -> bool:
        return any(amount > _ROUNDING for amount in self.free.values())

    def take(self, needs: Amounts) -> None:
        for name, amount in needs.items():
            self.free[name] = self.free.get(name, 0.0) - amount


class SiteMatching:
    """``properties`` and ``holds`` are those of this worker, for what others ask; ``ends_at``: when its time is over."""

    def __init__(self, me: Contact, worker: str, properties: Mapping[str, Any], holds: Mapping[str, Any], capacity: Amounts) -> None:
        self.me = me
        self.worker = worker
        self.properties = properties
        self.holds = holds
        self.capacity = capacity
        self.ends_at = NEVER
        self.free: Amounts = {}
        self.gifts = 0
        """So many tasks we were given, by whomever."""
        self.linked = False
        """The pool's master can be spoken to."""
        self.term = 0
        self.master: Optional[Contact] = None
        self.drawer = TaskBacklog()
        self.subjects: Dict[int, SiteWorker] = {}
        self.effects: List[Effect] = []
        self._specs: Dict[int, Tuple[List[Any], bytes]] = {}
        self._asking = False
        self._last_round = -NEVER
        self._vouched_at = -NEVER
        self._roomy: Dict[int, None] = {}
        """Subjects that have something free, by their nodes."""
        self._needs_of: Dict[int, Amounts] = {}
        """Of the specs that we were given tasks of."""
        self._claims: Dict[str, List[List[int]]] = {}
        self._claims_at = NEVER
        self._joined: Dict[str, None] = {}
        self._gone: Dict[str, None] = {}
        self._handlers: Dict[str, Callable[[Contact, Sequence[Any], float], None]] = {"room": self._on_room, "got": self._on_got}

    @property
    def is_master(self) -> bool:
        return self.master is not None and self.master.node == self.me.node

    @property
    def deadline(self) -> float:
        if not self.is_master:
            return NEVER
        claims_at = self._claims_at if self._claims and self.linked else NEVER
        if self._asking:
            return min(claims_at, self._last_round + PATIENCE_S)
        apart_s = CALL_S
        if self.drawer.untold:
            apart_s = ROUND_S if self._roomy or not self.subjects else NEWS_S
        return min(claims_at, self._last_round + apart_s)

    def turn(self, now: float) -> List[Effect]:
        if self.is_master and self._claims and self.linked and now >= self._claims_at:
            self._tell_claims()
        if now >= self.deadline:
            self._begin_round(now)
        effects, self.effects = self.effects, []
        return effects

    def holding(self) -> List[List[int]]:
        """[task, attempt] of what was lent to us and is not claimed for anybody."""
        under_way = [loan for subject in self.subjects.values() for loan, _, _ in subject.under_way.values()]
        return [loan.row[:2] for loan in (*self.drawer.loans.values(), *under_way)]

    # --- who is master ----------------------------------------------------------------------------------------------------------------

    def reigns(self, term: int, contact: Contact, now: float) -> None:
        was_master = self.is_master
        self.master, self.term = contact, term
        if self.is_master:
            self._last_round = -NEVER
            if not was_master:
                self._introduce(term)
        elif was_master:
            if self._claims and self.linked:
                self._tell_claims()
            self.drawer = TaskBacklog()
            self.subjects.clear()
            self._roomy.clear()
            self._say(["reigns", 0])
        if not self.is_master and self.free:
            self._tell_room()

    def connected(self, term: int, now: float) -> None:
        """The pool's master may be another one than before, and knows nothing of what we did without it."""
        self.linked, self.term = True, term
        if self.is_master:
            self._introduce(term)
        else:
            if self._claims:
                self._tell_claims()
            if self.master is not None:
                self._say(["reigns", 0])  # we may have been deposed while nobody could hear us
            self._say(["loans", self.holding()])  # none, for the same reason

    def disconnected(self) -> None:
        self.linked = False

    def _introduce(self, term: int) -> None:
        """All that we would have said before: some of it may have been lost, or was not believed."""
        self._joined, self._gone = {subject.worker: None for subject in self.subjects.values()}, {}
        self._say(["reigns", term])
        if self._claims:
            self._tell_claims()
        self._say(["loans", self.holding()])
        self._tell_vouch()

    def _tell_claims(self) -> None:
        self._say(["claims", [[worker, items] for worker, items in self._claims.items()]])
        self._claims = {}

    def _say(self, header: List[Any]) -> None:
        if self.linked:
            self.effects.append(("send", header))

    # --- what the master of the site does ---------------------------------------------------------------------------------------------

    def lent(self, header: Sequence[Any], body: Any, now: float) -> None:
        view = memoryview(body)
        offset = 0
        for spec in header[1]:
            self._specs[spec[0]] = (spec, bytes(view[offset : offset + spec[5]]))
            offset += spec[5]
        unwanted = []
        for row in header[2]:
            if self.is_master and row[2] in self._specs:
                self.drawer.put(BacklogTask(list(row), bytes(view[offset : offset + row[3]]), now))
            else:
                unwanted.append(row[:2])
            offset += row[3]
        if unwanted:
            self._say(["returned", unwanted])
            if not self.is_master:
                self._say(["reigns", 0])  # or the same tasks would be lent to us again at once

    def dropped(self, items: Sequence[Sequence[int]], back: bool, now: float) -> None:
        """``back``: those that we still have are to be returned."""
        loans = self.drawer.loans
        found = [task for task, attempt in items if task in loans and loans[task].row[1] == attempt]
        self._part_with(found, back)

    def _part_with(self, tasks: Sequence[int], back: bool) -> None:
        gone = [self.drawer.pop(task).row[:2] for task in tasks]
        if gone and back:
            self._say(["returned", gone])

    def _begin_round(self, now: float) -> None:
        """Tell all of tasks they have not heard of, and hear from all how they are."""
        new = self.drawer.tell(MOST_ANNOUNCED)
        specs = [self._specs[number][0] for number in self.drawer.specs]
        described = [[spec[0], spec[3], spec[7], spec[8], spec[9], spec[2]] for spec in specs]
        self._asking = True
        self._last_round = now
        tasks = [[loan.row[0], loan.row[2], loan.contents] for loan in new]
        self.effects.append(("spread", ["tasks", [described, tasks, self.linked]], ANSWER_S))

    def gathered(self, result: Any, now: float) -> None:
        self._asking = False
        if not self.is_master:
            return
        heard: Dict[int, None] = {}
        newcomers = False
        for row in result if isinstance(result, list) else []:
            try:
                contact, worker, bases, ranks = Contact.read(row[0]), str(row[1]), row[4], row[5]
                subject = self.subjects.get(contact.node)
                if subject is None:
                    subject = self.subjects[contact.node] = SiteWorker(contact, worker)
                    self._joined[worker] = None
                    self._gone.pop(worker, None)
                    newcomers = True
                subject.bases.update((int(spec), float(base)) for spec, base in bases)
                self._hear_ranks(subject, ranks)
                self._hear(subject, row[2], int(row[3]))
                subject.missed = 0
                heard[contact.node] = None
            except (MalformedMessage, LookupError, TypeError, ValueError, AttributeError, OverflowError):
                continue  # of another version, or mad: it gets nothing
        if newcomers:
            self.drawer.tell_again()
        for node in [node for node in self.subjects if node not in heard]:
            self.subjects[node].missed += 1
            if self.subjects[node].missed >= MISSED_CALLS:
                self.unreachable(node, now)
        for subject in list(self.subjects.values()):
            self._take_back(subject, now - LOST_S)
        if self._joined or self._gone or now >= self._vouched_at + CALL_S / 2:
            self._vouched_at = now
            self._tell_vouch()
        needy = all(self._specs[spec][0][3] for spec in self.drawer.specs)
        self._match([self.subjects[node] for node in (self._roomy if needy else self.subjects)], now)
        liked = {spec for subject in self.subjects.values() for spec in subject.bases}
        self._part_with([task for spec in self.drawer.specs if spec not in liked for task in self.drawer.told(spec)], True)

    def _hear_ranks(self, subject: SiteWorker, ranks: Sequence[Sequence[Any]]) -> None:
        for task, rank in ranks:
            loan = self.drawer.loans.get(task)
            if loan is not None:
                subject.ranks[task] = float(rank)
                if subject.ranks[task] > subject.bases.get(loan.row[2], 0.0):
                    self.drawer.like(task)

    def _hear(self, subject: SiteWorker, free: Mapping[str, Any], version: int) -> None:
        subject.says(free, version)
        self._look_at(subject)

    def _look_at(self, subject: SiteWorker) -> None:
        if subject.has_room:
            self._roomy[subject.contact.node] = None
        else:
            self._roomy.pop(subject.contact.node, None)

    def _tell_vouch(self) -> None:
        if self.linked:
            self._say(["vouch", list(self._joined), list(self._gone), self.term])
            self._joined, self._gone = {}, {}

    def unreachable(self, node: int, now: float) -> None:
        subject = self.subjects.pop(node, None) if node != self.me.node else None
        if subject is not None:
            self._roomy.pop(node, None)
            self._gone[subject.worker] = None
            self._joined.pop(subject.worker, None)
            self._take_back(subject, NEVER)

    def _take_back(self, subject: SiteWorker, before: float) -> None:
        """What it has not acknowledged, and was given before then. If it has it after all, whoever claims it first has it."""
        lost = [task for task, (_, _, at) in subject.under_way.items() if at <= before]
        for task in lost:
            self.drawer.put_back(subject.under_way.pop(task)[0])
        if lost:
            subject.specs.clear()  # the spec that went with it may have been lost, too

    def _on_got(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        subject = self.subjects.get(sender.node)
        if subject is None:
            return
        subject.version = max(subject.version, int(message[1]))
        for task, attempt in message[2]:
            given = subject.under_way.get(task)
            if given is not None and given[0].row[1] == attempt:
                del subject.under_way[task]
                if not self._claims:
                    self._claims_at = now + CLAIM_S
                self._claims.setdefault(subject.worker, []).append([task, attempt])

    def _on_room(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        subject = self.subjects.get(sender.node)
        if subject is not None:
            self._hear(subject, message[1], int(message[2]))
            self._match([subject], now)

    def _match(self, subjects: List[SiteWorker], now: float) -> None:
        """First the tasks that somebody likes in particular, the best pair first; then the others, in order, to whoever has room."""
        loans = self.drawer.loans
        if not loans:
            return
        by_node = {subject.contact.node: subject for subject in subjects}
        pairs: List[Tuple[float, int, int]] = []
        for node, subject in by_node.items():
            subject.ranks = {task: rank for task, rank in subject.ranks.items() if task in loans}
            pairs.extend((rank, task, node) for task, rank in subject.ranks.items() if self._fits(subject, loans[task]))
        given: Dict[int, List[BacklogTask]] = {}
        room = {node: len(loans) for node in by_node}
        for task, node in greedy(pairs, room).items():
            if self._fits(by_node[node], loans[task]):
                self._take(by_node[node], task, given, now)
        for subject in sorted(subjects, key=self._liking, reverse=True):
            self._fill(subject, given, now)
        self._give(by_node, given)

    def _liking(self, subject: SiteWorker) -> float:
        """The best rank of any task here as such: of several with room, the one that likes its tasks most is served first."""
        return max((subject.bases[spec] for spec in self.drawer.specs if spec in subject.bases), default=0.0)

    def _fits(self, subject: SiteWorker, loan: BacklogTask) -> bool:
        if loan.row[2] not in subject.bases:
            return False
        return all(subject.free.get(name, 0.0) >= amount - _ROUNDING for name, amount in self._needs(loan).items())

    def _needs(self, loan: BacklogTask) -> Amounts:
        needs: Amounts = dict(self._specs[loan.row[2]][0][3])
        if loan.row[4] > 0:
            needs["cores"] = loan.row[4]
        if loan.row[5] > 0:
            needs["memory"] = loan.row[5]
        return needs

    def _fill(self, subject: SiteWorker, given: Dict[int, List[BacklogTask]], now: float) -> None:
        """Of specs that it likes equally, that of the oldest task first."""
        firsts = [self.drawer.next_of(spec, now) for spec in self.drawer.specs if spec in subject.bases]
        order = sorted((-subject.bases[loan.row[2]], loan.row[0], loan.row[2]) for loan in firsts if loan is not None)
        for _, _, spec in order:
            loan = self.drawer.next_of(spec, now)
            while loan is not None and self._fits(subject, loan):
                self._take(subject, loan.row[0], given, now)
                loan = self.drawer.next_of(spec, now)

    def _take(self, subject: SiteWorker, task: int, given: Dict[int, List[BacklogTask]], now: float) -> None:
        loan = self.drawer.pop(task)
        needs = self._needs(loan)
        subject.take(needs)
        self._look_at(subject)
        subject.under_way[loan.row[0]] = (loan, needs, now)
        given.setdefault(subject.contact.node, []).append(loan)

    def _give(self, by_node: Dict[int, SiteWorker], given: Dict[int, List[BacklogTask]]) -> None:
        for node, loans in given.items():
            subject = by_node[node]
            new = dict.fromkeys(loan.row[2] for loan in loans if loan.row[2] not in subject.specs)
            subject.specs.update(new)
            header = ["assign", [self._specs[spec][0] for spec in new], [loan.row for loan in loans]]
            parts = [*(self._specs[spec][1] for spec in new), *(loan.payload for loan in loans)]
            self.effects.append(("give", subject.contact, header, parts))

    # --- what everybody does ------------------------------------------------------------------------------------------------------------

    def told(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        """Raises Malformed if that is no message of ours."""
        try:
            self._handlers[message[0]](sender, message, now)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise MalformedMessage("%r: %.80r" % (error, message)) from None

    def delivered(self, name: Any, payload: Any, now: float) -> None:
        """How we like these tasks: specs that we can run, with what they are worth to us, and tasks that are worth more or less to us."""
        specs: Dict[int, Tuple[float, Any]] = {}
        ranks = []
        try:
            if payload[2]:
                self.effects.append(("alive",))
            for number, needs, requirement, rank, tags, time_s in payload[0]:
                if self._could(needs, tags, self.ends_at - now - time_s) and (not requirement or parse(requirement).holds(self.properties)):
                    expression = parse(rank) if rank else None
                    plain = expression.rank({**self.properties, "held": 0, "wanted": 0}) if expression is not None else 0.0
                    specs[number] = (plain, expression)
            for task, number, contents in payload[1]:
                if number in specs and contents:
                    value = self._rank(specs[number][1], contents)
                    if value != specs[number][0]:
                        ranks.append([task, value])
        except (LookupError, TypeError, ValueError, AttributeError, BadExpression):
            specs, ranks = {}, []
        row = [self.me.wire, self.worker, self.free, self.gifts, [[number, plain] for number, (plain, _) in specs.items()], ranks]
        self.effects.append(("answer", name, [row]))

    def _could(self, needs: Mapping[str, float], tags: Mapping[str, str], left_s: float) -> bool:
        if left_s < 0 or any(self.properties.get("tags." + name) != value for name, value in tags.items()):
            return False
        return all(self.capacity.get(name, 0.0) >= amount - _ROUNDING for name, amount in needs.items())

    def _rank(self, expression: Any, contents: Sequence[Sequence[Any]]) -> float:
        held = sum(size for digest, size in contents if digest in self.holds)
        if expression is None:
            return float(held)
        return float(expression.rank({**self.properties, "held": held, "wanted": sum(size for _, size in contents)}))

    def received(self, sender: Contact, header: Sequence[Any], now: float) -> None:
        """Its room is taken from now on, whatever the agent knows yet."""
        self._needs_of.update((spec[0], dict(spec[3])) for spec in header[1])
        rows = header[2]
        self.gifts += len(rows)
        for row in rows:
            for name, amount in self._needs_of.get(row[2], {}).items():
                self.free[name] = self.free.get(name, 0.0) - amount
        got = ["got", self.gifts, [list(row[:2]) for row in rows]]
        if sender.node == self.me.node:
            self._on_got(sender, got, now)
        else:
            self.effects.append(("tell", sender, got))

    def has_room(self, free: Amounts, now: float) -> None:
        self.free = dict(free)
        if self.is_master:
            own = self.subjects.get(self.me.node)
            if own is not None:
                self._hear(own, free, self.gifts)
                self._match([own], now)
        elif self.master is not None:
            self._tell_room()

    def _tell_room(self) -> None:
        if self.master is not None:
            self.effects.append(("tell", self.master, ["room", self.free, self.gifts]))
