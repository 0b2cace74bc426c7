"""Makes the line that replaces the missing part of an output."""

from __future__ import annotations

CAP, FULL_DISK, DIED, LOST = "cap", "disk", "died", "lost"
"""Reasons to leave out a part: the maximum size of the output, a disk without free space, the death of the process, a file that is gone."""
MARK_START = b"\n[pilotfish: "
WHOLE_AT = "; all of it: "
"""Text in the line before the path of the whole output."""
LOST_TEXT = ": the file with the whole output is gone"
_SUFFIXES = ("", "K", "M", "G", "T", "P")


def mark(left_out: int, whole: int, reason: str) -> bytes:
    """Returns the line that says that ``left_out`` of the ``whole`` bytes of an output are missing here."""
    if reason == FULL_DISK:
        why = ": the worker could not write it to its disk"
    elif reason == DIED:
        why = ": the process that wrote it died"
    elif reason == LOST:
        why = LOST_TEXT
    else:
        why = "; keep more with --max-output %s" % _enough(whole)
    return ("\n[pilotfish: %s left out here%s]\n" % (show_size(left_out), why)).encode()


def mark_of_file(left_out: int, path: str) -> bytes:
    """Returns the line for bytes that are missing here, but not in the pool. ``path``: the file in which the pool has the whole output."""
    return ("\n[pilotfish: %s left out here%s%s]\n" % (show_size(left_out), WHOLE_AT, path)).encode("utf-8", "surrogateescape")


def show_size(amount: float) -> str:
    """Returns a size as text, such as ``3.2 GB``."""
    for suffix in ("", "k", "M", "G", "T"):
        if amount < 1000:
            return "%.3g %sB" % (amount, suffix)
        amount /= 1000.0
    return "%.3g PB" % amount


def _enough(size: int) -> str:
    """Returns a size as a user types it: a power of two that is at least ``size``."""
    place, amount = 0, 1
    while amount << (10 * place) < size:
        amount *= 2
        if amount == 1024:
            place, amount = place + 1, 1
    return "%d%s" % (amount, _SUFFIXES[place])
