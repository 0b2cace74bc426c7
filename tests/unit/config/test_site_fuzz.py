"""Whatever stands in ``sites.toml``: a site is accepted, and then every backend can make its commands of it, or it is refused in words."""

from __future__ import annotations

import tomllib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish import plugins
from pilotfish.backends.interface import PilotBatch
from pilotfish.cli.site_commands.site_keys import apply_changes, as_data, shown
from pilotfish.client.sites_file import with_table
from pilotfish.config import SITE_KEYS, make_site, parse_toml
from pilotfish.errors import BadInput
from pilotfish.model import facts as f
from pilotfish.model.backend_traits import ANY_OPTIONS
from pilotfish.model.site import PilotSize, Site

EXAMPLES = (
    "",
    "auto",
    "tunnel",
    "1h",
    "8G",
    "1:2:3",
    "a=b",
    "x509:",
    "~/x",
    "/tmp/x",
    "-x",
    "me@host",
    "{}",
    "1000",
    "https://e",
    "no",
    "\n",
)
OPTIONS = sorted({*ANY_OPTIONS, *(name for backend in plugins.names("backends") for name in plugins.traits(backend).options)})

texts = st.sampled_from(EXAMPLES) | st.text(max_size=20)
numbers = st.integers() | st.integers(0, 20) | st.floats() | st.sampled_from([2**63, 10**400])
moments = st.sampled_from([datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1)])
names = st.sampled_from(["A", "site", "x.y", *OPTIONS]) | st.text(max_size=5)
values = st.recursive(
    texts | numbers | st.booleans() | moments, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)
)
likely = texts | numbers | st.booleans() | st.lists(texts, max_size=3) | st.dictionaries(names, texts, max_size=3)
keys = st.sampled_from(SITE_KEYS) | st.text(max_size=5)
tables = st.dictionaries(keys, likely | values, max_size=4)


def accepted(table: Any, name: str = "x") -> Site | None:
    try:
        return make_site(name, table, "sites.toml")
    except BadInput as problem:
        message = str(problem)
        assert len(message) < 400 and "\n" not in message and problem.hint
        return None


def use(site: Site) -> None:
    """All that is made of a site later on."""
    size = PilotSize(float(site.cores or 1), site.nodes, site.walltime_s, site.memory, float(site.gpus))
    backend = plugins.load("backends", site.backend)()
    backend.submit(site, PilotBatch("pf-1", 1, size, "/home/me/pf-1", "/home/me/agent.pyz", site.hosts[0] if site.hosts else ""))
    backend.find(site, "pf-1")
    assert shown(site) and as_data("x", site)
    record = f.TurnRecord(0.0, [f.SiteDescribed("x", site)])
    assert f.decode_record(f.encode_record(record)) == record


def test_of_each_kind_of_site_it_is_known_how_it_is_spoken_to() -> None:
    kinds = {name: plugins.traits(name) for name in plugins.names("backends")}
    assert [name for name, kind in kinds.items() if not kind.programs or not kind.harmless_word] == []


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(plugins.names("backends")), tables)
def test_any_table_is_accepted_and_can_be_used_or_is_refused_in_words(backend: str, table: dict[str, Any]) -> None:
    needed = {name: {"image": "i", "endpoint": "https://e"}[name] for name in plugins.traits(backend).needs}
    options = table.get("options", {})
    site = accepted({"backend": backend, **table, "options": {**needed, **options} if isinstance(options, dict) else options})
    if site is not None:
        use(site)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SITE_KEYS), likely | values)
def test_any_value_of_any_key_is_accepted_or_refused_in_words(key: str, value: Any) -> None:
    site = accepted({"backend": "slurm", key: value})
    if site is not None:
        use(site)


@settings(deadline=None)
@given(texts, values)
def test_whatever_is_no_table_is_no_site(name: str, value: Any) -> None:
    accepted(value, name)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SITE_KEYS), texts | st.sampled_from(["[" * 5000, "{", "[1]", "9" * 5000, "9" * 400 + ":1:1", "nan", "inf", "²"]))
def test_whatever_is_typed_is_understood_or_refused_in_words(key: str, text: str) -> None:
    try:
        table = apply_changes("x", {"backend": "slurm"}, [f"{key}={text}"])
    except BadInput as problem:
        assert problem.hint
        return
    site = accepted(table)
    if site is not None:
        assert tomllib.loads(with_table("", "x", table)) == {"x": table}
        use(site)


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("[]{}=.'\"\n#ax0e-", max_size=60))
def test_any_text_is_toml_or_refused_in_words(text: str) -> None:
    try:
        parsed = parse_toml(Path("sites.toml"), text)
    except BadInput as problem:
        assert problem.hint
        return
    for name, table in parsed.items():
        accepted(table, name)
