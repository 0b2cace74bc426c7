"""pilotfish simulate: tables, pictures, JSON, and complaints; no pool is asked for anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import click

from pilotfish.cli.predictions.simulate_command import complete_policies, complete_work, simulate
from tests.unit.cli.conftest import CommandLine

SMALL = ("--tasks", "30", "--seconds", "10", "--site", "near 4", "--site", "far 2 speed=0.5", "--seeds", "2", "--processes", "1")
DEADLINE_S = 60.0


def test_policies_are_compared_in_a_table(pilotfish: CommandLine) -> None:
    said = pilotfish("simulate", *SMALL, "--files", "2x20M", "--policy", "workqueue,xsufferage")
    assert said.status == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == "30 tasks on 6 cores at 2 sites; means over 2 seeds"
    assert " ".join(lines[1].split()) == "POLICY MAKESPAN STD DEV SPEED-UP UTILISATION SENT TO near SENT TO far"
    assert lines[2].startswith("workqueue") and "1.00" in lines[2]
    assert lines[3].startswith("xsufferage") and "40 MiB" in lines[3]
    assert lines[4].startswith("No schedule is shorter than 1 min (all cores busy) or 10 s")


def test_json_has_every_seed(pilotfish: CommandLine) -> None:
    said = pilotfish("simulate", *SMALL, "--json")
    found = json.loads(said.out)
    assert [row["policy"] for row in found["policies"]] == ["workqueue", "auto"]
    assert all(len(row["makespans_s"]) == 2 for row in found["policies"])
    assert found["area_bound_s"] == 60.0


def test_a_file_and_options_together(pilotfish: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text('policies = ["near"]\n[work]\ntasks = 8\nseconds = 5\n[[site]]\nname = "a"\nhosts = 2\n')
    said = pilotfish("simulate", "grid.toml", "--seeds", "1")
    assert said.status == 0, said.err
    assert "8 tasks on 2 cores at 1 site; means over 1 seed\n" in said.out
    assert "20 s" in said.out


def test_a_task_list_with_costs_is_work(pilotfish: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "mesh.dat").write_bytes(bytes(5000))
    (tmp_path / "tasks.txt").write_text("id=first cost=2 in=mesh.dat sleep 1\nafter=first cost=3 sleep 2\nsleep 3\n")
    said = pilotfish("simulate", "--work", "tasks.txt", "--seconds", "1m", "--site", "here 2", "--seeds", "1", "--json")
    assert said.status == 0, said.err
    found = json.loads(said.out)
    assert found["tasks"] == 3 and found["path_bound_s"] == 300.0
    assert 300 < found["policies"][0]["makespan_s"] < 301
    assert found["policies"][0]["sent_bytes"]["here"] >= 5000


def test_nodes_of_a_dag_are_work_in_their_order(pilotfish: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "node.sub").write_text("executable = /bin/true\nrequest_cpus = 2\nqueue\n")
    (tmp_path / "flow.dag").write_text('JOB a node.sub\nJOB b node.sub\nJOB c node.sub\nVARS a x="1"\nPARENT a CHILD b c\n')
    said = pilotfish("simulate", "--work", "flow.dag", "--seconds", "1m", "--site", "here 1x4", "--seeds", "1", "--json")
    assert said.status == 0, said.err
    found = json.loads(said.out)
    assert found["tasks"] == 3 and found["path_bound_s"] == 120.0
    assert 120 < found["policies"][0]["makespan_s"] < 121
    (tmp_path / "flow.dag.rescue001").write_text("DONE a\nDONE b\nDONE c\n")
    said = pilotfish("simulate", "--work", "flow.dag", "--site", "here 1x4")
    assert "note: 3 nodes done before, says flow.dag.rescue001" in said.err and "every DAG node is done" in said.err


def test_pictures_are_written(pilotfish: CommandLine, tmp_path: Path) -> None:
    said = pilotfish("simulate", *SMALL, "--plot", "bars.svg", "--gantt", "chart.svg")
    assert "output: bars.svg\noutput: chart-workqueue.svg\noutput: chart-auto.svg\n" in said.out
    pilotfish("simulate", *SMALL, "--policy", "near", "--gantt", "one.svg")
    for name in ("bars", "chart-workqueue", "chart-auto", "one"):
        assert ElementTree.parse(tmp_path / f"{name}.svg").getroot().tag.endswith("svg")


def test_what_cannot_be_used_is_said_before_anything_is_reckoned(pilotfish: CommandLine, tmp_path: Path) -> None:
    for words, told, hint in (
        (("--tasks", "5"), "there is no site", "--site"),
        (("missing.toml",), "missing.toml: there is no such file", "--help"),
        ((*SMALL, "--policy", "xsuferage"), "--policy: there is no policy 'xsuferage'", "did you mean xsufferage?"),
        ((*SMALL, "--plot", "bars.png"), "bars.png: pictures are written as SVG", "Name it bars.svg"),
        ((*SMALL, "--plot", "nowhere/x.svg"), "nowhere/x.svg: its directory does not exist", "mkdir -p nowhere"),
    ):
        said = pilotfish("simulate", *words)
        assert said.status == 2, said
        assert told in said.err and hint in said.err
    (tmp_path / "bad.toml").write_text("seeds = ")
    assert "bad.toml is not valid TOML" in pilotfish("simulate", "bad.toml").err


def test_the_shell_completes_policies_and_work() -> None:
    context, parameter = click.Context(simulate), simulate.params[0]
    assert [item.value for item in complete_policies(context, parameter, "workqueue,xs")] == ["workqueue,xsufferage"]
    assert "workqueue,workqueue" not in [item.value for item in complete_policies(context, parameter, "workqueue,")]
    assert [item.value for item in complete_work(context, parameter, "mont")] == ["montage:1000"]
    assert [item.type for item in complete_work(context, parameter, "x")] == ["file"]


HEED_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Whoever was started in the background of a shell ignores it, and so do those whom it starts."""


def test_ctrl_c_ends_all_processes() -> None:
    words = ["simulate", "--tasks", "100000", "--seconds", "10", "--site", "here 100", "--seeds", "50", "--processes", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", f"{HEED_CTRL_C}; from pilotfish.cli.main import main; main()", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + DEADLINE_S
    while len(children_of(process.pid)) < 2:
        assert time.monotonic() < deadline and process.poll() is None
    children = children_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (130, b""), err
    assert b"Traceback" not in err
    while any(os.path.exists(f"/proc/{child}") for child in children):
        assert time.monotonic() < deadline


def children_of(process: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []
