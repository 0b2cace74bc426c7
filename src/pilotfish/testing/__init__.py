"""Exports contract suites for plug-in authors.

A suite is a class of tests. Derive a class whose name begins with ``Test`` in a module that pytest collects, and set what it tests: see
docs/how-to/policy-plugin.md. pytest must be installed.
"""

from pilotfish.testing.application_suite import ApplicationContract
from pilotfish.testing.backend_suite import BackendContract, Samples
from pilotfish.testing.factory_suite import FactoryContract
from pilotfish.testing.policy_suite import PolicyContract

__all__ = ["ApplicationContract", "BackendContract", "FactoryContract", "PolicyContract", "Samples"]
