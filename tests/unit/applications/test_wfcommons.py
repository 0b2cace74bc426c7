from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.workflows import critical_path_s, least_s, work_s
from pilotfish.applications.task_list import TaskList
from pilotfish.applications.wfcommons import Workflow, add_stand_ins, parse_workflow, read_workflow
from pilotfish.errors import BadInput
from pilotfish.sim.scenarios.workflow_families import FAMILIES, family


def children_of(workflow: Workflow) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in workflow.tasks]
    for index, task in enumerate(workflow.tasks):
        for parent in task.parents:
            found[parent].append(index)
    return tuple(map(tuple, found))


def levels_of(workflow: Workflow) -> tuple[int, ...]:
    """Returns the length of the longest chain of tasks before each task."""
    found: list[int] = []
    for task in workflow.tasks:
        found.append(1 + max((found[parent] for parent in task.parents), default=-1))
    return tuple(found)


NEW: dict[str, Any] = {
    "name": "diamond",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"name": "join_ID4", "id": "d", "parents": ["b", "c"], "children": [], "inputFiles": ["y", "z"]},
                {"name": "split_ID1", "id": "a", "parents": [], "children": ["b", "c"], "inputFiles": ["raw"], "outputFiles": ["x"]},
                {"name": "left_ID2", "id": "b", "parents": ["a"], "children": ["d"], "inputFiles": ["x"], "outputFiles": ["y"]},
                {"name": "right_ID3", "id": "c", "parents": ["a"], "children": ["d"], "inputFiles": ["x"], "outputFiles": ["z"]},
            ],
            "files": [{"id": "raw", "sizeInBytes": 10}, {"id": "x", "sizeInBytes": 20}, {"id": "y", "sizeInBytes": 30}],
        },
        "execution": {
            "tasks": [
                {"id": "a", "runtimeInSeconds": 1.5, "command": {"program": "/opt/split"}},
                {"id": "b", "runtimeInSeconds": 4, "coreCount": 2},
                {"id": "c", "runtimeInSeconds": 3},
                {"id": "d", "runtimeInSeconds": 2},
            ]
        },
    },
}
OLD: dict[str, Any] = {
    "name": "pair",
    "schemaVersion": "1.2",
    "workflow": {
        "jobs": [
            {"name": "second_ID2", "runtime": 2, "parents": ["first_ID1"], "files": [{"link": "input", "name": "x", "size": 7}]},
            {"name": "first_ID1", "runtime": 1, "parents": [], "files": [{"link": "output", "name": "x", "size": 7}]},
        ]
    },
}
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["workflow", "tasks", "name", "id", "parents", "files", "specification", "runtime", "size"]), inner
        )
    ),
    max_leaves=20,
)


def test_the_present_form_is_read_with_times_files_and_cores() -> None:
    workflow = parse_workflow(NEW)
    assert [task.program for task in workflow.tasks] == ["split", "left", "right", "join"]
    assert [task.parents for task in workflow.tasks] == [(), (0,), (0,), (1, 2)]
    assert children_of(workflow) == ((1, 2), (3,), (3,), ())
    assert [task.cores for task in workflow.tasks] == [1, 2, 1, 1]
    assert workflow.files == {"raw": 10, "x": 20, "y": 30, "z": 0}
    assert levels_of(workflow) == (0, 1, 1, 2)
    assert critical_path_s(workflow) == 7.5
    assert work_s(workflow) == 1.5 + 8 + 3 + 2
    assert least_s(workflow, 1) == 14.5
    assert least_s(workflow, 100) == 7.5


def test_older_forms_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(OLD))
    first, second = read_workflow(path).tasks
    assert (first.program, first.seconds, first.outputs, second.parents, second.inputs) == ("first", 1.0, ("x",), (0,), ("x",))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[0]["parents"].append("nobody"), "which is no task"),
        (lambda rows: rows[1]["parents"].append("second_ID2"), "wait for each other"),
        (lambda rows: rows.clear(), "no tasks"),
        (lambda rows: rows[0].update(runtime=-1), "not an instance"),
        (lambda rows: rows[0].update(name="first_ID1"), "two tasks"),
        (lambda rows: rows[0].update(files=3), "not an instance"),
    ],
)
def test_what_is_wrong_with_an_instance_is_said(change: Any, said: str) -> None:
    document = json.loads(json.dumps(OLD))
    change(document["workflow"]["jobs"])
    with pytest.raises(BadInput, match=said):
        parse_workflow(document)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    for name, said in (("none.json", "no such file"), ("deep.json", "not JSON")):
        with pytest.raises(BadInput, match=said):
            read_workflow(tmp_path / name)


