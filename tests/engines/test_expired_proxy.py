"""Tests expiring credentials at a real cluster behind ssh: pilots wait for a new one, and users are told how to get it."""

from __future__ import annotations

from typing import Any

from tests.engines import processes
from tests.engines.campus import Campus
from tests.engines.people import Person
from tests.engines.slurm import Slurm
from tests.support.certificates import make_certificate


def put_proxy(person: Person, ends_in_s: float) -> None:
    """Write the proxy as the user, on the login node."""
    made = person.run("sh", "-c", "cat >proxy.new && mv proxy.new proxy", stdin=make_certificate(-86400.0, ends_in_s))
    assert made.returncode == 0, made.stderr


def test_pilots_wait_for_a_proxy_that_has_ended(campus: Campus, slurm: Slurm, person: Person) -> None:
    put_proxy(person, -300.0)
    site = campus.add("pond", "slurm", slurm, cores=2, credentials=["x509:~/proxy"])
    renew = f"ssh -t {person.name}@pond voms-proxy-init -out ~/proxy"
    with campus.run("pond:1") as run:
        future = run.executable(["echo", "hello"])
        processes.wait_until(lambda: campus.row(site)["reason"]["commands"] == [renew], "what is in the way is known")
        assert "its X.509 proxy ~/proxy ended 5 min" in campus.row(site)["trouble"]
        why: dict[str, Any] = campus.ask("why", task=f"{run.id}.0")
        assert renew in [command for reason in why["reasons"] for command in reason["commands"]]
        assert [one["commands"] for one in campus.ask("status")["warnings"] if one["code"] == "credential"] == [[renew]]
        assert [pilot["job"] for pilot in campus.pilots(site)] == [""]
        put_proxy(person, 43200.0)
        assert future.result(timeout=processes.PATIENCE_S).text == "hello\n"
    (row,) = campus.row(site)["credentials"]
    assert row["usable"] and 0 < row["left_s"] <= 43200
    assert campus.row(site)["failures"] == {}
    (pilot,) = campus.pilots(site)
    assert pilot["job"]
