"""The agent that is forked ahead of time."""

from __future__ import annotations

import os
import signal

from pilotfish.agent.local_start import ForkedAgent


def test_no_signal_is_sent_to_the_number_of_an_ended_agent() -> None:
    pid = os.fork()
    if not pid:
        os._exit(3)
    agent = ForkedAgent(pid)
    assert agent.wait() == 3
    agent.send_signal(signal.SIGTERM)
