"""What people are told about contents: where they are, how far they are, who waits for them, and what helps when they are gone."""

from __future__ import annotations

from typing import Any

from pilotfish.core.connections import TransferReport
from pilotfish.core.explain import task_reasons
from pilotfish.core.explain.queries import worker_row
from pilotfish.core.state import Task
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import Content, ProducedContent
from pilotfish.model.states import ASSIGNED, FAILED
from pilotfish.model.task import Failure, Request, TaskSpec
from tests.support.machine_stage import CLIENT, Stage, fail

GIB = 1 << 30
BIG, SMALL, KEPT = "a" * 64, "b" * 64, "c" * 64
NEEDS_BIG = TaskSpec("exec", contents=(Content(BIG, 4 * GIB, "/home/ann/big.dat", 1, 2),))
NEEDS_KEPT = TaskSpec("exec", contents=(Content(KEPT, GIB),), launch={"inputs": [["mesh.bin", 0o644, KEPT, GIB]]})


def beat(stage: Stage, link: int, *moving: tuple[str, int, int], got: list[int] | None = None) -> None:
    stage.tell(i.AgentMessage(link, m.Heartbeat([], list(moving), got or [])), after_s=1.0)


def first_reason(stage: Stage, task: Task) -> dict[str, Any]:
    reason: dict[str, Any] = task_reasons.explain_task(stage.machine, task)["reasons"][0]
    return reason


def keep_something(stage: Stage, link: int, task: Task) -> None:
    item = m.ResultItem(task.id, task.attempt, None, 1, 1, 1, 1, [ProducedContent(KEPT, GIB, False)])
    stage.held[link].pop(task.id)
    stage.tell(i.AgentMessage(link, m.Results(0, [item]), [b"r"]))


# --- outputs of failed attempts -----------------------------------------------------------------------------------------------------


def fail_with_content(stage: Stage, link: int, task: Task) -> None:
    item = m.ResultItem(task.id, task.attempt, Failure("exit", "task", "1"), 1, 1, 1, 1, [ProducedContent(BIG, GIB, True, False)])
    stage.held[link].pop(task.id)
    stage.tell(i.AgentMessage(link, m.Results(0, [item]), [b"r"]))


def test_the_contents_of_the_last_failed_attempt_belong_to_the_run_and_those_of_earlier_attempts_are_released() -> None:
    stage = Stage()
    link = stage.join("w")
    (task,) = stage.work(TaskSpec("exec", retries=1))
    fail_with_content(stage, link, task)
    assert BIG not in stage.machine.state.contents
    assert [effect.digest for effect in stage.effects if isinstance(effect, e.ReleaseContent)] == [BIG]
    fail_with_content(stage, link, task)
    assert task.state == FAILED and BIG in stage.machine.state.contents and BIG in task.shape.run.contents


def test_the_row_of_a_task_says_how_much_of_its_output_is_kept_nowhere_also_after_a_restart() -> None:
    stage = Stage()
    link = stage.join("w")
    good, bad = stage.work(TaskSpec("exec"), 2)
    for task, failure in ((good, None), (bad, Failure("exit", "task", "1"))):
        if task.worker is None:
            stage.wait(1.0)
        item = m.ResultItem(task.id, task.attempt, failure, 1, 1, 1, 1, [], 5000)
        stage.held[link].pop(task.id, None)
        stage.tell(i.AgentMessage(link, m.Results(0, [item]), [b"r"]))
    assert [row["left_out_bytes"] for row in stage.ask("tasks", run=1)] == [5000, 5000]
    stage.restart()
    assert [row["left_out_bytes"] for row in stage.ask("tasks", run=1)] == [5000, 5000]


# --- rates --------------------------------------------------------------------------------------------------------------------------


