"""The agent: the program that runs tasks on a node.

It needs only the standard library of Python 3.8 or later. Of this package it imports only ``portable``.
"""

VERSION = "0.1.0"
