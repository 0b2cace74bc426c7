"""Kubernetes: what kubectl 1.32 said of a cluster of version 1.34, and the scripts with something that takes its place."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, CommandOutput, JobStatus
from pilotfish.backends.kubernetes import KubernetesBackend, job_of
from pilotfish.model.site import Site
from pilotfish.testing.backend_suite import BackendContract, Samples
from tests.contract.backends.transcripts import answer

KUBE = "kubernetes-1.34.11"
MIXED = answer(KUBE, "status-jobs-and-pods-json-mixed")
SITE = Site(backend="kubernetes", options={"image": "example/python", "namespace": "pf"})


def taken_back(case: str) -> CommandOutput:
    """The script's answer when kubectl refused the Jobs so."""
    return replace(answer(KUBE, case), status=71)


class TestKubernetes(BackendContract):
    samples = Samples(
        backend=KubernetesBackend(),
        kind="kubernetes",
        submitted=CommandOutput(
            0, answer(KUBE, "submit-ok-single-name-output").stdout.replace("pf-ok2", "pf-tag-1-1") + "job.batch/pf-tag-1-2\n"
        ),
        jobs=("pf-tag-1-1", "pf-tag-1-2"),
        listed=(
            MIXED,
            {
                **dict.fromkeys(("pf-deadline", "pf-fail", "pf-nocmd", "pf-ok", "pf-oom", "pf-sig"), ENDED),
                **dict.fromkeys(("pf-held", "pf-never", "pf-noconf", "pf-noimage"), QUEUED),
                **dict.fromkeys(("pf-run", "pf-term"), RUNNING),
            },
        ),
        nothing=(MIXED, answer(KUBE, "find-by-tag-none")),
        down=tuple(
            answer(KUBE, case) for case in ("down-status", "status-unauthorized", "status-forbidden", "unreachable-status", "no-config")
        ),
        refused=tuple(
            taken_back(f"submit-refused-{case}")
            for case in ("forbidden", "already-exists", "limit-range-pod", "unknown-namespace", "bad-quantity", "bad-name")
        ),
        cancelled=tuple(answer(KUBE, case) for case in ("cancel-finished", "cancel-unknown-ignored", "cancel-by-tag-none")),
        found=("pf-tag-1", CommandOutput(0, "job.batch/pf-tag-1-1\njob.batch/pf-tag-1-2\n"), {1: "pf-tag-1-1", 2: "pf-tag-1-2"}),
        unfound=(CommandOutput(0, "", answer(KUBE, "find-by-tag-none-table").stderr),),
        words={
            "queue": '"kueue.x-k8s.io/queue-name": "long"',
            "account": "",
            "walltime": '"activeDeadlineSeconds": 5430',
            "cores": '"cpu": "4"',
            "memory": '"memory": "6442450944"',
            "gpus": '"nvidia.com/gpu": "2"',
            "directives": "",
        },
        down_at_submission=(replace(answer(KUBE, "down-submit"), status=70), answer(KUBE, "unreachable-status")),
        limits=(taken_back("submit-refused-over-quota-job-count"),),
        options={"image": "example/python"},
    )


def look(*cases: str, jobs: Iterable[str]) -> dict[str, JobStatus]:
    told = "".join(answer(KUBE, case).stdout for case in cases)
    return KubernetesBackend().query(SITE, list(jobs))[0].read(CommandOutput(0, told))


def test_the_end_of_a_pod_is_told_in_the_systems_words() -> None:
    seen = look("status-jobs-and-pods-json-mixed", jobs=("pf-ok", "pf-fail", "pf-oom", "pf-sig", "pf-nocmd", "pf-deadline"))
    assert seen["pf-ok"].well and not any(sighting.well for job, sighting in seen.items() if job != "pf-ok")
    assert seen["pf-fail"].reason == "Error: exit status 7"
    assert seen["pf-oom"].reason == "OOMKilled: exit status 137"
    assert seen["pf-sig"].reason == "Error: exit status 137"
    assert seen["pf-nocmd"].reason.startswith("StartError: exit status 128: ")
    assert seen["pf-deadline"].reason == "DeadlineExceeded: Job was active longer than specified deadline"
    assert [job for job, sighting in seen.items() if sighting.expired] == ["pf-deadline"]


def test_what_a_pod_waits_for_is_told() -> None:
    seen = look("status-jobs-and-pods-json-mixed", jobs=("pf-held", "pf-never", "pf-noconf", "pf-noimage"))
    assert seen["pf-held"].reason.startswith("JobSuspended: ")
    assert seen["pf-never"].reason.startswith("Unschedulable: 0/")
    assert seen["pf-noconf"].reason.startswith("CreateContainerConfigError: ")
    assert seen["pf-noimage"].reason.startswith("ErrImageNeverPull: ")


def test_a_job_that_was_suspended_or_cannot_be_placed_waits() -> None:
    assert look("status-held-after-running-json", jobs=["pf-run"])["pf-run"] == JobStatus(QUEUED, "JobSuspended: Job suspended")
    assert "unschedulable" in look("status-cordoned-pods-json", jobs=["pf-cord"])["pf-cord"].reason