def test_a_rate_is_known_from_two_beats_that_are_apart() -> None:
    transfers = TransferReport()
    transfers.update(10.0, [(BIG, 100, 1000)])
    assert transfers.rate(BIG) is None
    transfers.update(12.0, [(BIG, 500, 1000)])
    assert transfers.rate(BIG) == 200
    transfers.update(12.25, [(BIG, 550, 1000), (SMALL, 5, 10)])
    assert transfers.rate(BIG) == 200, "one that follows at once does not count by itself"
    assert transfers.rate(SMALL) is None
    assert transfers.rate("unheard of") is None


def test_a_transfer_that_stands_still_has_no_speed_and_one_that_began_anew_none_that_is_known() -> None:
    transfers = TransferReport()
    transfers.update(10.0, [(BIG, 100, 1000), (SMALL, 8, 10)])
    transfers.update(11.0, [(BIG, 100, 1000), (SMALL, 2, 10)])
    assert transfers.rate(BIG) == 0
    assert transfers.rate(SMALL) is None


# --- why ----------------------------------------------------------------------------------------------------------------------------


def test_a_task_that_waits_for_an_input_says_how_far_it_is_and_how_long_it_takes() -> None:
    stage = Stage()
    link = stage.join("n1")
    (task,) = stage.work(NEEDS_BIG)
    assert first_reason(stage, task)["text"] == "its input big.dat (4 GiB) is not at worker n1 yet"
    beat(stage, link, (BIG, 1 * GIB, 4 * GIB))
    assert first_reason(stage, task)["text"] == "its input big.dat (4 GiB) is in transfer to worker n1: 25 %"
    beat(stage, link, (BIG, 2 * GIB, 4 * GIB))
    reason = first_reason(stage, task)
    assert reason["code"] == "staging"
    assert reason["text"] == "its input big.dat (4 GiB) is in transfer to worker n1: 50 %, 1 GiB/s, about 2 s"
    assert reason["commands"] == ["pilotfish data 1"]
    beat(stage, link, (BIG, 2 * GIB, 4 * GIB))
    assert first_reason(stage, task)["text"].endswith("50 %, and nothing arrived recently")
    beat(stage, link, (BIG, 4 * GIB, 4 * GIB))
    assert first_reason(stage, task)["text"].endswith("100 %, and is being checked")
    assert "task 1.0 waits: its input big.dat" in task_reasons.explain_run(stage.machine, task.shape.run)["sentence"]
    stage.tell(i.AgentMessage(link, m.CacheReport([BIG], [])))
    beat(stage, link)
    assert first_reason(stage, task)["code"] == "placed"


def test_of_several_inputs_that_under_way_is_told_and_the_others_are_counted() -> None:
    stage = Stage()
    link = stage.join("n1")
    contents = (*NEEDS_BIG.contents, Content(SMALL, 1000, "/home/ann/small.dat"))
    (task,) = stage.work(TaskSpec("exec", contents=contents))
    beat(stage, link, (SMALL, 500, 1000))
    text = "its input small.dat (1000 B) is in transfer to worker n1: 50 %; 1 other of its inputs is not there yet"
    assert first_reason(stage, task)["text"] == text


def test_what_a_worker_said_long_ago_is_not_told_any_more() -> None:
    stage = Stage()
    link = stage.join("n1")
    (task,) = stage.work(NEEDS_BIG)
    beat(stage, link, (BIG, GIB, 4 * GIB))
    assert stage.ask("status")["moving"] is not None
    stage.wait(16)
    assert stage.ask("status")["moving"] is None
    assert first_reason(stage, task)["text"] == "its input big.dat (4 GiB) is not at worker n1 yet"


def test_a_delegated_task_names_the_site_master() -> None:
    stage = Stage()
    stage.join("n1")
    (task,) = stage.work(NEEDS_BIG)
    worker = stage.machine.state.workers["n1"]
    del worker.active[task]
    worker.delegated[task] = None
    reason = first_reason(stage, task)
    assert reason["code"] == "lent"
    assert "its site master, worker n1, assigns it" in reason["text"]
    assert worker_row(stage.machine, worker)["lent"] == 1


