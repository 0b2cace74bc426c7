"""Runs pilots as Kubernetes Jobs through kubectl.

A pilot is a Job of one Pod. A Secret contains the files of a pilot batch. All Jobs of the batch own the Secret, so Kubernetes deletes the
Secret when it has deleted the last Job. Each pilot of a batch is a separate Job: if one pilot fails or is cancelled, the other pilots
continue.

Site options: ``image`` (required), ``namespace``, ``context``, ``kubeconfig``, ``pull_policy``, ``service_account``, ``node_selector``
(``name=value,...``), ``run_as`` (numeric user id), ``gpu`` (resource name), ``pod`` (a JSON object with more fields of the Pod's ``spec``).
The queue of a site is a queue of Kueue, the job queueing system of Kubernetes.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, Command, CommandExchange, CommandOutput, JobStatus, PilotBatch
from pilotfish.backends.pilot_script import pilot_script
from pilotfish.backends.shell_template import CANNOT, UNDONE, documents, fill
from pilotfish.model.backend_traits import ONE_WORD, PATH, BackendTraits, matches
from pilotfish.model.site import Site

Result = TypeVar("Result")

FILES, SECRET = "/pilotfish", "/pilotfish-secret"
"""Folders in the Pod. SECRET has the files of the Secret. For a user that is not root, these files cannot be private, so FILES has private
copies of them."""
COPY = f"(umask 077 && cp {SECRET}/* {FILES}/) || exit"
KEPT_S = 3600
"""Seconds after which Kubernetes deletes an ended Job."""
GRACE_S = 30
LATER = re.compile(
    r"exceeded quota|connection|connect to|Unauthorized|logged in|timeout|TooManyRequests|ServiceUnavailable|InternalError|EOF"
)

SUBMIT = """\
wrap() { kube create secret generic @TAG@ @FILES@ >/dev/null; }
# One may be left of a submission that was cut off before it came to Jobs.
wrap 2>/dev/null || { kube delete secret @TAG@ --ignore-not-found >/dev/null && wrap; } || exit 70
if kube create -o name -f - <<'END-OF-JOBS'
@JOBS@
END-OF-JOBS
then
  comma=
  owners=$(kube get jobs -l pilotfish/tag=@TAG@ -o 'jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\\n"}{end}' |
    while read -r name uid; do
      printf '%s{"apiVersion":"batch/v1","kind":"Job","name":"%s","uid":"%s"}' "$comma" "$name" "$uid"
      comma=,
    done)
  kube patch secret @TAG@ --type=merge -p "{\\"metadata\\":{\\"ownerReferences\\":[$owners]}}" >/dev/null 2>&1
  exit 0
