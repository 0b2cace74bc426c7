r"""Checks a backend against recorded answers.

    class TestMine(BackendContract):
        samples = Samples(backend=MyBackend(), kind="mine", submitted=CommandOutput(0, "7.1\n7.2\n"), jobs=("7.1", "7.2"), ...)

A sample is an answer of a real batch system to a command of the backend. Record samples at a real batch system.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from pilotfish.backends.interface import (
    ENDED,
    Backend,
    CommandExchange,
    CommandOutput,
    CommandRefused,
    JobStatus,
    PilotBatch,
    UnclearAnswer,
)
from pilotfish.model.site import PilotSize, Site

SIZE = PilotSize(cores=4.0, nodes=1, walltime_s=5430.0, memory=6 << 30, gpus=2.0)
"""Size of the suite's pilots. The walltime is 1 h 30 min 30 s, and the memory is 6 GiB."""
QUEUE, ACCOUNT, DIRECTIVE = "long", "physics", "--nice=17"
FOLDER, BUNDLE = "/shared/pf/o 1", "/shared/pf/agent.pyz"
OPTIONS = ("queue", "account", "walltime", "cores", "memory", "gpus", "directives")

HUNG = CommandOutput(None, "", "")
UNEXPECTED = [
    CommandOutput(1, "", "the system is not what it was"),
    CommandOutput(255, "", "Connection closed by remote host"),
    CommandOutput(127, "", "sh: 1: not found"),
    CommandOutput(137, "", ""),
    CommandOutput(1, "", ""),
]
UNPARSABLE = [CommandOutput(0, "Welcome to the cluster!\n", ""), CommandOutput(0, "<xml", ""), CommandOutput(0, "{", "")]


@dataclass(frozen=True)
class Samples:
    """Answers of one batch system to the commands of its backend."""

    backend: Backend
    kind: str
    """The name of the backend in ``Site.backend``."""
    submitted: CommandOutput
    """Answer to an accepted submission of ``len(jobs)`` pilots."""
    jobs: tuple[str, ...]
    """Job ids in that answer, for the pilots 1, 2, … Their number can be at most ``arrays`` of the backend."""
    listed: tuple[CommandOutput, Mapping[str, int]]
    """Answer to a query with at least two jobs, and the phase of each job by job id."""
    nothing: tuple[CommandOutput, ...]
    """Answers of a working system to a query, without any of the requested jobs."""
    down: tuple[CommandOutput, ...]
    """Answers to a query while the system is down."""
    refused: tuple[CommandOutput, ...]
    """Answers to submissions that will never be accepted."""
    cancelled: tuple[CommandOutput, ...]
    """Answers to a cancellation that count as a success. Include answers about jobs that have ended and about unknown jobs."""
    found: tuple[str, CommandOutput, Mapping[int, str]]
    """A tag, the answer to a search for the tag, and the job ids by pilot number."""
    unfound: tuple[CommandOutput, ...]
    """Answers to a search for an unknown tag."""
    words: Mapping[str, str]
    """Maps each of OPTIONS to its text in the submission. The text is empty if the backend does not send this option to the system."""
    down_at_submission: tuple[CommandOutput, ...] = ()
    limits: tuple[CommandOutput, ...] = ()
    """Answers to submissions that the system refuses now but can accept later, for example because this user has too many jobs."""
    past: tuple[tuple[CommandOutput, Mapping[str, JobStatus]], ...] = ()
    """Pairs of an answer to ``past`` and the job statuses in this answer."""
    options: Mapping[str, str] = field(default_factory=dict)

    def site(self) -> Site:
        return Site(backend=self.kind, queue=QUEUE, account=ACCOUNT, directives=(DIRECTIVE,), hosts=("n1",), options=dict(self.options))

    def order(self, tag: str = "pf-tag-1", count: int = 0) -> PilotBatch:
        return PilotBatch(tag, count or len(self.jobs), SIZE, FOLDER, BUNDLE, "n1")


Answer = TypeVar("Answer")