def test_an_input_that_was_kept_at_another_site_says_where_it_can_be_had() -> None:
    stage = Stage()
    link = stage.join("n1", cores=4.0)
    (maker,) = stage.work()
    keep_something(stage, link, maker)
    for state in (stage.machine.state, stage.shadow):
        state.workers["n1"].site = "lyon"
    stage.work()
    stage.join("large", cores=8.0)
    run = stage.open_run()
    message = m.Submit(run, 0, 0, [TaskSpec("exec", request=Request(4.0))], [0], [(0, 1)], {}, contents={0: NEEDS_KEPT.contents})
    stage.tell(i.ClientMessage(CLIENT, message, [b"", b"x"]))
    reason = first_reason(stage, stage.task(run, 0))
    assert reason["code"] == "kept-elsewhere"
    assert reason["text"].endswith(
        "(1 GiB) was kept at lyon and is available only there, where no worker has a free core now: task 1.0 made it"
    )


def test_files_on_their_way_home_are_told_and_a_full_disk_that_keeps_them_waiting() -> None:
    stage = Stage()
    link = stage.join("n1")
    (task,) = stage.work()
    beat(stage, link, (KEPT, 1000, 4000))
    assert first_reason(stage, task)["code"] == "sending", "it was too quick for anybody to see it run"
    stage.started(link, task)
    beat(stage, link, (KEPT, 2024, 4000))
    text = "1 file that tasks at worker n1 made is in transfer to the master: 3.91 KiB, 50 %, 1023 B/s, about 2 s"
    assert first_reason(stage, task)["text"] == text
    stage.tell(i.JournalSpaceChanged(True))
    reason = first_reason(stage, task)
    assert (reason["code"], reason["commands"]) == ("disk-full", ["pilotfish doctor"])
    assert "the master's disk is full" in reason["text"]
    stage.tell(i.JournalSpaceChanged(False))
    stage.tell(i.OutputSpaceChanged("4 GiB do not fit"))
    assert first_reason(stage, task)["text"].endswith("and waits for room: 4 GiB do not fit")
    stage.tell(i.OutputSpaceChanged(""))
    assert first_reason(stage, task)["code"] == "sending"


def test_an_input_that_went_with_its_worker_names_the_task_that_made_it() -> None:
    stage = Stage()
    link = stage.join("n1")
    (maker,) = stage.work(command="-- ./mesh")
    keep_something(stage, link, maker)
    (user,) = stage.work(NEEDS_KEPT)
    assert first_reason(stage, user)["code"] == "placed"
    stage.lose("n1")
    assert "lost-input" not in {reason["code"] for reason in task_reasons.explain_task(stage.machine, user)["reasons"]}, (
        "whoever comes may have it"
    )
    link = stage.join("n2")
    reasons = {reason["code"]: reason for reason in task_reasons.explain_task(stage.machine, user)["reasons"]}
    lost = reasons["lost-input"]
    assert lost["text"] == ("its input mesh.bin (1 GiB) was kept where it was made, and no present worker has it: task 1.0 made it")
    assert "make it again: pilotfish run ... ./mesh" in lost["commands"]
    assert any("--output" in command for command in lost["commands"])
    stage.finish(link, user, failure=Failure("missing-input", "user", "the content was kept where it was made"))
    assert user.state == FAILED
    assert first_reason(stage, user)["commands"] == lost["commands"]


def test_a_failure_for_want_of_a_kept_input_names_its_maker_though_its_worker_is_here() -> None:
    stage = Stage()
    link = stage.join("n1")
    (maker,) = stage.work(command="-- ./mesh")
    keep_something(stage, link, maker)
    (user,) = stage.work(NEEDS_KEPT)
    stage.finish(link, user, failure=Failure("missing-input", "user", f"the content {KEPT[:12]}… could not be had from n1"))
    reason = first_reason(stage, user)
    assert reason["text"].startswith("the content cccccccccccc… could not be had from n1; it is mesh.bin, which was made by task 1.0 [")
    assert reason["commands"][:2] == ["pilotfish data 2", "make it again: pilotfish run ... ./mesh"]


