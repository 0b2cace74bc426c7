"""Tells which environment variables cannot change the result of a task."""

from __future__ import annotations

import re
from collections.abc import Mapping

SESSION_VARIABLE = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|PS[0-9]|PROMPT.*|HIST.*|LS_COLORS|LSCOLORS|LESS.*|PAGER|MANPATH|EDITOR|VISUAL|MAIL|BROWSER"
    r"|TERM|TERM_.*|COLORTERM|COLORFGBG|FORCE_COLOR|NO_COLOR|CLICOLOR.*|WINDOW|WINDOWID|WINDOWPATH|DISPLAY|WAYLAND_.*|XAUTHORITY|STY"
    r"|TMUX.*|SSH_.*|XDG_.*|DBUS_.*|SESSION_MANAGER|DESKTOP_.*|GDM.*|GNOME_.*|GTK_.*|GIO_.*|QT_.*|KDE_.*|KONSOLE_.*|VTE_.*|KITTY_.*"
    r"|WEZTERM_.*|ALACRITTY_.*|ITERM_.*|LC_TERMINAL.*|WT_.*|WSL.*|VSCODE_.*|JPY_.*|JUPYTER_.*|GIT_.*|GPG_.*|KRB5CCNAME|MOTD_.*"
    r"|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_.*|MEMORY_PRESSURE_.*|MANAGERPID|LISTEN_.*|PYTEST_.*|COVERAGE_.*|HOSTNAME|HOST|TMPDIR"
    r"|SLURM_.*|SLURMD_.*|PBS_.*|SGE_.*|LSB_.*|LSF_.*|FLUX_.*|OAR_.*|PILOTFISH_.*|PYTHONUNBUFFERED",
)
"""Variables that belong to one login, terminal or batch job. They differ from day to day, but do not change results."""


def stable_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that can change the result of a task. Leaves out variables of a login, terminal or batch job."""
    return {name: value for name, value in sorted(environment.items()) if not SESSION_VARIABLE.fullmatch(name)}
