"""What nobody can mean about a site is refused before it is written down: a number too large for the journal would end every master."""

from __future__ import annotations

import pytest

from pilotfish.config import make_site
from pilotfish.errors import BadInput
from pilotfish.model import facts as f


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_pilots", 10**26),
        ("cores", 2**64),
        ("memory", "99999999999T"),
        ("submissions_per_minute", float("nan")),
        ("walltime", "1000000d"),
        ("walltime", "5s"),
        ("folder", "/"),
        ("nodes", 0),
        ("period", 0),
        ("max_queued", -1),
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_its_field_and_a_fix(key: str, value: object) -> None:
    with pytest.raises(BadInput) as problem:
        make_site("big", {"backend": "slurm", key: value}, "sites.toml")
    assert key in str(problem.value) and "big" in str(problem.value) and problem.value.hint


def test_the_largest_site_that_is_accepted_can_be_written_down() -> None:
    most = 1_000_000
    table = {"backend": "slurm", "max_pilots": most, "max_cores": most, "cores": most, "memory": 10**15, "walltime": "3650d"}
    site = make_site("big", table, "sites.toml")
    record = f.Record(0.0, [f.SiteDescribed("big", site)])
    assert f.decode_record(f.encode_record(record)) == record