def test_a_quota_that_keeps_pods_out_is_read_from_the_events() -> None:
    seen = look("status-over-quota-job", "events-over-quota-job", jobs=["pf-qjob"])
    assert seen["pf-qjob"].phase == QUEUED and "exceeded quota" in seen["pf-qjob"].reason
    assert look("status-over-quota-job", jobs=["pf-qjob"]) == {"pf-qjob": JobStatus(QUEUED)}


def pod(status: dict[str, Any], created: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "a-1-x", "creationTimestamp": created, "labels": {"job-name": "a-1"}}, "status": status}


def test_a_pod_whose_time_was_over_expired() -> None:
    late = pod(
        {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"}
    )
    seen = KubernetesBackend().query(SITE, ["a-1"])[0].read(CommandOutput(0, json.dumps({"items": [late]})))
    assert seen["a-1"].expired and seen["a-1"].reason.startswith("DeadlineExceeded: Pod was active")


def test_of_two_pods_of_a_job_the_later_one_counts() -> None:
    pods = [pod({"phase": "Running"}, "2026-01-02T00:00:00Z"), pod({"phase": "Failed"}, "2026-01-01T00:00:00Z")]
    for items in (pods, pods[::-1]):
        seen = KubernetesBackend().query(SITE, ["a-1"])[0].read(CommandOutput(0, json.dumps({"items": items})))
        assert seen["a-1"].phase == RUNNING


def test_a_pod_of_a_node_that_is_lost_says_nothing() -> None:
    assert KubernetesBackend().query(SITE, ["a-1"])[0].read(CommandOutput(0, json.dumps({"items": [pod({"phase": "Unknown"})]}))) == {}


def test_each_pod_sees_its_own_credentials_only_and_no_key_of_the_cluster() -> None:
    options = {
        "image": "example/python",
        "pull_policy": "Never",
        "node_selector": "disk=ssd, zone=a",
        "run_as": "1000",
        "pod": '{"tolerations": [{"key": "gpu"}], "volumes": [{"name": "data"}]}',
    }
    job = job_of(Site(backend="kubernetes", options=options), TestKubernetes.samples.order(), 2)
    assert job["metadata"]["name"] == "pf-tag-1-2" and job["spec"]["backoffLimit"] == 0
    spec = job["spec"]["template"]["spec"]
    secret = spec["volumes"][1]["secret"]
    assert secret["defaultMode"] == 0o400 and secret["secretName"] == "pf-tag-1"
    assert [item["key"] for item in secret["items"]] == ["start.sh", "agent.pyz", "2.json"]
    assert spec["automountServiceAccountToken"] is False and spec["restartPolicy"] == "Never"
    assert spec["nodeSelector"] == {"disk": "ssd", "zone": "a"}
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == 1000
    assert spec["tolerations"] == [{"key": "gpu"}] and spec["volumes"][2:] == [{"name": "data"}]
    assert spec["containers"][0]["imagePullPolicy"] == "Never"
    assert "umask 077 && cp /pilotfish-secret/* /pilotfish/)" in spec["containers"][0]["command"][2]
    assert "sh /pilotfish/start.sh /pilotfish/1.json /pilotfish/agent.pyz" in spec["containers"][0]["command"][2]


KUBECTL = """\
#!/bin/sh
# Takes the place of kubectl: notes its arguments, and fails where it is told to.
printf '%s\\n' "$*" >>"$NOTES"
case $* in *"$FAILS"*) echo "Error from server (Forbidden): no" >&2; exit 1 ;; esac
case $* in
  *"-f -"*) cat >"$NOTES.json"; echo job.batch/pf-tag-1-1; echo job.batch/pf-tag-1-2 ;;
  *jsonpath*) echo pf-tag-1-1 u1; echo pf-tag-1-2 u2 ;;
esac
"""


@pytest.mark.parametrize(("fails", "status"), [("nothing", 0), ("secret generic", 70), ("-f -", 71)])
def test_the_script_leaves_nothing_behind_when_jobs_are_refused(tmp_path: Path, fails: str, status: int) -> None:
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    exchange = KubernetesBackend().submit(SITE, TestKubernetes.samples.order())
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NOTES": str(tmp_path / "notes"), "FAILS": fails}
    ran = subprocess.run(exchange.command.argv, input=exchange.command.stdin, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == status, ran.stderr
    notes = (tmp_path / "notes").read_text().splitlines()
    assert all(note.startswith("--request-timeout=10s --namespace=pf ") for note in notes)
    assert "--from-file=2.json=/shared/pf/o 1/2.json" in notes[0]
    if status == 0:
        assert exchange.read(CommandOutput(0, ran.stdout)) == ["pf-tag-1-1", "pf-tag-1-2"]
        assert len(json.loads((tmp_path / "notes.json").read_text())["items"]) == 2
        owners = json.loads(notes[-1].partition(" -p ")[2])["metadata"]["ownerReferences"]
        assert [(owner["name"], owner["uid"]) for owner in owners] == [("pf-tag-1-1", "u1"), ("pf-tag-1-2", "u2")]
    if status == 71:
        assert any("delete jobs -l pilotfish/tag=pf-tag-1" in note for note in notes) and "delete secret pf-tag-1" in notes[-1]
