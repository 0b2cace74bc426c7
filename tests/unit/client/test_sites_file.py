"""sites.toml is changed where it must be, and nowhere else."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.client.sites_file import Table, show_value, statements, with_changes, with_table, without_table, write_site
from pilotfish.config import read_tables
from pilotfish.errors import BadInput

WRITTEN = """\
# My clusters.

# The big one.
[hpc]
backend = "slurm"   # 23.02
cores = 16          # half a node
setup = [
  "module load python",  # the new one
  "[not a header]",
]

[hpc.environment]
SLURM_CONF = "/etc/slurm.conf"

# The lab's.
[lab]
hosts = ["a", "b"]
backend = "ssh"
# the end
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    file = tmp_path / "sites.toml"
    file.write_text(WRITTEN)
    return file


def test_a_value_is_replaced_in_its_place_and_its_remark_stays(path: Path) -> None:
    write_site(path, "hpc", {**read_tables(path)["hpc"], "cores": 8})
    assert path.read_text() == WRITTEN.replace("cores = 16 ", "cores = 8 ")


def test_a_new_key_comes_below_the_last_one_of_its_table(path: Path) -> None:
    write_site(path, "hpc", {**read_tables(path)["hpc"], "paused": True})
    assert path.read_text() == WRITTEN.replace("]\n\n[hpc.env", "]\npaused = true\n\n[hpc.env")


def test_a_key_that_goes_over_several_lines_is_replaced_as_a_whole(path: Path) -> None:
    write_site(path, "hpc", {**read_tables(path)["hpc"], "setup": ["x"]})
    assert 'setup = ["x"]\n\n[hpc.environment]' in path.read_text()
    assert "not a header" not in path.read_text()


def test_a_part_in_a_table_of_its_own_is_written_anew(path: Path) -> None:
    write_site(path, "hpc", {**read_tables(path)["hpc"], "environment": {"SLURM_CONF": "/x", "A B": 'say "hi"'}})
    assert read_tables(path)["hpc"]["environment"] == {"SLURM_CONF": "/x", "A B": 'say "hi"'}
    assert "[hpc.environment]" not in path.read_text()
    assert path.read_text().endswith('[lab]\nhosts = ["a", "b"]\nbackend = "ssh"\n# the end\n')


def test_a_key_that_is_gone_is_left_out(path: Path) -> None:
    table = read_tables(path)["hpc"]
    del table["cores"]
    write_site(path, "hpc", table)
    assert path.read_text() == WRITTEN.replace("cores = 16          # half a node\n", "")


def test_a_removed_site_takes_its_comment_along_and_leaves_those_of_others(path: Path) -> None:
    write_site(path, "hpc", None)
    assert path.read_text() == "# My clusters.\n\n" + WRITTEN[WRITTEN.index("# The lab's.") :]
    write_site(path, "lab", None)
    assert path.read_text() == "# My clusters.\n\n"


def test_a_new_site_comes_last(path: Path) -> None:
    write_site(path, "a.b", {"backend": "sge"})
    assert path.read_text() == WRITTEN + '\n["a.b"]\nbackend = "sge"\n'
    assert with_table("", "x", {"backend": "sge"}) == '[x]\nbackend = "sge"\n'
    assert with_table("[y]", "x", {}) == "[y]\n\n[x]\n"


def test_only_its_owner_can_read_it_and_it_is_written_where_a_link_leads(path: Path) -> None:
    kept = path.with_name("elsewhere.toml")
    path.rename(kept)
    path.symlink_to(kept)
    write_site(path, "new", {"backend": "lsf"})
    assert path.is_symlink()
    assert "new" in read_tables(kept)
    assert stat.S_IMODE(os.stat(kept).st_mode) == 0o600


@pytest.mark.parametrize("text", ['hpc = { backend = "slurm" }\n', 'hpc.backend = "slurm"\n'])
def test_what_cannot_be_changed_in_its_place_is_not_changed(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(BadInput, match="written in a way that cannot be changed from here"):
        write_site(path, "hpc", {"backend": "slurm", "cores": 2})
    assert path.read_text() == text


def test_a_broken_file_is_told_and_left_alone(path: Path) -> None:
    path.write_text("[hpc\n")
    with pytest.raises(BadInput, match="not valid TOML"):
        write_site(path, "hpc", {"backend": "slurm"})
    assert path.read_text() == "[hpc\n"


def test_statements_are_all_of_the_text() -> None:
    assert "".join(one.text for one in statements(WRITTEN)) == WRITTEN


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(-(2**40), 2**40)
values = st.one_of(st.booleans(), numbers, words, st.lists(words, max_size=3), st.dictionaries(words, words, max_size=2))
tables: st.SearchStrategy[Table] = st.dictionaries(st.sampled_from(["a", "b", "c", "d e", "f.g", ""]), values, max_size=5)


@given(tables, tables, tables)
def test_what_is_written_is_read_again_and_others_are_untouched(other: Table, before: Table, after: Table) -> None:
    text = with_table(with_table(with_table("", "x", before), "other", other), "last", {})
    assert tomllib.loads(text) == {"x": before, "other": other, "last": {}}
    assert tomllib.loads(with_changes(text, "x", before, after)) == {"x": after, "other": other, "last": {}}
    assert tomllib.loads(without_table(text, "x")) == {"other": other, "last": {}}


@given(values)
def test_any_value_survives(value: Any) -> None:
    assert tomllib.loads(f"v = {show_value(value)}") == {"v": value}
