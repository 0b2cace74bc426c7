"""Decides from the reasons of the master whether it is useful to wait for tasks that do not run."""

from __future__ import annotations

from typing import Any

from pilotfish.client.master_client import MasterClient

HOPELESS = frozenset({"too-big", "too-few-nodes", "tags", "requirement", "python", "walltime"})
"""Reasons for waiting that end only if the user changes something."""
SITES_AT_FAULT = frozenset({"no-site", "site-paused", "site-trouble", "batch-limit", "site-unused", "bootstrap"})
QUEUED = "pending"
STARTING = "starting"
MAY_CHANGE = SITES_AT_FAULT | {QUEUED, STARTING, "site-limit"}
"""Reasons that may end without an action of the user. While one site has such a reason, waiting is useful, even if another site is
hopeless."""


def reason_codes(answer: dict[str, Any]) -> set[str]:
    """Returns the codes of all reasons in an answer to ``why``."""
    return {reason["code"] for reason in answer.get("reasons", ())}


def is_hopeless(master: MasterClient, answer: dict[str, Any]) -> bool:
    """Returns whether waiting is useless, because nothing can run the tasks. ``answer``: the answer of the master to ``why``."""
    codes = reason_codes(answer)
    return bool(codes & HOPELESS) and not codes & MAY_CHANGE and not _pilot_expected(master)


def _pilot_expected(master: MasterClient) -> bool:
    """Returns whether a pilot is requested or queued. The worker of this pilot may be able to run the waiting tasks."""
    pilots = master.ask("status").get("pilots", ())
    return any(pilot["state"] in ("requested", "submitted") for pilot in pilots)
