"""Reads headings and sentences of documentation pages, without code blocks and inline code."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.blocks import FENCE

HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`\n]*`")
LINK_TARGET = re.compile(r"\]\([^)]*\)")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def prose_of(page: Path) -> str:
    text = COMMENT.sub("", FENCE.sub("", page.read_text()))
    return LINK_TARGET.sub("]", INLINE_CODE.sub("", text))


def headings_of(page: Path) -> list[str]:
    return HEADING.findall(FENCE.sub("", page.read_text()))
