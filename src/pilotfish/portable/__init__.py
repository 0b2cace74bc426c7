"""Code that runs on nodes and on the master's machine: standard library only, Python 3.8+."""
