"""Finds scripts in a command. A script is an argument that an interpreter runs as code, such as ``echo {}`` in ``sh -c 'echo {}'``.

If a value replaces a placeholder in a script, the interpreter can run the value as code: the value ``; rm -rf x`` would remove files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

NEVER = "(?!)"
R_FLAG = "-[qsv]|--(?!gui|debugger).*"
"""Options of R: see ``flag``."""
SHELL_RECIPE = """sh -c '... "$1" ...' sh {}"""


class Interpreter(NamedTuple):
    """A program that takes code as an argument. All texts except ``recipe`` are regular expressions for whole words."""

    names: str
    code_option: str
    """Matches the option before the code. If the code is in the same word, as in ``-c'print(1)'``, a group of the match contains the code.
    An empty expression means that the first argument is code, as in ``awk '{ print }'``."""
    flag: str
    """Matches options after which the next word is not their value. ``--option=value`` is such an option for every interpreter. After any
    other option, the next word is possibly its value."""
    recipe: str
    """A hint how to pass a value as an argument and not in the code."""
    value_option: str = NEVER
    """Matches options whose value is always the next word."""
    last_option: str = "--"
    """Matches the last option: there is no code after it."""
    code_is_argument: bool = False
    """Whether more options can stand between the code option and the code, as in ``sh -c -e 'echo'``. If False, the code is the word
    directly after the code option."""
    code_is_last: bool = True
    """Whether all words after the code are arguments. If False, more code can follow, as in ``perl -e 'a' -e 'b'``."""
    operands: int = 0
    """Maximum number of arguments before the code option, such as the file in ``flock FILE -c 'echo'``."""


def _short(flags: str, letters: str, long: str = "--eval|--print") -> tuple[str, str]:
    """Returns the regular expressions ``code_option`` and ``flag`` of an interpreter with options of one letter. ``letters``: the options
    for code. ``flags``: the options without a value, which can come before a code option in the same word, as in ``perl -lne``. After any
    other letter, the rest of the word is a value, as in ``perl -Ilib``. ``long``: the long options for code."""
    return f"-[{flags}]*[{letters}](.*)|(?:{long})(?:=(.*))?", f"-[{flags}]*|-[{flags}]*(?![{flags}])[A-Za-z].+"


_RUN_WITH = "pilotfish run --env X={} -- "
INTERPRETERS = (
    Interpreter(
        "(?:a|ba|da|k|mk|z|c|tc|fi)?sh",
        "-[A-Za-z]*c[A-Za-z]*()|--command(?:=(.*))?",
        "[-+][A-NP-Za-np-z]*|--",
        SHELL_RECIPE,
        last_option=NEVER,
        code_is_argument=True,
    ),
    Interpreter(
        "i?python|pypy",
        *_short("bBdEhiIOPqsSuvVx", "c"),
        "python -c 'import sys; ... sys.argv[1] ...' {}",
        last_option="-[bBdEhiIOPqsSuvVx]*m.*",
    ),
    Interpreter("perl", *_short("0-9acfgilnpsStTuUvwWX", "eE"), "perl -e '... $ARGV[0] ...' {}", code_is_last=False),
    Interpreter("ruby", *_short("acdhlnpsSUvwyi", "e"), "ruby -e '... ARGV[0] ...' {}", code_is_last=False),
    Interpreter("node", "-[a-z]?[ep]()|--(?:eval|print)(?:=(.*))?", "-[ihv]", "node -e '... process.argv[1] ...' {}", code_is_last=False),
    Interpreter("julia", *_short("vhqi", "eE"), "julia -e '... ARGS[1] ...' {}", code_is_last=False),
    Interpreter("Rscript", "-e(.*)", R_FLAG, "Rscript -e '... commandArgs(TRUE)[1] ...' {}", code_is_last=False),
    Interpreter("R", "-e(.*)", R_FLAG, "R -e '... commandArgs(TRUE)[1] ...' --args {}", last_option="--args", code_is_last=False),
    Interpreter("php", *_short("nqC", "rRBE", "--run"), "php -r '... $argv[1] ...' -- {}", code_is_last=False),
    Interpreter(
        "octave(?:-cli)?", "--eval(?:=(.*))?", "-[qfHWi]*", _RUN_WITH + """octave --eval '... getenv("X") ...'""", code_is_last=False
    ),
    Interpreter("matlab", "-(?:r|batch)()", "-no.*", _RUN_WITH + """matlab -batch '... getenv("X") ...'"""),
    Interpreter("gnuplot", "-e()", "-[pd]|-persist", _RUN_WITH + """gnuplot -e '... system("echo $X") ...'""", code_is_last=False),
    Interpreter(
        "[gmn]?awk",
        "",
        "-[vF].+|--",
        "awk -v x={} '...'",
        value_option="-[vF]",
        last_option="-f.*|--file.*",
        code_is_argument=True,
    ),
    Interpreter("su|runuser", *_short("flmpP", "c", "--(?:session-)?command"), _RUN_WITH + """su -c '... "$X" ...' USER""", operands=1),
    Interpreter("flock", *_short("eFnosuvx", "c", "--command"), "flock FILE PROGRAM {}", operands=1),
    Interpreter("script", *_short("aefq", "c", "--command"), _RUN_WITH + """script -qc '... "$X" ...'""", operands=1),
    Interpreter("env", *_short("0iv", "S", "--split-string"), "env NAME=VALUE PROGRAM {}"),
)
ANY_INTERPRETER = Interpreter(
    ".*[{].*",
    "-[A-Za-z]{0,3}[ceE]()|--(?:eval|print|command)(?:=(.*))?",
    "-[A-Za-z]{0,3}[ceE]",
    SHELL_RECIPE,
    last_option=NEVER,
    code_is_argument=True,
    code_is_last=False,
)
"""A program whose name contains a placeholder. It counts as an interpreter, because a value can be the name of an interpreter."""
STARTERS = frozenset(("env", "exec", "flock", "mpiexec", "mpirun", "nice", "nohup", "setsid", "srun", "stdbuf", "time", "timeout", "xargs"))
"""Programs that start a second program. Their arguments name the second program."""
COMMON_WORDS = frozenset(("R", "env", "flock", "node", "script", "su"))
"""Interpreters whose names are also common words. Such a word counts as an interpreter only where a program is expected."""


def script_arguments(command: Sequence[str]) -> dict[int, str]:
    """Finds the scripts in a command. Maps the position of each script to a text that says how to pass a value to the script as an
    argument."""
    found: dict[int, str] = {}
    starts = os.path.basename(command[0]) in STARTERS if command else False
    for place, word in enumerate(command):
        name = os.path.basename(word).rstrip("0123456789.")
        interpreter = next((one for one in INTERPRETERS if re.fullmatch(one.names, name)), None)
        may_be_program = starts or place == 0
        if interpreter is None and "{" in name and may_be_program:
            interpreter = ANY_INTERPRETER
        if interpreter is not None and name in COMMON_WORDS and not may_be_program:
            continue
        if interpreter is not None:
            found |= dict.fromkeys(_scripts_after(command, place, interpreter), interpreter.recipe)
    return found


def _scripts_after(command: Sequence[str], place: int, interpreter: Interpreter) -> Iterator[int]:
    """Yields the positions of the scripts of the interpreter at ``place``."""
    code_follows, may_be_value, operands = not interpreter.code_option, False, interpreter.operands
    words = iter(range(place + 1, len(command)))
    for index in words:
        word = command[index]
        is_option = word[:1] in ("-", "+")
        if code_follows and not (is_option and interpreter.code_is_argument):
            yield index
            if interpreter.code_is_last and not may_be_value:
                return
            code_follows, may_be_value = may_be_value, False
        elif not is_option:
            operands -= not may_be_value
            may_be_value = False
            if operands < 0:
                return
        elif re.fullmatch(interpreter.last_option, word):
            return
        else:
            match = re.fullmatch(interpreter.code_option, word, re.DOTALL) if interpreter.code_option else None
            if match and any(match.groups()):
                yield index
                if interpreter.code_is_last:
                    return
            elif match:
                code_follows = True
            is_flag = re.fullmatch(f"{interpreter.flag}|--.*=.*", word, re.DOTALL) is not None
            may_be_value = (match is None or interpreter.code_is_argument) and not is_flag
            if re.fullmatch(interpreter.value_option, word):
                may_be_value = False
                next(words, None)