def test_an_input_that_was_changed_is_read_again_by_a_rerun() -> None:
    stage = Stage()
    link = stage.join("n1")
    (task,) = stage.work(NEEDS_BIG, command="-- ./sim")
    stage.finish(link, task, failure=Failure("missing-input", "user", "big.dat was changed after it was submitted"))
    reason = first_reason(stage, task)
    assert "big.dat was changed" in reason["text"]
    assert reason["commands"] == ["pilotfish data 1", "pilotfish rerun 1 --failed"]


# --- requirements -------------------------------------------------------------------------------------------------------------------


def test_a_requirement_that_one_worker_fails_says_which_part_of_it_and_what_the_worker_has() -> None:
    stage = Stage()
    stage.join("n1", cores=4.0, capacity={"memory": 8.0 * GIB})
    (task,) = stage.work(TaskSpec("python", requirement='cores >= 2 and memory >= 64G and card == "a100"'))
    reason = first_reason(stage, task)
    assert reason["code"] == "requirement"
    assert reason["text"].endswith('the only worker, n1, fails memory >= 64G and card == "a100" (memory 8 GiB, no card)')
    assert any("--require" in command for command in reason["commands"])
    stage.join("n2", cores=4.0, capacity={"memory": 64.0 * GIB}, tags={"card": "a100"})
    assert task.state == ASSIGNED


def test_of_several_workers_the_nearest_is_named_and_how_many_fail_each_part() -> None:
    stage = Stage()
    stage.join("n1", tags={"gpu": "h100"})
    stage.join("n2", cores=8.0, tags={"gpu": "h100"})
    (task,) = stage.work(TaskSpec("python", requirement='cores > 4 and gpu == "a100"'))
    text = first_reason(stage, task)["text"]
    assert 'cores > 4 fails at 1 of 2 workers and gpu == "a100" fails at all 2 workers; nearest is n2 (gpu "h100")' in text
    warnings = [reason for reason in task_reasons.warnings(stage.machine) if reason.code == "requirement"]
    assert [reason.text.partition(":")[0] for reason in warnings] == ["1 task of run 1"]


def test_a_misspelt_property_is_told_with_the_one_that_was_meant() -> None:
    stage = Stage()
    stage.join("n1")
    (task,) = stage.work(TaskSpec("python", requirement="memroy >= 1G"))
    assert first_reason(stage, task)["text"].endswith("for memroy, did you mean memory?")


def test_a_text_without_quotes_is_told_to_lack_them() -> None:
    stage = Stage()
    stage.join("n1", tags={"system": "Linux"})
    (task,) = stage.work(TaskSpec("python", requirement="cores >= 1 and system == Linux"))
    assert first_reason(stage, task)["text"].endswith('fails system == Linux (system "Linux", no Linux); write a text in quotes: "Linux"')


def test_a_requirement_is_looked_at_where_the_run_may_go() -> None:
    stage = Stage()
    stage.join("n1", cores=8.0)
    (task,) = stage.work(TaskSpec("python", requirement="cores > 4"), sites=("lyon",))
    codes = [reason["code"] for reason in task_reasons.explain_task(stage.machine, task)["reasons"]]
    assert "requirement" not in codes


# --- data ---------------------------------------------------------------------------------------------------------------------------


def test_without_contents_there_is_nothing_to_tell() -> None:
    stage = Stage()
    assert stage.ask("data")["total"] == 0
    assert stage.ask("status")["moving"] is None
    stage.work()
    assert stage.ask("run", run=1)["moving"] is None


