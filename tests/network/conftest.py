"""Fixtures for networks and pools that span them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.network.far_pool import MASTER, FarPool, far_pool
from tests.network.namespaces import network, what_is_missing

SpreadOut = Callable[..., FarPool]


@pytest.fixture
def spread_out(tmp_path: Path) -> Iterator[SpreadOut]:
    """Create a pool with an agent on each host: ``spread_out("a", "b", lease_s=3.0)``."""
    if missing := what_is_missing():
        pytest.skip(missing)
    with ExitStack() as stack:

        def make(*names: str, **settings: Any) -> FarPool:
            made = stack.enter_context(far_pool(tmp_path, stack.enter_context(network(MASTER, *names)), **settings))
            made.start(*names)
            return made

        yield make
