"""The causes of failures, which are shown in brackets: what ``pilotfish explain`` says of each."""

from __future__ import annotations

CAUSES: dict[str, str] = {
    "cancelled": "Somebody cancelled it, or its run gave up after too many failures.",
    "crash": "The process of a Python call died, perhaps inside a native library.",
    "damaged": "What it was to do stood in a damaged part of the journal.",
    "dependency": "A task that it comes after has failed.",
    "disk": "The disk of its worker is full or broken, and so were those of the others where it was tried.",
    "exception": "A Python call raised an exception.",
    "exit": "The program ended with an exit status other than 0.",
    "killed": "Something outside killed it.",
    "missing-input": "An input could not be had: it was changed or removed since, or nobody who is here has it.",
    "missing-output": "What was named as an output was not there when the task had ended, or is neither a regular file nor a directory.",
    "no-directory": "The node does not have the directory in which the task was to run.",
    "oom": "It took more memory than it had asked for.",
    "poison": "Each worker that began it died.",
    "result": "Its result could not be brought: it cannot be pickled, is too large, or its files could not be kept.",
    "signal": "The program was ended by a signal.",
    "slot-lost": "The process on the worker in which it ran was killed from outside.",
    "spawn": "The program could not be started.",
    "time": "It took longer than its time limit.",
    "unknown": "Nothing is known of the cause.",
    "unpickle": "The worker cannot import what the function or its arguments refer to.",
    "version": "The Python of the worker is not the one from which the call came.",
    "worker-lost": "Its worker was lost, as often as its losses allow.",
}
WHAT_HELPS = ("pilotfish why TASK", "pilotfish logs TASK")
