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


def test_quoted_operators_are_arguments(tmp_path: Path) -> None:
    (task,) = read(tmp_path, """grep '>' "|" \\; \\>x 'a;' x='a&b' x\\<2 "a->b" 'it''s >' # > comment\n""")
    assert task.argv == ("grep", ">", "|", ";", ">x", "a;", "x=a&b", "x<2", "a->b", "its >")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo run#3 --seed 5", ("echo", "run#3", "--seed", "5")),
        ("echo {#} a# b  # c#", ("echo", "{#}", "a#", "b")),
        ("echo ''#a \\#b '#c' \\ #d", ("echo", "#a", "#b", "#c", " #d")),
        ("echo a\t#b 'c", ("echo", "a")),
    ],
)
def test_a_comment_begins_only_at_the_start_of_a_word(tmp_path: Path, line: str, words: tuple[str, ...]) -> None:
    (task,) = read(tmp_path, f"{line}\n")
    assert task.argv == words


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
        ("./sim 1 > out.txt", "'>' would be an argument", "sh -c './sim 1 > out.txt'"),
        ("./sim 1 2>&1  # noise", "'2>&1' would be an argument", "sh -c './sim 1 2>&1'"),
        ("./sim <in.txt", "'<in.txt' would be an argument", "sh -c './sim <in.txt'"),
        ("cost=3 id=a  cat 'a b' | wc", "'|' would be an argument", """cost=3 id=a sh -c 'cat '"'"'a b'"'"' | wc'"""),
        ("cd a && ./sim", "'&&' would be an argument", "sh -c 'cd a && ./sim'"),
        ("-- echo a; echo b", "';' would be an argument", "sh -c 'echo a; echo b'"),
        ("./sim &", "'&' would be an argument", "quote it: '&'"),
        ("echo hi 1&", "'&' would be an argument", "quote it: '1&'"),
        ("echo a>f", "'>f' would be an argument", "sh -c 'echo a>f'"),
        ("echo 'a b'|wc # c", "'|' would be an argument", "quote it: 'a b|wc'"),
        ("echo a#;b", "';' would be an argument", "sh -c 'echo a#;b'"),
        ("out=a;b ./sim", "';' would be an argument", "Quote it: 'out=a;b'"),
        ("./sim# 'open", "no closing quotation", "Close the quote"),
        ("./sim \\", "no escaped character", "cannot continue on the next line"),
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
