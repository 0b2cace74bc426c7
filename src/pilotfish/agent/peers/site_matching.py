"""Matches delegated tasks to the workers of a site.

The master delegates tasks in bulk to the site master. Every few seconds a *round* begins: the site master announces the new tasks in a
broadcast. Each worker answers with the ranks of the tasks. A rank is the value of the task's rank expression for this worker. Without a
rank expression, the rank is the number of input bytes that the worker holds. The site master then assigns tasks to workers. It begins with
the pair of task and worker that has the highest rank.

If resources of a worker become free between two rounds, the worker reports them. The worker then gets the remaining task with the highest
rank for this worker.

A worker acknowledges each assignment. Then the site master reports to the master which worker has the task: the site master *claims* the
task. If a worker does not acknowledge a task, the task is assigned again. If the site gets another site master, delegated tasks that were
not claimed return to the master.

Like ``peer.py``, this module does no I/O. Inputs
    site_master_changed(term, contact)   the peer ``contact``, which may be this agent, is the site master
    delegated(header, body, now)    the master delegates tasks. header: ["lend", specs, tasks]; body: as in an Assign
    dropped(items, wants_back)      items: [task, attempt] of each task. ``wants_back``: return them to the master; otherwise cancel them
    delivered(name, payload, now)   a broadcast of the site master arrived. The site master wants an answer
    gathered(result, now)           the combined answer to the broadcast of this site master arrived
    received(sender, message, now)  a message of one peer
    free_changed(free, now)         the free resources of this worker have changed. ``free``: what stays free when all queued attempts run
    assignment_received(sender, header, now)   a site master assigned tasks to this worker
    connected()                     this agent is connected to the master; disconnected(): it is not
    unreachable(node)               this agent cannot reach the peer ``node``

Effects (tuples)
    ("broadcast", payload, seconds) send a broadcast that wants answers to all peers
    ("answer", name, answer)        answer a broadcast
    ("send_to_peer", contact, message, parts)   send a message to one peer. ``parts`` is empty
    ("assign", contact, header, parts)   assign tasks to a peer (or to this agent). Header and parts are as in an Assign of the master.
                                    The receiver calls ``assignment_received`` of its own SiteMatching
    ("send", header)                send a message to the master
    ("alive",)                      the site master is connected to the master
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ...portable.expressions.evaluation import BadExpression, parse
from ...portable.expressions.greedy_matching import greedy
from .contacts import NEVER, Contact, Effect, MalformedMessage

ROUND_S = 1.0
"""Minimum seconds between rounds."""
BUSY_ROUND_S = 3.0
"""Minimum seconds between rounds while no worker has free resources. Workers rank the tasks in advance."""
IDLE_ROUND_S = 10.0
"""Seconds between rounds without new tasks. Such a round finds out which workers are alive."""
ANSWER_S = 5.0
ROUND_TIMEOUT_S = 20.0
"""Seconds after which a round without a combined answer is repeated."""
MAX_MISSED_ROUNDS = 2
MAX_ANNOUNCED = 500
CLAIM_S = 1.0
"""Seconds for which claims are collected before they are sent. Nothing waits for claims."""
ACKNOWLEDGE_TIMEOUT_S = 5.0
"""Seconds after which a task that was not acknowledged is assigned again, to any worker."""
PREFERENCE_S = 600.0
"""Seconds after which a task no longer waits for a worker that prefers it."""
_ROUNDING = 1e-6

Amounts = Dict[str, float]
TasksBySpec = Dict[int, "OrderedDict[int, BacklogTask]"]
"""spec -> task number -> task"""


class BacklogTask:
    """A delegated task. ``row`` and ``payload``: its parts in the message of the master. ``at``: the time at which the message came."""

    __slots__ = ("row", "payload", "contents", "at")

    def __init__(self, row: List[Any], payload: bytes, at: float) -> None:
        self.row = row
        self.payload = payload
        self.contents = [[content[0], content[1]] for content in row[6]]
        self.at = at


class TaskBacklog:
    """Delegated tasks that no worker has yet. ``unannounced``: tasks that the next rounds announce.

    No task is assigned before it was announced once. A worker can prefer a task to the other tasks of the same spec, for example because
    the worker holds the inputs. A preferred task is reserved until ``PREFERENCE_S`` seconds after it was received. Other workers get a
    reserved task only if all tasks of the spec are reserved. They then get the task that became preferred last.
    """

    def __init__(self) -> None:
        self.tasks: Dict[int, BacklogTask] = {}
        self.unannounced: Dict[int, BacklogTask] = {}
        self._plain: TasksBySpec = {}
        self._preferred: TasksBySpec = {}
        """Tasks that some worker ranks higher than the other tasks of their spec."""

    @property
    def specs(self) -> Dict[int, None]:
        """The specs of announced tasks."""
        return dict.fromkeys(chain(self._plain, self._preferred))

    def announced(self, spec: int) -> Iterator[int]:
        return chain(self._plain.get(spec, ()), self._preferred.get(spec, ()))

    def put(self, entry: BacklogTask) -> None:
        task = entry.row[0]
        if task in self.tasks:
            self.pop(task)  # an earlier attempt of this task
        self.tasks[task] = self.unannounced[task] = entry

    def put_back(self, entry: BacklogTask) -> None:
        """Puts an unacknowledged task back into the backlog, as the first task of its spec. Does nothing if the master has delegated the
        task again."""
        task = entry.row[0]
        if task not in self.tasks:
            self.tasks[task] = entry
            _add(self._plain, entry)
            self._plain[entry.row[2]].move_to_end(task, last=False)

    def pop(self, task: int) -> BacklogTask:
        entry = self.tasks.pop(task)
        self.unannounced.pop(task, None)
        _remove(self._plain, entry)
        _remove(self._preferred, entry)
        return entry

    def announce(self, limit: int) -> List[BacklogTask]:
        """Returns at most ``limit`` unannounced tasks, and marks them as announced."""
        announcing = [self.unannounced.pop(task) for task in list(self.unannounced)[:limit]]
        for entry in announcing:
            if entry.row[0] not in self._preferred.get(entry.row[2], ()):
                _add(self._plain, entry)
        return announcing

    def announce_all_again(self) -> None:
        """Marks all tasks as unannounced, because a new worker has not ranked them."""
        self.unannounced = dict(self.tasks)

    def prefer(self, task: int) -> None:
        entry = self.tasks[task]
        if _remove(self._plain, entry):
            _add(self._preferred, entry)

    def next_task(self, spec: int, now: float) -> Optional[BacklogTask]:
        """Returns the next task of a spec for a worker that prefers no task of this spec."""
        plain, preferred = self._plain.get(spec), self._preferred.get(spec)
        if preferred:
            oldest = next(iter(preferred.values()))
            if oldest.at + PREFERENCE_S <= now:
                return oldest
        if plain:
            return next(iter(plain.values()))
        return next(reversed(preferred.values())) if preferred else None


def _add(table: TasksBySpec, entry: BacklogTask) -> None:
    table.setdefault(entry.row[2], OrderedDict())[entry.row[0]] = entry


def _remove(table: TasksBySpec, entry: BacklogTask) -> bool:
    tasks_of_spec = table.get(entry.row[2], OrderedDict())
    if tasks_of_spec.pop(entry.row[0], None) is None:
        return False
    if not tasks_of_spec:
        del table[entry.row[2]]
    return True


class SiteWorker:
    """What the site master knows about a worker of the site."""

    __slots__ = ("contact", "worker", "free", "base_ranks", "ranks", "specs", "missed", "unacknowledged", "version")

    def __init__(self, contact: Contact, worker: str) -> None:
        self.contact = contact
        self.worker = worker
        self.free: Amounts = {}
        self.base_ranks: Dict[int, float] = {}
        """Specs whose tasks the worker can run, with the rank of each spec."""
        self.ranks: Dict[int, float] = {}
        """Tasks with their ranks, if the rank differs from the rank of the spec."""
        self.specs: Dict[int, None] = {}
        """Specs that were sent to the worker."""
        self.missed = 0
        self.unacknowledged: Dict[int, Tuple[BacklogTask, Amounts, float]] = {}
        """Assigned tasks that the worker has not acknowledged, with their needs and the time of the assignment."""
        self.version = 0
        """Total number of tasks that the worker had received when it last reported free resources or acknowledged tasks."""

    def update_free(self, free: Mapping[str, Any], version: int) -> None:
        """Sets the free resources to ``free`` minus the needs of unacknowledged tasks. Ignores the report if an earlier message had a
        higher ``version``."""
        if version >= self.version:
            self.version = version
            self.free = {str(name): float(amount) for name, amount in free.items()}
            for _, needs, _ in self.unacknowledged.values():
                self.reserve(needs)

    def reserve(self, needs: Amounts) -> None:
        for name, amount in needs.items():
            self.free[name] = self.free.get(name, 0.0) - amount


class SiteMatching:
    """Ranks tasks for one worker. At the site master, it also matches tasks with all workers of the site.

    ``properties``, ``holds`` and ``capacity`` describe this worker: its properties, the digests of the contents that it holds, and its
    resources. ``ends_at``: the time at which the walltime of this worker ends.
    """

    def __init__(self, me: Contact, worker: str, properties: Mapping[str, Any], holds: Mapping[str, Any], capacity: Amounts) -> None:
        self.me = me
        self.worker = worker
        self.properties = properties
        self.holds = holds
        self.capacity = capacity
        self.ends_at = NEVER
        self.free: Amounts = {}
        self.assigned_count = 0
        """Number of tasks that all site masters have assigned to this worker."""
        self.linked = False
        """Whether this agent is connected to the master."""
        self.term = 0
        self.site_master: Optional[Contact] = None
        self.backlog = TaskBacklog()
        self.site_workers: Dict[int, SiteWorker] = {}
        self.effects: List[Effect] = []
        self._specs: Dict[int, Tuple[List[Any], bytes]] = {}
        self._round_open = False
        self._last_round = -NEVER
        self._workers_reported_at = -NEVER
        self._with_free: Dict[int, None] = {}
        """Nodes of workers with free resources."""
        self._needs_of_spec: Dict[int, Amounts] = {}
        """Needs of specs whose tasks were assigned to this worker."""
        self._claims: Dict[str, List[List[int]]] = {}
        self._claims_at = NEVER
        self._joined_workers: Dict[str, None] = {}
        self._left_workers: Dict[str, None] = {}
        self._handlers: Dict[str, Callable[[Contact, Sequence[Any], float], None]] = {"room": self._on_free, "got": self._on_acknowledged}

    @property
    def is_site_master(self) -> bool:
        return self.site_master is not None and self.site_master.node == self.me.node

    @property
    def deadline(self) -> float:
        if not self.is_site_master:
            return NEVER
        claims_at = self._claims_at if self._claims and self.linked else NEVER
        if self._round_open:
            return min(claims_at, self._last_round + ROUND_TIMEOUT_S)
        apart_s = IDLE_ROUND_S
        if self.backlog.unannounced:
            apart_s = ROUND_S if self._with_free or not self.site_workers else BUSY_ROUND_S
        return min(claims_at, self._last_round + apart_s)

    def turn(self, now: float) -> List[Effect]:
        if self.is_site_master and now >= self._claims_at:
            self._send_claims()
        if now >= self.deadline:
            self._begin_round(now)
        effects, self.effects = self.effects, []
        return effects

    def holding(self) -> List[List[int]]:
        """Returns [task, attempt] of delegated tasks that are not claimed."""
        unacknowledged = [entry for site_worker in self.site_workers.values() for entry, _, _ in site_worker.unacknowledged.values()]
        return [entry.row[:2] for entry in (*self.backlog.tasks.values(), *unacknowledged)]

    # --- site master changes ---------------------------------------------------------------------------------------------------------

    def site_master_changed(self, term: int, contact: Contact) -> None:
        was_master = self.is_site_master
        self.site_master, self.term = contact, term
        if self.is_site_master:
            self._last_round = -NEVER
            self._introduce()
        elif was_master:
            self._send_claims()
            self.backlog = TaskBacklog()
            self.site_workers.clear()
            self._with_free.clear()
            self._send(["reigns", 0])
        if not self.is_site_master and self.free:
            self._send_free()

    def connected(self) -> None:
        """Reports everything to the master again, because the master is possibly a new process."""
        self.linked = True
        if self.is_site_master:
            self._introduce()
        else:
            self._send_claims()
            if self.site_master is not None:
                self._send(["reigns", 0])  # the master possibly still takes this agent for the site master
            self._send(["loans", self.holding()])  # the list is empty, because only a site master has delegated tasks

    def disconnected(self) -> None:
        self.linked = False

    def _introduce(self) -> None:
        """Reports this site master with all its tasks and workers to the master, because earlier reports are possibly lost."""
        self._joined_workers, self._left_workers = {site_worker.worker: None for site_worker in self.site_workers.values()}, {}
        self._send(["reigns", self.term])
        self._send_claims()
        self._send(["loans", self.holding()])
        self._report_workers()

    def _send_claims(self) -> None:
        """Sends the collected claims. If this agent is disconnected, the claims are kept."""
        if self._claims and self.linked:
            self._send(["claims", [[worker, items] for worker, items in self._claims.items()]])
            self._claims = {}

    def _send(self, header: List[Any]) -> None:
        if self.linked:
            self.effects.append(("send", header))

    # --- duties of the site master ---------------------------------------------------------------------------------------------------

    def delegated(self, header: Sequence[Any], body: Any, now: float) -> None:
        view = memoryview(body)
        offset = 0
        for spec in header[1]:
            self._specs[spec[0]] = (spec, bytes(view[offset : offset + spec[5]]))
            offset += spec[5]
        rejected = []
        for row in header[2]:
            if self.is_site_master and row[2] in self._specs:
                self.backlog.put(BacklogTask(list(row), bytes(view[offset : offset + row[3]]), now))
            else:
                rejected.append(row[:2])
            offset += row[3]
        if rejected:
            self._send(["returned", rejected])
            if not self.is_site_master:
                self._send(["reigns", 0])  # otherwise the master delegates the same tasks to this agent again

    def dropped(self, items: Sequence[Sequence[int]], wants_back: bool) -> None:
        """Removes tasks from the backlog. If ``wants_back``, returns the tasks to the master."""
        tasks = self.backlog.tasks
        found = [task for task, attempt in items if task in tasks and tasks[task].row[1] == attempt]
        self._remove(found, wants_back)

    def _remove(self, tasks: Sequence[int], wants_back: bool) -> None:
        removed = [self.backlog.pop(task).row[:2] for task in tasks]
        if removed and wants_back:
            self._send(["returned", removed])

    def _begin_round(self, now: float) -> None:
        """Begins a round: announces new tasks to all workers. The workers answer with ranks and free resources."""
        new = self.backlog.announce(MAX_ANNOUNCED)
        specs = [self._specs[number][0] for number in self.backlog.specs]
        described = [[spec[0], spec[3], spec[7], spec[8], spec[9], spec[2]] for spec in specs]
        self._round_open = True
        self._last_round = now
        tasks = [[entry.row[0], entry.row[2], entry.contents] for entry in new]
        self.effects.append(("broadcast", ["tasks", [described, tasks, self.linked]], ANSWER_S))

    def gathered(self, result: Any, now: float) -> None:
        self._round_open = False
        if not self.is_site_master:
            return
        answered: Dict[int, None] = {}
        has_new_workers = False
        for row in result if isinstance(result, list) else []:
            try:
                contact, worker, base_ranks, ranks = Contact.read(row[0]), str(row[1]), row[4], row[5]
                site_worker = self.site_workers.get(contact.node)
                if site_worker is None:
                    site_worker = self.site_workers[contact.node] = SiteWorker(contact, worker)
                    self._joined_workers[worker] = None
                    self._left_workers.pop(worker, None)
                    has_new_workers = True
                site_worker.base_ranks.update((int(spec), float(base)) for spec, base in base_ranks)
                self._update_ranks(site_worker, ranks)
                self._update_free(site_worker, row[2], int(row[3]))
                site_worker.missed = 0
                answered[contact.node] = None
            except (MalformedMessage, LookupError, TypeError, ValueError, AttributeError, OverflowError):
                continue  # the worker is faulty or has another version, and gets no tasks
        if has_new_workers:
            self.backlog.announce_all_again()
        for node in [node for node in self.site_workers if node not in answered]:
            self.site_workers[node].missed += 1
            if self.site_workers[node].missed >= MAX_MISSED_ROUNDS:
                self.unreachable(node)
        for site_worker in list(self.site_workers.values()):
            self._requeue_lost(site_worker, now - ACKNOWLEDGE_TIMEOUT_S)
        if self._joined_workers or self._left_workers or now >= self._workers_reported_at + IDLE_ROUND_S / 2:
            self._workers_reported_at = now
            self._report_workers()
        all_have_needs = all(self._specs[spec][0][3] for spec in self.backlog.specs)
        self._match([self.site_workers[node] for node in (self._with_free if all_have_needs else self.site_workers)], now)
        runnable = {spec for site_worker in self.site_workers.values() for spec in site_worker.base_ranks}
        self._remove([task for spec in self.backlog.specs if spec not in runnable for task in self.backlog.announced(spec)], True)

    def _update_ranks(self, site_worker: SiteWorker, ranks: Sequence[Sequence[Any]]) -> None:
        for task, rank in ranks:
            entry = self.backlog.tasks.get(task)
            if entry is not None:
                site_worker.ranks[task] = float(rank)
                if site_worker.ranks[task] > site_worker.base_ranks.get(entry.row[2], 0.0):
                    self.backlog.prefer(task)

    def _update_free(self, site_worker: SiteWorker, free: Mapping[str, Any], version: int) -> None:
        site_worker.update_free(free, version)
        self._index_free(site_worker)

    def _index_free(self, site_worker: SiteWorker) -> None:
        if any(amount > _ROUNDING for amount in site_worker.free.values()):
            self._with_free[site_worker.contact.node] = None
        else:
            self._with_free.pop(site_worker.contact.node, None)

    def _report_workers(self) -> None:
        if self.linked:
            self._send(["vouch", list(self._joined_workers), list(self._left_workers), self.term])
            self._joined_workers, self._left_workers = {}, {}

    def unreachable(self, node: int) -> None:
        site_worker = self.site_workers.pop(node, None) if node != self.me.node else None
        if site_worker is not None:
            self._with_free.pop(node, None)
            self._left_workers[site_worker.worker] = None
            self._joined_workers.pop(site_worker.worker, None)
            self._requeue_lost(site_worker, NEVER)

    def _requeue_lost(self, site_worker: SiteWorker, before: float) -> None:
        """Puts lost tasks back into the backlog: tasks that ``site_worker`` got at or before the time ``before``, but has not acknowledged.
        So two workers can get the same task. In this case, the first claim counts."""
        lost = [task for task, (_, _, at) in site_worker.unacknowledged.items() if at <= before]
        for task in lost:
            self.backlog.put_back(site_worker.unacknowledged.pop(task)[0])
        if lost:
            site_worker.specs.clear()  # the spec that was sent with the task is possibly lost, too

    def _on_acknowledged(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        site_worker = self.site_workers.get(sender.node)
        if site_worker is None:
            return
        site_worker.version = max(site_worker.version, int(message[1]))
        for task, attempt in message[2]:
            selected = site_worker.unacknowledged.get(task)
            if selected is not None and selected[0].row[1] == attempt:
                del site_worker.unacknowledged[task]
                if not self._claims:
                    self._claims_at = now + CLAIM_S
                self._claims.setdefault(site_worker.worker, []).append([task, attempt])

    def _on_free(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        site_worker = self.site_workers.get(sender.node)
        if site_worker is not None:
            self._update_free(site_worker, message[1], int(message[2]))
            self._match([site_worker], now)

    def _match(self, site_workers: List[SiteWorker], now: float) -> None:
        """Assigns tasks to these workers. First come the tasks whose rank differs from the rank of their spec, the highest rank first. Then
        come other tasks that fit into the free resources."""
        tasks = self.backlog.tasks
        if not tasks:
            return
        by_node = {site_worker.contact.node: site_worker for site_worker in site_workers}
        pairs: List[Tuple[float, int, int]] = []
        for node, site_worker in by_node.items():
            site_worker.ranks = {task: rank for task, rank in site_worker.ranks.items() if task in tasks}
            pairs.extend((rank, task, node) for task, rank in site_worker.ranks.items() if self._fits(site_worker, tasks[task]))
        selected: Dict[int, List[BacklogTask]] = {}
        limits = {node: len(tasks) for node in by_node}
        for task, node in greedy(pairs, limits).items():
            if self._fits(by_node[node], tasks[task]):
                self._select(by_node[node], task, selected, now)
        for site_worker in sorted(site_workers, key=self._best_rank, reverse=True):
            self._fill(site_worker, selected, now)
        self._assign(by_node, selected)

    def _best_rank(self, site_worker: SiteWorker) -> float:
        """Returns the highest rank that the worker gives to a spec with announced tasks."""
        return max((site_worker.base_ranks[spec] for spec in self.backlog.specs if spec in site_worker.base_ranks), default=0.0)

    def _fits(self, site_worker: SiteWorker, entry: BacklogTask) -> bool:
        if entry.row[2] not in site_worker.base_ranks:
            return False
        return all(site_worker.free.get(name, 0.0) >= amount - _ROUNDING for name, amount in self._needs(entry).items())

    def _needs(self, entry: BacklogTask) -> Amounts:
        needs: Amounts = dict(self._specs[entry.row[2]][0][3])
        if entry.row[4] > 0:
            needs["cores"] = entry.row[4]
        if entry.row[5] > 0:
            needs["memory"] = entry.row[5]
        return needs

    def _fill(self, site_worker: SiteWorker, selected: Dict[int, List[BacklogTask]], now: float) -> None:
        """Selects tasks that fit into the free resources of a worker: first tasks of the spec with the highest rank, then tasks of the next
        spec, and so on. Of two specs with equal rank, the spec whose next task has the lower number comes first."""
        firsts = [self.backlog.next_task(spec, now) for spec in self.backlog.specs if spec in site_worker.base_ranks]
        order = sorted((-site_worker.base_ranks[entry.row[2]], entry.row[0], entry.row[2]) for entry in firsts if entry is not None)
        for _, _, spec in order:
            entry = self.backlog.next_task(spec, now)
            while entry is not None and self._fits(site_worker, entry):
                self._select(site_worker, entry.row[0], selected, now)
                entry = self.backlog.next_task(spec, now)

    def _select(self, site_worker: SiteWorker, task: int, selected: Dict[int, List[BacklogTask]], now: float) -> None:
        entry = self.backlog.pop(task)
        needs = self._needs(entry)
        site_worker.reserve(needs)
        self._index_free(site_worker)
        site_worker.unacknowledged[entry.row[0]] = (entry, needs, now)
        selected.setdefault(site_worker.contact.node, []).append(entry)

    def _assign(self, by_node: Dict[int, SiteWorker], selected: Dict[int, List[BacklogTask]]) -> None:
        for node, tasks in selected.items():
            site_worker = by_node[node]
            new = dict.fromkeys(entry.row[2] for entry in tasks if entry.row[2] not in site_worker.specs)
            site_worker.specs.update(new)
            header = ["assign", [self._specs[spec][0] for spec in new], [entry.row for entry in tasks]]
            parts = [*(self._specs[spec][1] for spec in new), *(entry.payload for entry in tasks)]
            self.effects.append(("assign", site_worker.contact, header, parts))

    # --- duties of every worker ------------------------------------------------------------------------------------------------------

    def received(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        """Handles a message of a peer. Raises MalformedMessage if the message violates the protocol."""
        try:
            self._handlers[message[0]](sender, message, now)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise MalformedMessage("%r: %.80r" % (error, message)) from None

    def delivered(self, name: Any, payload: Any, now: float) -> None:
        """Answers the broadcast of a round with ranks: of the specs that this worker can run, and of tasks whose rank differs from the rank
        of their spec."""
        specs: Dict[int, Tuple[float, Any]] = {}
        ranks = []
        try:
            if payload[2]:
                self.effects.append(("alive",))
            for number, needs, requirement, rank, tags, time_s in payload[0]:
                if self._can_run(needs, tags, self.ends_at - now - time_s) and (
                    not requirement or parse(requirement).holds(self.properties)
                ):
                    expression = parse(rank) if rank else None
                    base_rank = expression.rank({**self.properties, "held": 0, "wanted": 0}) if expression is not None else 0.0
                    specs[number] = (base_rank, expression)
            for task, number, contents in payload[1]:
                if number in specs and contents:
                    value = self._rank(specs[number][1], contents)
                    if value != specs[number][0]:
                        ranks.append([task, value])
        except (LookupError, TypeError, ValueError, AttributeError, BadExpression):
            specs, ranks = {}, []
        base_ranks = [[number, base_rank] for number, (base_rank, _) in specs.items()]
        row = [self.me.wire, self.worker, self.free, self.assigned_count, base_ranks, ranks]
        self.effects.append(("answer", name, [row]))

    def _can_run(self, needs: Mapping[str, float], tags: Mapping[str, str], left_s: float) -> bool:
        if left_s < 0 or any(self.properties.get("tags." + name) != value for name, value in tags.items()):
            return False
        return all(self.capacity.get(name, 0.0) >= amount - _ROUNDING for name, amount in needs.items())

    def _rank(self, expression: Any, contents: Sequence[Sequence[Any]]) -> float:
        held = sum(size for digest, size in contents if digest in self.holds)
        if expression is None:
            return float(held)
        return float(expression.rank({**self.properties, "held": held, "wanted": sum(size for _, size in contents)}))

    def assignment_received(self, sender: Contact, header: Sequence[Any], now: float) -> None:
        """Acknowledges tasks and reserves their resources at once. The agent machine gets the tasks later, in another thread."""
        self._needs_of_spec.update((spec[0], dict(spec[3])) for spec in header[1])
        rows = header[2]
        self.assigned_count += len(rows)
        for row in rows:
            for name, amount in self._needs_of_spec.get(row[2], {}).items():
                self.free[name] = self.free.get(name, 0.0) - amount
        acknowledgement = ["got", self.assigned_count, [list(row[:2]) for row in rows]]
        if sender.node == self.me.node:
            self._on_acknowledged(sender, acknowledgement, now)
        else:
            self.effects.append(("send_to_peer", sender, acknowledgement, ()))

    def free_changed(self, free: Amounts, now: float) -> None:
        self.free = dict(free)
        if self.is_site_master:
            own = self.site_workers.get(self.me.node)
            if own is not None:
                self._update_free(own, free, self.assigned_count)
                self._match([own], now)
        elif self.site_master is not None:
            self._send_free()

    def _send_free(self) -> None:
        if self.site_master is not None:
            self.effects.append(("send_to_peer", self.site_master, ["room", self.free, self.assigned_count], ()))
