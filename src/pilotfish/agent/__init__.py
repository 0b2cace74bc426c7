"""The agent runs tasks on a node. It needs only the standard library of Python 3.8 or later, and imports only ``portable``."""

VERSION = "0.1.0"