@given(JSON)
def test_nothing_but_bad_input_comes_of_any_json(document: Any) -> None:
    try:
        assert isinstance(parse_workflow(document), Workflow)
    except BadInput:
        pass


def test_stand_ins_sleep_and_wait_as_the_tasks_did() -> None:
    tasks = TaskList()
    add_stand_ins(tasks, parse_workflow(NEW), 0.01)
    entries = tasks.take()
    assert [tuple(entry.needs.after) for entry in entries] == [(), (0,), (0,), (1, 2)]
    assert b'["sleep", "0.040"]' in entries[1].payload


# --- families ---------------------------------------------------------------------------------------------------------------------------


def programs(workflow: Workflow) -> Counter[str]:
    return Counter(task.program for task in workflow.tasks)


@pytest.mark.parametrize("count", [100, 104, 333, 1000, 5000])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_as_many_tasks_as_asked_for_in_a_legal_order(name: str, count: int) -> None:
    workflow = family(name, count, seed=3)
    assert abs(len(workflow.tasks) - count) <= 0.05 * count
    for index, task in enumerate(workflow.tasks):
        assert all(parent < index for parent in task.parents)
        assert len(set(task.parents)) == len(task.parents)
        assert task.seconds > 0
        assert all(workflow.files[name] > 0 for name in (*task.inputs, *task.outputs))
        assert {workflow.tasks[parent].outputs[0] for parent in task.parents} <= set(task.inputs)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_gives_the_same_workflow_and_another_one_other_times(name: str) -> None:
    assert family(name, 200, 1) == family(name, 200, 1)
    assert family(name, 200, 1).tasks != family(name, 200, 2).tasks


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("montage", 8),
        ("blast", 3),
        ("bwa", 3),
        ("epigenomics", 9),
        ("seismology", 2),
        ("1000genome", 3),
        ("cycles", 4),
        ("soykb", 11),
        ("srasearch", 4),
    ],
)
def test_a_family_is_as_deep_as_its_published_executions(name: str, levels: int) -> None:
    assert max(levels_of(family(name, 1000))) + 1 == levels


def test_montage_compares_pairs_of_images_and_adds_up_three_colours() -> None:
    workflow = family("montage", 1312)
    counts = programs(workflow)
    assert counts["mConcatFit"] == counts["mBgModel"] == counts["mImgtbl"] == counts["mAdd"] == 3
    assert counts["mViewer"] == 4
    assert counts["mProject"] == counts["mBackground"]
    assert abs(counts["mProject"] - 180) <= 9
    assert abs(counts["mDiffFit"] - 936) <= 47
    pairs = [task.parents for task in workflow.tasks if task.program == "mDiffFit"]
    assert all(len(pair) == 2 for pair in pairs)
    assert len(set(pairs)) == len(pairs)


def test_blast_fans_out_from_one_and_into_two() -> None:
    workflow = family("blast", 303)
    assert programs(workflow)["blastall"] == 300
    assert [len(children) for children in children_of(workflow)].count(300) == 1
    assert [len(task.parents) for task in workflow.tasks].count(300) == 2


def test_a_chromosome_is_held_against_seven_populations_in_two_ways() -> None:
    workflow = family("1000genome", 902)
    counts = programs(workflow)
    assert counts["individuals_merge"] == counts["sifting"] == 22
    assert counts["frequency"] == counts["mutation_overlap"] == 7 * 22
    assert counts["individuals"] == 550


def test_an_unknown_family_and_too_few_tasks_are_refused() -> None:
    for name, count in (("epic", 100), ("montage", 10)):
        with pytest.raises(BadInput):
            family(name, count)
