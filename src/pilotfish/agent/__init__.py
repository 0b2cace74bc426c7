"""The agent runs tasks on a node. It needs only Python 3.8 or later, its standard library, and ``pilotfish.portable``."""

VERSION = "0.1.0"
