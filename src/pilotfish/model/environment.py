"""Removes from an environment the variables that look like secrets. Such a variable is passed on only if the user names it."""

from __future__ import annotations

import re
from collections.abc import Mapping

SECRET = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not SECRET.search(name)}
