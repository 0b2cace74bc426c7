"""Pilotfish: one pool of workers from all your clusters and machines."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; the module typing would take longer to import than all of this
if TYPE_CHECKING:
    from pilotfish.api.balance_report import BalanceReport
    from pilotfish.api.divisible import divide, iterate
    from pilotfish.api.executor import Executor, ExecutorBroken, LeftBehind
    from pilotfish.api.futures import TaskFuture
    from pilotfish.api.run import Run
    from pilotfish.applications.application_manager import ApplicationManager, ApplicationWorker
    from pilotfish.applications.executable import Completed, ExecutableFailed
    from pilotfish.errors import BadInput, ConnectionFailed, PilotfishError, TaskFailed

__version__ = "0.1.0"

# Modules of the exported names. A module is imported when a name is first used, so that ``import pilotfish`` is fast.
_MODULES = {
    "ApplicationManager": "pilotfish.applications.application_manager",
    "ApplicationWorker": "pilotfish.applications.application_manager",
    "BadInput": "pilotfish.errors",
    "BalanceReport": "pilotfish.api.balance_report",
    "Completed": "pilotfish.applications.executable",
    "ConnectionFailed": "pilotfish.errors",
    "ExecutableFailed": "pilotfish.applications.executable",
    "Executor": "pilotfish.api.executor",
    "ExecutorBroken": "pilotfish.api.executor",
    "LeftBehind": "pilotfish.api.executor",
    "PilotfishError": "pilotfish.errors",
    "Run": "pilotfish.api.run",
    "TaskFailed": "pilotfish.errors",
    "TaskFuture": "pilotfish.api.futures",
    "divide": "pilotfish.api.divisible",
    "iterate": "pilotfish.api.divisible",
}

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
