"""Makes the policies that are more than the dispatcher with a matcher."""

from __future__ import annotations

from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import FirstComeMatcher, LocalityMatcher
from pilotfish.policies.speculation import Speculation, forecast
from pilotfish.policies.task_order import SubmissionOrder


def workqueue() -> Dispatcher:
    """Assigns tasks in the order of submission to the first free worker."""
    return Dispatcher(FirstComeMatcher(), order=SubmissionOrder())


def stealing() -> Dispatcher:
    """Lets idle workers copy tasks that run elsewhere, as soon as a copy is expected to end sooner."""
    return Dispatcher(LocalityMatcher(), Speculation(stealing=True, expects=forecast))
