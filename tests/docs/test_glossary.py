"""Compares the glossary with exported names, commands and table columns, and keeps metaphors out of the documentation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

import pilotfish
from pilotfish.cli.main import pilotfish as command_group
from tests.docs.blocks import ROOT, pages
from tests.docs.prose import headings_of, prose_of
from tests.docs.test_generated import GENERATED

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
TERM = re.compile(r"\*\*([^*]+)\*\*")
WORD = re.compile(r"[A-Z]?[a-z]+")

# Ordinary English words. They need no entry.
EVERYDAY = set(
    """
    actual bad balance behind benchmark broken busy cause change completed cpu data dev directory done error failed file finish inside item
    left max meaning measured median name needed note parameter pilotfish predicted queued rate report running sent size sooner std storage
    no suitable time unfinished value version via vs waited waiting wall
    attach bench cancel completion demo divide doctor explain forget gc help iterate log pause predict replay rerun resume set simulate
    status stop tail whatif why at by from
    """.split()  # noqa: SIM905
)
# Metaphors and stand-ins for nouns. Use the word of the field: see the glossary.
BANNED = (
    r"whoever|whatever|whomever|somebody|anybody|of late|so many|so long|goes? home|sent home|comes? home|mend(s|ed|ing)?|cured?"
    r"|ended (well|badly)|is failed|under way|in its stead|dice|wallet|errands?|doorman|doormen|turnstile|porter|shelf|cargo|parcels?"
    r"|drawers?|courier|twins?|gangs?|moods?|reigns?|wish(es)?|vouch(es|ed)?|loans?|lends?|lent|salvage|molding"
)
BANNED_WORD = re.compile(rf"\b({BANNED})\b", re.IGNORECASE)
# Also banned in help texts: stand-ins for a noun or a plain verb.
BANNED_HELP = re.compile(rf"\b({BANNED}|that which|a person|its turn|told|heard|said|looked at|go(es)? on|imagined?)\b", re.IGNORECASE)


def glossary_terms() -> set[str]:
    found = TERM.findall(GLOSSARY.read_text())
    return {term.lower() for term in found} | {word for term in found for word in term.lower().split()}


def singular(word: str) -> str:
    return word.removesuffix("s") if word.endswith("s") and not word.endswith("ss") else word


def is_known(word: str) -> bool:
    return bool({word, singular(word)} & (EVERYDAY | glossary_terms()))


def column_titles() -> dict[str, str]:
    """Titles of table columns in the command line, and the file of each."""
    titles = {}
    for path in sorted((ROOT / "src" / "pilotfish" / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Column" and node.args and isinstance(node.args[0], ast.Constant):
                titles[str(node.args[0].value)] = path.name
    return titles


@pytest.mark.parametrize("name", sorted(set(pilotfish.__all__) - {"__version__"}))
def test_words_of_exported_names_are_in_the_glossary(name: str) -> None:
    unknown = [word for word in WORD.findall(name) if not is_known(word.lower())]
    assert not unknown, f"{name}: add {unknown} to docs/reference/glossary.md, or to EVERYDAY if it is an ordinary word"


@pytest.mark.parametrize("name", sorted(command_group.list_commands(click.Context(command_group))))
def test_words_of_commands_are_in_the_glossary(name: str) -> None:
    assert is_known(name), f"add {name!r} to docs/reference/glossary.md, or to EVERYDAY if it is an ordinary word"


def test_words_of_table_columns_are_in_the_glossary() -> None:
    titles = column_titles()
    assert len(titles) > 20, "columns are no longer found: see column_titles"
    words = {(word, title) for title in titles for word in re.findall(r"[a-z][a-z0-9-]*", title.lower())}
    unknown = {title: f"{word!r} in {titles[title]}" for word, title in sorted(words) if not is_known(word)}
    assert not unknown, f"add these to docs/reference/glossary.md, or to EVERYDAY if they are ordinary words: {unknown}"


def test_glossary_words_are_sorted_and_unique() -> None:
    for table in GLOSSARY.read_text().split("\n## ")[1:]:
        terms = [TERM.findall(line)[0].lower() for line in table.splitlines() if line.startswith("| **")]
        assert terms == sorted(set(terms))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_headings_have_no_metaphors(page: Path) -> None:
    for heading in headings_of(page):
        assert not BANNED_WORD.search(heading), f"{page}: {heading}"


def help_texts() -> dict[str, str]:
    """Texts of ``--help`` by command, including subcommands."""
    root = click.Context(command_group, info_name="pilotfish")
    texts = {"pilotfish": command_group.get_help(root)}
    for name in command_group.list_commands(root):
        command = command_group.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root)
        texts[name] = command.get_help(context)
        for part, subcommand in command.commands.items() if isinstance(command, click.Group) else ():
            texts[f"{name} {part}"] = subcommand.get_help(click.Context(subcommand, info_name=part, parent=context))
    return texts


@pytest.mark.parametrize(("command", "text"), help_texts().items(), ids=list(help_texts()))
def test_help_texts_have_no_metaphors(command: str, text: str) -> None:
    found = [match[0] for match in BANNED_HELP.finditer(" ".join(text.split()))]
    assert not found, f"pilotfish {command} --help: {found}"


def test_exported_names_have_no_metaphors() -> None:
    words = {name: " ".join(WORD.findall(name)) for name in pilotfish.__all__}
    assert not [name for name, text in words.items() if BANNED_WORD.search(text)]


HANDWRITTEN = [page for page in pages() if str(page.relative_to(ROOT)).removeprefix("docs/") not in GENERATED]


@pytest.mark.parametrize("page", HANDWRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_have_no_metaphors(page: Path) -> None:
    """Generated pages have the texts of the code; they are not checked here."""
    found = [match[0] for match in BANNED_WORD.finditer(prose_of(page))]
    assert not found, f"{page}: {found}"
