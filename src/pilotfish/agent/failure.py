"""Why an attempt did not succeed, as it travels: [cause, blame, message]."""

from __future__ import annotations

from typing import List

Failure = List[str]
