"""Real batch systems on this machine. Each lives in a directory of its own; the tests that use it start and stop it."""
