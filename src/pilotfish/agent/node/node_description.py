"""Describes the node: CPU, memory, GPUs, benchmark. The agent sends the description when it joins."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

BENCHMARK_S = 0.01
GPU_QUERY_TIMEOUT_S = 5.0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def usable_cores() -> int:
    """Returns the number of cores that the CPU affinity and the control group allow to this process."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    for directory in _control_groups():
        quota, _, period = _read(directory + "/cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def usable_memory() -> int:
    """Returns the memory of the node in bytes, or the memory limit of the control group if the limit is smaller."""
    memory = 0
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            memory = int(line.split()[1]) * 1024
    for directory in _control_groups():
        limit = _read(directory + "/memory.max").strip()
        if limit.isdigit():
            memory = min(memory, int(limit)) if memory else int(limit)
    return memory


def _control_groups() -> List[str]:
    """Returns the directory of the control group (version 2) of this process, and the directories of the groups above it."""
    found = []
    for line in _read("/proc/self/cgroup").splitlines():
        number, _, name = line.split(":", 2)
        if number == "0":
            while name not in ("", "/"):
                found.append("/sys/fs/cgroup" + name)
                name = os.path.dirname(name)
    return found


def gpu_names() -> List[str]:
    """Returns the names of the GPUs. nvidia-smi is slow, so it runs only if there is a driver."""
    program = shutil.which("nvidia-smi")
    if program is None or not os.path.exists("/dev/nvidiactl"):
        return []
    try:
        answer = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=GPU_QUERY_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.decode("utf-8", "replace").splitlines() if line.strip()]


def cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor()


def benchmark(duration_s: float = BENCHMARK_S) -> float:
    """Returns the speed of a Python loop, in thousands of steps per second. It is a rough measure to compare nodes."""
    rounds = 0
    started_at = time.perf_counter()
    while True:
        total = 0
        for value in range(1000):
            total += value * value
        rounds += 1
        elapsed = time.perf_counter() - started_at
        if elapsed >= duration_s:
            return round(rounds / elapsed, 1)


def readable(text: str) -> str:
    """Replaces characters that UTF-8 cannot encode. Names from the system can contain such characters."""
    return text.encode("utf-8", "replace").decode("utf-8")


def describe(workdir: str, gpus: Optional[List[str]] = None) -> Dict[str, Any]:
    """Returns the description of this node."""
    try:
        disk_free: Optional[int] = shutil.disk_usage(workdir).free
    except OSError:
        disk_free = None
    system = os.uname()
    node = os.environ.get("SLURMD_NODENAME", "")  # the name of this node for srun
    return {
        "hostname": readable(socket.gethostname()),
        "pid": os.getpid(),
        "system": system.sysname,
        "release": system.release,
        "machine": system.machine,
        "python": platform.python_version(),
        "executable": readable(sys.executable),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory": usable_memory(),
        "disk_free": disk_free,
        "workdir": readable(workdir),
        "gpus": gpus or [],
        "benchmark": benchmark(),
        **({"node": readable(node)} if node else {}),
    }
