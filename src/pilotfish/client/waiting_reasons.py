"""Decides whether it is useful to wait for tasks that do not run. The reasons why they do not run come from the master."""

from __future__ import annotations

from typing import Any

from pilotfish.client.master_client import MasterClient

HOPELESS = frozenset({"too-big", "too-few-nodes", "tags", "requirement", "python", "walltime"})
"""A task that waits for one of these reasons waits until the user changes something."""
SITES_AT_FAULT = frozenset({"no-site", "site-paused", "site-trouble", "batch-limit", "site-unused", "bootstrap"})
QUEUED = "pending"
STARTING = "starting"
MAY_CHANGE = SITES_AT_FAULT | {QUEUED, STARTING, "site-limit"}
"""Reasons that can end without an action of the user. Waiting is useful while at least one site has such a reason."""


def reason_codes(answer: dict[str, Any]) -> set[str]:
    """Returns the codes of all reasons in an answer to ``why``."""
    return {reason["code"] for reason in answer.get("reasons", ())}


def is_hopeless(master: MasterClient, answer: dict[str, Any]) -> bool:
    """Returns whether waiting is useless, because no worker or expected pilot can run the tasks. ``answer``: the answer of the master to
    ``why``."""
    codes = reason_codes(answer)
    return bool(codes & HOPELESS) and not codes & MAY_CHANGE and not _pilot_expected(master)


def _pilot_expected(master: MasterClient) -> bool:
    """Returns whether a pilot is requested or queued. Possibly its worker will be able to run the waiting tasks."""
    pilots = master.ask("status").get("pilots", ())
    return any(pilot["state"] in ("requested", "submitted") for pilot in pilots)
