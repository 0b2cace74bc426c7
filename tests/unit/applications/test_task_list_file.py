"""Task list files: one task per line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.applications.sweeps.task_list_file import ListedTask, read_task_file
from pilotfish.errors import BadInput


def read(tmp_path: Path, content: str) -> list[ListedTask]:
    path = tmp_path / "tasks.txt"
    path.write_text(content)
    return list(read_task_file(str(path)))


def test_a_line_is_a_program_with_arguments_and_optional_fields(tmp_path: Path) -> None:
    tasks = read(
        tmp_path,
        """
        # a comment
        ./sim --seed 1
        in=a.txt,b.txt out='*.log' cost=2.5  ./merge "a b" c\\ d   # the rest
        -- a=b in=x
        ./sim --mode=fast x=1
        """,
    )
    assert tasks == [
        ListedTask(("./sim", "--seed", "1")),
        ListedTask(("./merge", "a b", "c d"), ("a.txt", "b.txt"), ("*.log",), 2.5),
        ListedTask(("a=b", "in=x")),
        ListedTask(("./sim", "--mode=fast", "x=1")),
    ]


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("cots=2 ./sim", "unknown field 'cots'", "Did you mean 'cost'?"),
        ("THREADS=2 ./sim", "unknown field 'THREADS'", "env THREADS=2"),
        ("in=a in=b ./sim", "in= is given twice", "in=first,second"),
        ("in=a", "no program", "after the fields"),
        ("./sim in=a", "'in=a' comes after the program", "before the program"),
        ("in=a,,b ./sim", "empty file name", "single commas"),
        ("cost=fast ./sim", "cost=fast is not a number from 1e-06", "cost=2.5"),
        ("cost=-1 ./sim", "cost=-1 is not a number from 1e-06", "cost=2.5"),
        ("cost=nan ./sim", "cost=nan is not a number from 1e-06", "cost=2.5"),
        ("./sim 'open", "no closing quotation", "Close the quote"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_the_fix(tmp_path: Path, line: str, said: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(tmp_path, f"./good\n{line}\n")
    assert "tasks.txt, line 2" in str(refused.value)
    assert said in str(refused.value)
    assert hint in refused.value.hint


def test_a_list_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no tasks"):
        read(tmp_path, "# nothing\n\n")


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_task_file(str(tmp_path / "none"))