def test_the_data_of_a_run_say_who_needs_what_and_where_it_is() -> None:
    stage = Stage()
    first, second = stage.join("n1"), stage.join("n2")
    run = stage.open_run()
    stage.submit(run, NEEDS_BIG, count=3)
    message = m.Submit(run, 3, 1, [TaskSpec("exec")], [0], [(1, 1)], {}, contents={0: (Content(SMALL, 1000, "/home/ann/small.dat"),)})
    stage.tell(i.ClientMessage(CLIENT, message, [b"", b"x"]))
    stage.tell(i.AgentMessage(first, m.CacheReport([BIG], [])))
    got = [9, 9 * GIB, 0, 0, 0, 0, 1, GIB]
    beat(stage, first, got=got)
    beat(stage, second, (BIG, GIB, 4 * GIB), got=[0, 0, 2, 8 * GIB, 0, 0, 0, 0])
    beat(stage, second, (BIG, 2 * GIB, 4 * GIB), got=[0, 0, 2, 8 * GIB, 0, 0, 0, 0])
    answer = stage.ask("data", run=run)
    assert (answer["total"], answer["bytes"], answer["nowhere"]) == (2, 4 * GIB + 1000, 0)
    assert answer["moving"] == {"contents": 1, "done_bytes": 2 * GIB, "bytes": 4 * GIB, "rate_bytes_per_s": GIB, "eta_s": 2.0}
    assert answer["waiting_tasks"] == 1, "the one at n2"
    big, small = answer["contents"]
    assert (big["name"], big["path"], big["needed_by"], big["home"]) == ("big.dat", "/home/ann/big.dat", 3, True)
    assert (big["workers"], big["sites"]) == (["n1"], {"": 1})
    (transfer,) = big["moving"]
    assert (transfer["worker"], transfer["to"], transfer["eta_s"]) == ("n2", "worker", 2.0)
    assert (small["name"], small["needed_by"], small["moving"]) == ("small.dat", 1, [])
    assert answer["got"]["here"] == {"contents": 9, "bytes": 9 * GIB}
    assert (answer["got"]["peers"]["contents"], answer["got"]["master"]["bytes"]) == (2, GIB)
    (site,) = answer["sites"]
    assert (site["workers"], site["contents"], site["bytes"], site["got"]) == (2, 1, 4 * GIB, answer["got"])
    assert stage.ask("run", run=run)["moving"] == stage.ask("status")["moving"] == answer["moving"]


def test_contents_that_tasks_made_name_their_maker_and_one_that_is_nowhere_says_so() -> None:
    stage = Stage()
    link = stage.join("n1")
    (maker,) = stage.work()
    keep_something(stage, link, maker)
    (row,) = stage.ask("data")["contents"]
    assert (row["made_by"], row["home"], row["nowhere"], row["workers"]) == ("1.0", False, False, ["n1"])
    stage.lose("n1")
    answer = stage.ask("data", run=1)
    assert (answer["nowhere"], answer["contents"][0]["nowhere"], answer["inputs"]["contents"]) == (1, True, 0)


def test_what_a_task_has_just_made_is_on_its_way_home_for_its_run() -> None:
    stage = Stage()
    link = stage.join("n1")
    (task,) = stage.work(NEEDS_BIG)
    (other,) = stage.work(NEEDS_BIG)
    stage.started(link, task)
    beat(stage, link, (KEPT, 10, 40))
    assert stage.ask("run", run=1)["moving"]["contents"] == 1
    assert other.shape.run.id == 2
    assert stage.ask("run", run=2)["moving"] is None


def test_contents_come_in_pages() -> None:
    stage = Stage()
    stage.work(TaskSpec("exec", contents=tuple(Content(f"{number:064x}", number + 1, f"/f{number}") for number in range(5))))
    assert [row["size"] for row in stage.ask("data", limit=2)["contents"]] == [5, 4]
    assert [row["size"] for row in stage.ask("data", limit=2, offset=4)["contents"]] == [1]


def test_a_worker_tells_its_properties() -> None:
    stage = Stage()
    stage.join("n1", cores=2.0, tags={"gpu": "a100"})
    (row,) = stage.ask("workers")
    assert (row["properties"]["cores"], row["properties"]["gpu"], row["properties"]["worker"]) == (2.0, "a100", "n1")


def test_a_failure_that_is_not_about_data_is_told_as_ever() -> None:
    stage = Stage()
    link = stage.join("n1")
    (task,) = stage.work()
    stage.finish(link, task, failure=fail())
    assert first_reason(stage, task)["commands"] == ["pilotfish logs 1.0", "pilotfish rerun 1 --failed"]
