"""What travels to a node: the standard library of Python 3.8 and later is all it needs. It imports nothing else of Pilotfish."""

VERSION = "0.1.0"
