"""Contains the code that runs both on nodes and on the master's machine. It uses only the standard library of Python 3.8 or later."""
