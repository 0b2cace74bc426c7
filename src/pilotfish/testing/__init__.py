"""Exports contract suites for plug-in authors.

A suite is a class of tests. Derive from it in a module that pytest collects, under a name that begins with ``Test``, and say what is to be
tested: see docs/how-to/policy-plugin.md. pytest must be installed.
"""

from pilotfish.testing.application_suite import ApplicationContract
from pilotfish.testing.backend_suite import BackendContract, Samples
from pilotfish.testing.factory_suite import FactoryContract
from pilotfish.testing.policy_suite import PolicyContract

__all__ = ["ApplicationContract", "BackendContract", "FactoryContract", "PolicyContract", "Samples"]
