"""Pilotfish: one pool of workers from all your clusters and machines."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers treat it as True; the import of typing would take longer than the import of this module
if TYPE_CHECKING:
    from pilotfish.api.balance_report import BalanceReport
    from pilotfish.api.divisible import divide, iterate
    from pilotfish.api.executor import Executor, ExecutorBroken, LeftBehind
    from pilotfish.api.futures import TaskFuture
    from pilotfish.api.run import Run
    from pilotfish.api.worker_check import NoSuitableWorker
    from pilotfish.applications.application_manager import ApplicationManager, ApplicationWorker
    from pilotfish.applications.executables.executable import Completed, ExecutableFailed
    from pilotfish.errors import BadInput, ConnectionFailed, PilotfishError, TaskFailed

__version__ = "0.1.0"

# The exported names of each module. A module is imported when one of its names is first used, so that ``import pilotfish`` is fast.
_EXPORTS = {
    "pilotfish.api.balance_report": ("BalanceReport",),
    "pilotfish.api.divisible": ("divide", "iterate"),
    "pilotfish.api.executor": ("Executor", "ExecutorBroken", "LeftBehind"),
    "pilotfish.api.futures": ("TaskFuture",),
    "pilotfish.api.run": ("Run",),
    "pilotfish.api.worker_check": ("NoSuitableWorker",),
    "pilotfish.applications.application_manager": ("ApplicationManager", "ApplicationWorker"),
    "pilotfish.applications.executables.executable": ("Completed", "ExecutableFailed"),
    "pilotfish.errors": ("BadInput", "ConnectionFailed", "PilotfishError", "TaskFailed"),
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "ApplicationManager",
    "ApplicationWorker",
    "BadInput",
    "BalanceReport",
    "Completed",
    "ConnectionFailed",
    "ExecutableFailed",
    "Executor",
    "ExecutorBroken",
    "LeftBehind",
    "NoSuitableWorker",
    "PilotfishError",
    "Run",
    "TaskFailed",
    "TaskFuture",
    "__version__",
    "divide",
    "iterate",
]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'pilotfish' has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
