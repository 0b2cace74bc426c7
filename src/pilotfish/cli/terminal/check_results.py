"""Prints the results of checks, and defines limits. ``doctor`` and ``doctor SITE`` use both."""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish.cli.terminal.screen import Screen, clean

GOOD, DOUBTFUL, BAD = "good", "doubtful", "bad"
MARKS = {GOOD: ("✓", "green"), DOUBTFUL: ("!", "yellow"), BAD: ("✗", "red")}
ASCII_MARKS = {GOOD: "ok", DOUBTFUL: "!!", BAD: "BAD"}
LOW_SPACE_BYTES = 1 << 30
"""If fewer bytes than this are free, the check of the disk gives a warning."""
MIN_SPACE_BYTES = 64 << 20
"""If fewer bytes than this are free, the check of the disk fails."""
MIN_INODES = 10_000
MIN_DESCRIPTORS = 1024
MIN_PROCESSES = 256


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    state: str
    text: str
    fix: str = ""

    def as_data(self) -> dict[str, str]:
        """Return the result as data for JSON. In JSON, the key of the fix is ``cure``."""
        return {"check": self.check, "state": self.state, "text": self.text, "cure": self.fix}


def judge_space(free: int | None, inodes: int | None) -> str:
    """Return the state of a disk with this many free bytes and inodes. None means unknown. A file system that does not count inodes reports
    0 inodes."""
    if free is not None and free < MIN_SPACE_BYTES:
        return BAD
    is_low = (free is not None and free < LOW_SPACE_BYTES) or (inodes is not None and 0 < inodes < MIN_INODES)
    return DOUBTFUL if is_low else GOOD


def show_check(screen: Screen, result: CheckResult) -> None:
    """Print the result. The fix follows on the next line."""
    mark, colour = MARKS[result.state]
    if not screen.is_utf8:
        mark = ASCII_MARKS[result.state]
    screen.line(f"{screen.paint(mark, colour)} {result.check}: {clean(result.text)}")
    if result.fix:
        screen.line(f"    fix: {clean(result.fix)}")
    screen.stream.flush()
