"""Shows a changing text again and again."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

from pilotfish.cli.terminal.screen import Screen

INTERVAL_S = 2.0
"""Seconds until the text is shown again."""
CLEAR = "\x1b[H\x1b[J"
"""Text that moves the cursor to the first cell of the terminal and clears the screen."""


def watch_screen(show: Callable[[Screen], bool]) -> None:
    """Call ``show`` at intervals until it returns False or the user presses Ctrl-C. On a terminal, each text replaces the previous text."""
    screen = Screen.of()
    try:
        while True:
            text = io.StringIO()
            goes_on = show(Screen(text, screen.is_terminal, screen.coloured, screen.width))
            if screen.is_terminal:
                screen.stream.write(CLEAR)
            for line in text.getvalue().splitlines():
                screen.line(line)
            screen.stream.flush()
            if not goes_on:
                return
            time.sleep(INTERVAL_S)
    except KeyboardInterrupt:
        return