fi
kube delete jobs -l pilotfish/tag=@TAG@ --wait=false >/dev/null && kube delete secret @TAG@ --wait=false >/dev/null || exit 72
exit 71
"""

QUERY = """\
kube get pods,jobs -l app=pilotfish -o json || exit
kube get events --field-selector reason=FailedCreate -o json 2>/dev/null || :
"""


def _is_pod(text: str) -> bool:
    try:
        pod = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(pod, dict) and isinstance(pod.get("volumes", []), list)


class KubernetesBackend:
    """Uses the names of Jobs as job ids. A name consists of the tag of the batch and the number of the pilot."""

    traits = BackendTraits(
        {
            **dict.fromkeys(("image", "namespace", "context", "service_account", "gpu"), ONE_WORD),
            "kubeconfig": PATH,
            "pull_policy": matches("Always|IfNotPresent|Never", "Always, IfNotPresent or Never"),
            "node_selector": matches(r"[^=,\s]+=[^=,\s]*(,\s*[^=,\s]+=[^=,\s]*)*", "name=value,..."),
            "run_as": matches(r"[0-9]{1,10}", "the number of a user"),
            "pod": (_is_pod, "a JSON object, with a list if it has volumes"),
        },
        needs=("image",),
        ignores=("nodes", "account", "directives"),
        programs=("kubectl",),
        harmless_word="--help",
        variables=("KUBE",),
    )
    arrays = 50

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        names = [f"{batch.tag}-{number}" for number in range(1, batch.count + 1)]
        files = {"start.sh": f"{batch.folder}/start.sh", "agent.pyz": batch.bundle}
        files |= {f"{number}.json": f"{batch.folder}/{number}.json" for number in range(1, batch.count + 1)}
        jobs = [job_of(site, batch, number) for number in range(1, batch.count + 1)]
        script = fill(
            SUBMIT,
            TAG=shlex.quote(batch.tag),
            FILES=" ".join(f"--from-file={shlex.quote(f'{name}={path}')}" for name, path in files.items()),
            JOBS=json.dumps({"apiVersion": "v1", "kind": "List", "items": jobs}),
        )

        def read(answer: CommandOutput) -> list[str]:
            if answer.status in (CANNOT, UNDONE):
                raise answer.refused(later=bool(LATER.search(answer.stderr)))
            created = re.findall(r"^job\.batch/(\S+)", answer.require_success(), re.MULTILINE)
            if created != names:
                raise answer.unclear(f"{len(created)} of {batch.count} jobs were created")
            return names

        return _exchange(site, script, read)

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        def read(answer: CommandOutput) -> dict[str, JobStatus]:
            pods: dict[str, Mapping[str, Any]] = {}
            known: dict[str, Mapping[str, Any]] = {}
            complaints: dict[str, str] = {}
            for document in documents(answer.require_success()):
                for item in document.get("items") or [document]:
                    metadata = item.get("metadata") or {}
                    if item.get("kind") == "Job":
                        known[metadata["name"]] = item
                    elif item.get("kind") == "Pod":
                        # A Job can have several Pods, for example after a preemption. The last Pod counts.
                        job = (metadata.get("labels") or {}).get("job-name", "")
                        if job not in pods or pods[job]["metadata"]["creationTimestamp"] <= metadata["creationTimestamp"]:
                            pods[job] = item
                    elif item.get("kind") == "Event":
                        complaints[(item.get("involvedObject") or {}).get("name", "")] = str(item.get("message", ""))
            statuses = {job: _status(known.get(job), pods.get(job), complaints.get(job, "")) for job in jobs}
            return {job: status for job, status in statuses.items() if status is not None}

        return [_exchange(site, QUERY, read)]

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        def read(answer: CommandOutput) -> None:
            answer.require_success()

        return [_exchange(site, f"kube delete jobs --ignore-not-found --wait=false {shlex.join(jobs)}\n", read)]

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        def read(answer: CommandOutput) -> dict[int, str]:
            names = re.findall(rf"^job\.batch/({re.escape(tag)}-(\d+))$", answer.require_success(), re.MULTILINE)
            return {int(number): name for name, number in names}

        return [_exchange(site, f"kube get jobs -l {shlex.quote(f'pilotfish/tag={tag}')} -o name\n", read)]

    def past(self, site: Site, jobs: Sequence[str]) -> None:
        """Returns None, because Kubernetes keeps no record of deleted Jobs."""


def job_of(site: Site, batch: PilotBatch, number: int) -> dict[str, Any]:
    """Returns the Job of one pilot. The time limit is a field of the Pod, because a time limit of the Job would include the queue wait."""
    size, options = batch.size, site.options
    labels = {"app": "pilotfish", "pilotfish/tag": batch.tag}
    batch_there = replace(batch, folder=FILES, bundle=f"{FILES}/agent.pyz")
    memory = {"memory": str(size.memory)} if size.memory else {}
    gpus = {options.get("gpu", "nvidia.com/gpu"): f"{size.gpus:g}"} if size.gpus else {}
    container = {
        "name": "pilot",
        "image": options.get("image", ""),
        "command": ["sh", "-c", pilot_script(site, batch_there, (COPY,))],
        "resources": {"requests": {"cpu": f"{size.cores:g}", **memory}, "limits": {**memory, **gpus}},
        "volumeMounts": [{"name": "files", "mountPath": FILES}, {"name": "secret", "mountPath": SECRET, "readOnly": True}],
        # Kubernetes reports the last lines of the log as the reason why the Pod ended.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if "pull_policy" in options:
        container["imagePullPolicy"] = options["pull_policy"]
    items = [{"key": name, "path": name} for name in ("start.sh", "agent.pyz")] + [{"key": f"{number}.json", "path": "1.json"}]
    more: dict[str, Any] = json.loads(options.get("pod", "{}"))
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE_S,
        **({"activeDeadlineSeconds": max(1, round(size.walltime_s))} if size.walltime_s else {}),
        **_pod_options(options),
        **more,
        "containers": [container],
        "volumes": [
            {"name": "files", "emptyDir": {"medium": "Memory"}},
            {"name": "secret", "secret": {"secretName": batch.tag, "defaultMode": 0o400, "items": items}},
            *more.get("volumes", []),
        ],
    }
    queue = {"kueue.x-k8s.io/queue-name": site.queue} if site.queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{batch.tag}-{number}", "labels": {**labels, **queue}},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": KEPT_S, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def _pod_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of the Pod that the site options set. The option ``run_as`` also sets ``fsGroup``, so that the user can read the
    files of the Secret."""
    chosen: dict[str, Any] = {}
    if "service_account" in options:
        chosen["serviceAccountName"] = options["service_account"]
    if "node_selector" in options:
        chosen["nodeSelector"] = dict(word.strip().split("=", 1) for word in options["node_selector"].split(","))
    if "run_as" in options:
        user = int(options["run_as"])
        chosen["securityContext"] = {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return chosen


def _exchange(site: Site, script: str, read: Callable[[CommandOutput], Result]) -> CommandExchange[Result]:
    flags = [f"--{name}={site.options[name]}" for name in ("kubeconfig", "context", "namespace") if name in site.options]
    # If a server does not answer, kubectl tries five more times. So a command can take six times 10 s.
    function = f'kube() {{ {shlex.join(["kubectl", "--request-timeout=10s", *flags])} "$@"; }}\n'
    return CommandExchange(Command(("sh", "-s"), stdin=function + script, timeout_s=150.0), read)


def _status(job: Mapping[str, Any] | None, pod: Mapping[str, Any] | None, complaint: str) -> JobStatus | None:
    status = (pod or {}).get("status") or {}
    conditions = {
        condition["type"]: condition
        for condition in ((job or {}).get("status") or {}).get("conditions") or []
        if condition.get("status") == "True"
    }
    phase = status.get("phase", "")
    if "Complete" in conditions or phase == "Succeeded":
        return JobStatus(ENDED)
    if "Failed" in conditions or phase == "Failed":
        failure = conditions.get("Failed", {})
        expired = "DeadlineExceeded" in (failure.get("reason"), status.get("reason"))
        return JobStatus(ENDED, _end_reason(status) or _describe(failure), well=False, expired=expired)
    if phase == "Running":
        return JobStatus(RUNNING)
    if phase == "Pending":
        return JobStatus(QUEUED, _wait_reason(status))
    if job is None or phase:
        return None
    return JobStatus(QUEUED, _describe(conditions["Suspended"]) if "Suspended" in conditions else complaint)


def _wait_reason(status: Mapping[str, Any]) -> str:
    for container in status.get("containerStatuses") or []:
        if "waiting" in container.get("state", {}):
            return _describe(container["state"]["waiting"])
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _describe(condition)
    return ""


def _end_reason(status: Mapping[str, Any]) -> str:
    if status.get("reason"):
        return _describe(status)
    for container in status.get("containerStatuses") or []:
        end = container.get("state", {}).get("terminated")
        if end:
            last = str(end.get("message", "")).strip().rpartition("\n")[2]
            return ": ".join(filter(None, [str(end.get("reason", "")), f"exit status {end.get('exitCode')}", last]))
    return ""


def _describe(state: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, [str(state.get("reason", "")), str(state.get("message", ""))]))