def only(exchanges: list[CommandExchange[Answer]]) -> CommandExchange[Answer]:
    """Returns the only command exchange of a list. The sites of the suite have one host, so a backend must make exactly one exchange."""
    assert len(exchanges) == 1
    return exchanges[0]


def sent_text(exchange: CommandExchange[object]) -> str:
    """Returns all text that a command sends to the batch system: arguments and standard input."""
    return "\n".join([*exchange.command.argv, exchange.command.stdin])


class BackendContract:
    """Tests of a backend. Derive a class whose name begins with Test, and set ``samples``."""

    samples: Samples

    def questions(self) -> list[Callable[[CommandOutput], Mapping[str, JobStatus] | Mapping[int, str]]]:
        """Returns the functions with which the backend parses the answers to ``query``, ``find`` and (if the backend has it) ``past``."""
        backend, site, jobs = self.samples.backend, self.samples.site(), self.samples.jobs
        past = backend.past(site, jobs)
        asked: list[Callable[[CommandOutput], Mapping[str, JobStatus] | Mapping[int, str]]] = [only(backend.query(site, jobs)).read]
        return [*asked, only(backend.find(site, "pf-tag-1")).read, *([past.read] if past is not None else [])]

    def test_it_says_what_it_can_do(self) -> None:
        traits = self.samples.backend.traits
        assert traits.programs and traits.harmless_word
        assert set(traits.needs) <= set(traits.options)
        assert set(traits.ignores) <= set(Site.__struct_fields__), "ignores names keys of a site"
        assert set(self.samples.options) <= set(traits.options)

    def test_who_does_not_answer_tells_nothing(self) -> None:
        backend, site, jobs = self.samples.backend, self.samples.site(), self.samples.jobs
        reads: list[Callable[[CommandOutput], object]] = [*self.questions(), only(backend.cancel(site, jobs)).read]
        reads.append(backend.submit(site, self.samples.order()).read)
        for read in reads:
            with pytest.raises(UnclearAnswer):
                read(HUNG)

    @pytest.mark.parametrize("answer", UNEXPECTED)
    def test_a_command_that_failed_strangely_tells_nothing(self, answer: CommandOutput) -> None:
        for read in self.questions():
            with pytest.raises(UnclearAnswer):
                read(answer)

    @pytest.mark.parametrize("answer", UNPARSABLE)
    def test_what_cannot_be_understood_never_means_that_a_job_ended(self, answer: CommandOutput) -> None:
        for read in self.questions():
            try:
                known = read(answer)
            except UnclearAnswer:
                continue
            assert not known

    def test_a_submission_that_succeeded_without_an_id_is_unclear(self) -> None:
        with pytest.raises(UnclearAnswer):
            self.samples.backend.submit(self.samples.site(), self.samples.order()).read(CommandOutput(0, "", ""))

    def test_a_system_that_is_down_tells_nothing(self) -> None:
        exchange = only(self.samples.backend.query(self.samples.site(), self.samples.jobs))
        for answer in self.samples.down:
            with pytest.raises(UnclearAnswer) as caught:
                exchange.read(answer)
            assert str(caught.value)

    def test_a_submission_while_it_is_down_may_be_tried_again(self) -> None:
        exchange = self.samples.backend.submit(self.samples.site(), self.samples.order())
        for answer in self.samples.down_at_submission:
            with pytest.raises((UnclearAnswer, CommandRefused)) as caught:
                exchange.read(answer)
            assert not isinstance(caught.value, CommandRefused) or caught.value.later, answer

    def test_a_refusal_is_told_in_the_systems_words(self) -> None:
        exchange = self.samples.backend.submit(self.samples.site(), self.samples.order())
        for answer in self.samples.refused:
            with pytest.raises(CommandRefused) as caught:
                exchange.read(answer)
            assert str(caught.value) and not caught.value.later, answer

    def test_a_limit_is_a_refusal_for_now(self) -> None:
        exchange = self.samples.backend.submit(self.samples.site(), self.samples.order())
        for answer in self.samples.limits:
            with pytest.raises(CommandRefused) as caught:
                exchange.read(answer)
            assert str(caught.value) and caught.value.later, answer

    def test_each_pilot_of_an_order_has_an_id_of_its_own(self) -> None:
        jobs = self.samples.backend.submit(self.samples.site(), self.samples.order()).read(self.samples.submitted)
        assert tuple(jobs) == self.samples.jobs
        assert len(set(jobs)) == len(jobs) <= self.samples.backend.arrays

    def test_all_jobs_are_asked_for_with_one_command_and_known_by_the_ids_of_their_submission(self) -> None:
        answer, phases = self.samples.listed
        seen = only(self.samples.backend.query(self.samples.site(), list(phases))).read(answer)
        assert {job: sighting.phase for job, sighting in seen.items()} == dict(phases)

    def test_jobs_that_were_not_asked_for_are_not_told(self) -> None:
        answer, phases = self.samples.listed
        first = next(iter(phases))
        assert list(only(self.samples.backend.query(self.samples.site(), [first])).read(answer)) == [first]

    def test_a_job_that_is_not_listed_is_left_out(self) -> None:
        answer, phases = self.samples.listed
        stranger = re.sub(r"\d+", lambda found: "9" + found[0], self.samples.jobs[0], count=1)
        assert stranger not in phases
        assert stranger not in only(self.samples.backend.query(self.samples.site(), [*phases, stranger])).read(answer)
        for nothing in self.samples.nothing:
            assert only(self.samples.backend.query(self.samples.site(), self.samples.jobs)).read(nothing) == {}

    def test_cancelling_what_ended_is_no_error(self) -> None:
        exchange = only(self.samples.backend.cancel(self.samples.site(), self.samples.jobs))
        for answer in self.samples.cancelled:
            exchange.read(answer)

    def test_a_lost_submission_is_found_by_its_tag(self) -> None:
        tag, answer, jobs = self.samples.found
        assert only(self.samples.backend.find(self.samples.site(), tag)).read(answer) == dict(jobs)
        assert sorted(jobs) == list(range(1, len(jobs) + 1))

    def test_a_tag_that_is_not_known_is_not_found(self) -> None:
        for answer in self.samples.unfound:
            assert only(self.samples.backend.find(self.samples.site(), "pf-tag-1")).read(answer) == {}

    def test_how_jobs_ended_is_remembered_as_far_as_the_system_does(self) -> None:
        for answer, ends in self.samples.past:
            exchange = self.samples.backend.past(self.samples.site(), list(ends))
            assert exchange is not None
            known = exchange.read(answer)
            assert known == dict(ends)
            assert all(sighting.phase == ENDED for sighting in known.values())

    @pytest.mark.parametrize("option", OPTIONS)
    def test_a_submission_asks_for_what_the_site_says(self, option: str) -> None:
        assert self.samples.words[option] in sent_text(self.samples.backend.submit(self.samples.site(), self.samples.order()))

    def test_a_submission_carries_its_tag_and_no_key(self) -> None:
        text = sent_text(self.samples.backend.submit(self.samples.site(), self.samples.order(tag="pf-unmistakable")))
        assert "pf-unmistakable" in text
        assert not re.search(r"--key|PILOTFISH_KEY|BEGIN [A-Z ]*PRIVATE|password", text)

    def test_an_order_of_one_pilot_and_one_of_as_many_as_it_can_take_are_made(self) -> None:
        for count in {1, min(3, self.samples.backend.arrays)}:
            assert sent_text(self.samples.backend.submit(self.samples.site(), self.samples.order(count=count)))

    def test_commands_do_not_wait_for_ever(self) -> None:
        backend, site, jobs = self.samples.backend, self.samples.site(), self.samples.jobs
        asked: list[CommandExchange[object]] = [backend.submit(site, self.samples.order()), *backend.query(site, jobs)]
        for exchange in [*asked, *backend.cancel(site, jobs), *backend.find(site, "t")]:
            assert 0 < exchange.command.timeout_s <= 600
