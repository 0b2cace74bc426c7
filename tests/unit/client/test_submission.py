"""Tests what a client sends of a run, without a master."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.client.submission import Submission
from pilotfish.errors import BadInput
from pilotfish.model.task import RunOptions, TaskSpec


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ({"cwd": "/home", "inputs": [["mesh", "directory"], ["bad\udcff", 0o644]]}, r"inputs: 'bad\udcff' is not UTF-8"),
        ({"cwd": "/home", "env": {"A": "\udcff"}}, r"env: '\udcff' is not UTF-8"),
        ({"cwd": "/home\udcff"}, r"cwd: '/home\udcff' is not UTF-8"),
    ],
)
def test_a_text_that_is_not_utf8_is_refused_with_the_name_of_its_option(launch: dict[str, Any], said: str) -> None:
    submission = Submission("uid", RunOptions(), True)
    with pytest.raises(BadInput) as problem:
        submission.spec_number(TaskSpec("exec", "ls", launch=launch), b"")
    assert str(problem.value) == said
