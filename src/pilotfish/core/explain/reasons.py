"""Defines ``Reason``: why an object is in its state, and the commands that change this state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pilotfish.model.quantities import show_bytes
from pilotfish.model.task import MEMORY, UNIT


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. ``code`` is for programs, ``text`` is for users. ``commands``: what to type. ``data``: the values behind the text."""

    code: str
    text: str
    commands: tuple[str, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Returns the reason as a dict. If the reason has no data, the dict has no key ``data``."""
        row: dict[str, Any] = {"code": self.code, "text": self.text, "commands": list(self.commands)}
        return {**row, "data": self.data} if self.data else row


def make_reason(code: str, text: str, *commands: str) -> Reason:
    return Reason(code, text, commands)


def answer(subject: str, state: str, reasons: list[Reason], sentence: str = "") -> dict[str, Any]:
    """Returns the answer to ``why``: one sentence, then all reasons."""
    verb = state if state == "failed" else f"is {state}"
    sentence = sentence or f"{subject} {verb}" + (f": {reasons[0].text}" if reasons else "")
    return {"subject": subject, "state": state, "sentence": sentence, "reasons": [reason.row() for reason in reasons]}


def count(number: int, noun: str) -> str:
    """Returns a number with its noun: ``1 task``, ``2,000 tasks``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_amount(resource: str, amount: int) -> str:
    """Returns an amount with its resource: ``2 cores``, ``1 gpu``, ``4 GiB of memory``."""
    if resource == MEMORY:
        return f"{show_bytes(amount / UNIT)} of memory"
    return f"{amount / UNIT:g} {resource.removesuffix('s') if amount == UNIT else resource}"
