"""A DAG as a planner writes it runs unedited, with real processes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.terminal import Typist

PLANNED = """\
######################################################################
# PLANNED DAG FILE
# DAG blackdiamond
######################################################################
MAXJOBS stagein 1

JOB create_dir_0 00/create_dir_0.sub
SCRIPT POST create_dir_0 ./exitcode.sh -r $RETURN create_dir_0.out
RETRY create_dir_0 1
JOB stage_in_0 00/stage_in.sub
VARS stage_in_0 file="a"
CATEGORY stage_in_0 stagein
JOB stage_in_1 00/stage_in.sub
VARS stage_in_1 file="b"
CATEGORY stage_in_1 stagein
JOB stage_in_2 00/stage_in.sub
VARS stage_in_2 file="c"
CATEGORY stage_in_2 stagein
SUBDAG EXTERNAL subdax_analyze analyze.dag
JOB stage_out_0 00/stage_out.sub
FINAL cleanup_0 00/cleanup.sub

PARENT create_dir_0 CHILD stage_in_0 stage_in_1 stage_in_2
PARENT stage_in_0 stage_in_1 stage_in_2 CHILD subdax_analyze
PARENT subdax_analyze CHILD stage_out_0
######################################################################
# End of DAG
######################################################################
"""
HEADER = """\
universe = vanilla
getenv = True
notification = NEVER
on_exit_remove = (ExitBySignal == False) && (ExitCode == 0)
periodic_release = False
request_cpus = 1
+planner_wf_name = "blackdiamond-0"
+planner_job_class = 10
+DAGNodeRetry = "$(RETRY)"
transfer_executable = true
"""
FILES = {
    "planned.dag": PLANNED,
    "analyze.dag": "JOB member 00/member.sub\nJOB merge 00/merge.sub\nPARENT member CHILD merge\n",
    "00/create_dir_0.sub": "executable = /bin/mkdir\narguments = -p work\noutput = create_dir_0.out\nqueue\n",
    # A task finds the file of another one only if both run at the same time.
    "00/stage_in.sub": "executable = /bin/sh\n"
    "arguments = \"-c 'ls work | grep lock && echo overlap >> work/overlaps; touch work/lock.$(file); sleep 0.2; rm work/lock.$(file); "
    "echo $(file) > work/$(file).txt'\"\nqueue 1\n",
    "00/member.sub": "executable = /bin/cp\narguments = work/a.txt work/member.$(Process)\nqueue 3\n",
    "00/merge.sub": "executable = /bin/false\nqueue\n",
    "00/stage_out.sub": "executable = /bin/cat\narguments = work/merged\noutput = result.txt\nqueue\n",
    "00/cleanup.sub": "executable = /bin/echo\narguments = $(DAG_STATUS) $(FAILED_COUNT)\noutput = cleanup.txt\nqueue\n",
}

OUTER = """\
MAXJOBS stagein 10
JOB create_dir_0 00/create_scratch.sub
SCRIPT POST create_dir_0 ./exitcode.sh -r $RETURN create_dir_0.out
JOB make_0 00/make.sub
RETRY make_0 1
VARS make_0 +DAGNodeRetry="$(RETRY)"
JOB plan_diamond 00/plan_diamond.sub
SCRIPT PRE plan_diamond 00/plan.sh --basename inner
RETRY plan_diamond 1
CATEGORY plan_diamond subwf
VARS plan_diamond +DAGNodeRetry="$(RETRY)"
JOB count_0 00/count.sub
PARENT create_dir_0 CHILD make_0
PARENT make_0 CHILD plan_diamond
PARENT plan_diamond CHILD count_0
"""
HIERARCHY = {
    "outer.dag": OUTER,
    "00/create_scratch.sub": "executable = /bin/mkdir\narguments = -p {here}/scratch\nqueue\n",
    "00/make.sub": "executable = /usr/bin/touch\narguments = f.a\ninitialdir = {here}/scratch\nshould_transfer_files = YES\n"
    'transfer_output_files = f.a\ntransfer_output_remaps = "f.a=stage/f.a"\nqueue\n',
    "00/plan_diamond.sub": "universe = scheduler\nexecutable = /opt/condor/bin/condor_dagman\ninitialdir = {here}/00/./diamond\n"
    'arguments = " -p 0  -f -l . -Notification never -Lockfile inner.dag.lock -Dag inner.dag -AutoRescue 1 -DoRescueFrom 0 "\nqueue\n',
    "00/count.sub": "executable = /bin/ls\narguments = f.b\ninitialdir = {here}/scratch/stage\noutput = {here}/listed.txt\nqueue\n",
    "00/plan.sh": "#!/bin/sh\nmkdir -p 00/diamond.000 && ln -s diamond.000 00/diamond\necho 'JOB copy copy.sub' > 00/diamond/inner.dag\n"
    "printf 'executable = /bin/cp\\narguments = f.a f.b\\ninitialdir = {here}/scratch/stage\\noutput = {here}/$(JOB).out\\nqueue\\n' "
    "> 00/diamond/copy.sub\n",
}


@pytest.fixture
def typist() -> Iterator[Typist]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-dag-"))
    person = Typist(directory)
    (directory / "00").mkdir()
    for name, text in FILES.items():
        (directory / name).write_text((HEADER if name.endswith(".sub") else "") + text)
    script = directory / "exitcode.sh"
    script.write_text('#!/bin/sh\nexit "$2"\n')
    script.chmod(0o755)
    yield person
    said = person.type("stop", "--now", "--json")
    assert json.loads(said.out)["left"] == []
    shutil.rmtree(directory)


def test_a_planned_dag_runs_unedited_and_continues_after_a_failure(typist: Typist) -> None:
    here = typist.directory
    refused = typist.type("run", "--local-cores", "2", "planned.dag")
    assert refused.status == 2 and "fix: Set the cores of the pool: pilotfish workers --local-cores 2" in refused.err
    typist.type("workers", "--local-cores", "4")
    said = typist.type("run", "planned.dag")
    assert said.status == 0  # the FINAL node decides
    assert "the FINAL node cleanup_0 succeeded, so the DAG succeeded" in said.err
    assert "subdax_analyze+merge: /bin/false" in said.out
    assert not (here / "work/overlaps").exists()
    assert (here / "cleanup.txt").read_text() == "2 1\n"
    done = (here / "planned.dag.rescue001").read_text().splitlines()[1:]
    assert done == [f"DONE {name}" for name in ("create_dir_0", "stage_in_0", "stage_in_1", "stage_in_2", "subdax_analyze+member")]
    merge = "executable = /bin/cp\narguments = work/member.2 work/merged\nqueue\n"
    (here / "00/merge.sub").write_text(HEADER + merge)
    again = typist.type("run", "planned.dag")
    assert (again.status, again.out.splitlines()[0].split(" in ")[0]) == (0, "Run 2: 4 tasks, 4 done")
    assert (here / "result.txt").read_text() == "a\n"
    assert (here / "cleanup.txt").read_text() == "0 0\n"
    assert not (here / "planned.dag.rescue001").exists()


def test_a_hierarchical_plan_runs_unedited(typist: Typist) -> None:
    here = typist.directory
    for name, text in HIERARCHY.items():
        (here / name).write_text((HEADER if name.endswith(".sub") else "") + text.replace("{here}", str(here)))
    (here / "00/plan.sh").chmod(0o755)
    said = typist.type("run", "outer.dag")
    assert said.status == 0, said.out + said.err
    assert "note:" not in said.err
    assert (here / "listed.txt").read_text() == "f.b\n"
    assert (here / "copy.out").exists()
