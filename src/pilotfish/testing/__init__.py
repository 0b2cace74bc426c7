"""Exports contract suites for plug-in authors.

A suite is a class of tests. To use a suite, derive your own class from it, in a module that pytest collects. The name of your class must
begin with ``Test``. In your class, set or override what the suite tests: see docs/how-to/policy-plugin.md. pytest must be installed.
"""

from pilotfish.testing.application_suite import ApplicationContract
from pilotfish.testing.backend_suite import BackendContract, Samples
from pilotfish.testing.factory_suite import FactoryContract
from pilotfish.testing.policy_suite import PolicyContract

__all__ = ["ApplicationContract", "BackendContract", "FactoryContract", "PolicyContract", "Samples"]
