"""Real batch systems on this machine, for tests: each below a directory of its own, started and stopped by the tests that use it."""
