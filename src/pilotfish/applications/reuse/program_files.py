"""Finds the files on which a command depends: its programs and scripts, the user's own modules, and the packages of its interpreters.

Nothing is executed. A script or the word after ``sh -c`` is a text. Each text is split into words. If a word names a script, the text of
this script is searched, too. A file is not found if a program computes its name.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from glob import escape, glob
from itertools import islice

from pilotfish.applications.calls.import_statements import imports_in_source
from pilotfish.applications.calls.own_modules import modules_below, next_check

INTERPRETER = re.compile(r"(python|pypy|perl|ruby|Rscript|julia|node|lua|bash|dash|ksh|zsh|sh)[0-9.]*")
SCRIPT_SUFFIXES = (".py", ".sh", ".bash", ".pl", ".rb", ".R", ".r", ".jl", ".js", ".lua", ".m", ".awk", ".sed", ".tcl", ".gp", ".ipynb")
MAX_TEXT_BYTES = 1 << 18
"""Maximum number of bytes that are read from a script."""
MAX_FILES = 2000
"""Maximum number of files of one program."""
MAX_DIRECTORIES = 20
"""Maximum number of directories in which the files of a program are searched. Each ``cd`` can double their number."""
MAX_FIRST_LINES_BYTES = 512
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_SHELL = re.compile(r"(bash|dash|ksh|zsh|sh)[0-9.]*")
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_WRITTEN = re.compile(
    r"""'[^']*'|"[^"]*"|\(\(.*?\)\)|\[\[.*?\]\]|(?:[0-9]|&)?>[>|]?(?![&(])\s*((?:'[^']*'|"[^"]*"|[^\s;|&<>()'"])+)""", re.DOTALL
)
"""Matches a redirection of the shell to a file. The group is the name of the file. Also matches quoted texts, arithmetic and conditions,
because ``>`` is no redirection there. In these matches, the group is empty."""
_CODE_OPTION = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
_SEPARATORS = re.compile(r"(?:\$\w+|[\s'\"`;|&<>(){}\[\]=,:$@])+")
_FILE_NAME = re.compile(r"[\w.+-]*/[\w./+-]*\w|[\w+-]+(\.\w+)*\.[A-Za-z]\w*")
"""Matches a word that is probably the name of a file, because it has a directory or a suffix."""
MAX_NAMES = 200
"""Maximum number of file names that are read from a script in another language than the shell and Python."""
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_RUN_MODULE = re.compile(r"\s-m\s+([\w.]+)")
_CHANGE_DIRECTORY = re.compile(r"\bcd\s+['\"]?([^\s;|&'\"]+)")
_CHANGES_DIRECTORY = re.compile(r"\b(?:cd|pushd)\b")
_SEARCH_PATH_LINE = re.compile(r"^.*\bsys\.path\b.*$", re.MULTILINE)
_LITERAL = re.compile(r"['\"]([^'\"\n]+)['\"]")
_PLACE_OF_MODULE = re.compile(r"['\"]:\s*['\"](/[^'\"]+)['\"]")


@lru_cache(maxsize=256)
def _is_interpreter(program: str) -> bool:
    return INTERPRETER.fullmatch(os.path.basename(program)) is not None


def program_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Returns the program of a command, and all other words of the command that possibly name programs or scripts.

    The other words are needed because a program can start a second program: ``mpirun -n 4 ./sim``, ``env X=1 python -u sim.py``. The other
    words are: an executable file with a slash in its name, a word with the suffix of a script, and the first word after an interpreter that
    is not an option. This first word can be a script, the name of a module (``-m``) or the text of a script (``-c``).
    """
    words = [argv[0]]
    follows_interpreter = _is_interpreter(argv[0])
    for word in argv[1:]:
        may_be_script = follows_interpreter and word[:1] not in "-+"
        if may_be_script or word.endswith(SCRIPT_SUFFIXES) or ("/" in word and _is_executable(word)):
            words.append(word)
        follows_interpreter = _is_interpreter(word) or (follows_interpreter and not may_be_script)
    return tuple(words)


def _is_executable(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def _interpreter_of(path: str) -> str:
    """Returns the line of a script that names its interpreter, usually the first line. Returns an empty text for any other file."""
    try:
        with open(path, "rb") as file:
            first = file.read(MAX_FIRST_LINES_BYTES)
    except OSError:
        return ""
    if not first.startswith(b"#!"):
        return ""
    lines = first.split(b"\n")
    # The first line has a maximum length. For a long path, pip writes a shell script whose second line starts Python.
    return lines[len(lines) > 1 and lines[1].startswith(b"'''exec'")].decode(errors="replace")


def is_python_script(path: str) -> bool:
    return path.endswith(".py") or "python" in _interpreter_of(path)


def _is_shell_script(path: str) -> bool:
    return path.endswith((".sh", ".bash")) or any(map(_is_shell, _SEPARATORS.split(_interpreter_of(path).removeprefix("#!"))))


def _is_shell(word: str) -> bool:
    return _SHELL.fullmatch(os.path.basename(word)) is not None


def shell_texts(argv: Iterable[str]) -> Iterator[str]:
    """Yields those words of a command that are code for a shell, such as ``echo 1 > made.txt`` in ``sh -c 'echo 1 > made.txt'``."""
    option = ""
    for word in argv:
        if _is_shell(word):
            option = "-"
        elif option and word[:1] in ("-", "+"):
            option = option if _CODE_OPTION.fullmatch(option) else word
        elif not option.endswith("o"):  # the value of ``-o`` is no script
            if _CODE_OPTION.fullmatch(option):
                yield word
            option = ""


def written_files(argv: Iterable[str]) -> list[str]:
    """Returns the files to which shell code in a command redirects output, such as ``made.txt`` in ``sh -c 'echo 1 > made.txt'``. Leaves
    out shell code that changes the directory, because the directories of its files are not known."""
    texts = (text for text in shell_texts(argv) if not _CHANGES_DIRECTORY.search(text))
    return [name.strip("'\"") for text in texts for name in _WRITTEN.findall(text) if name]


def words_in(text: str, is_shell: bool = False) -> Iterable[str]:
    """Returns the words of a text that possibly name files, such as ``conf.json`` in ``--config=conf.json``. If the text is shell code,
    leaves out the files to which a redirection writes."""
    if is_shell and ">" in text:
        text = _WRITTEN.sub(lambda found: " " if found[1] else found[0], text)
    parts = _SEPARATORS.split(text)
    return parts if len(parts) == 1 else dict.fromkeys([text, *filter(None, parts)])


def is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


class KnownModules:
    """Remembers for a short time which of the user's own modules a program possibly imports. A search takes long, and many programs need
    the same search: in a sweep over the text of ``sh -c``, each task counts as a program of its own."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[float, dict[str, None]]] = {}
        """Maps the key of a search to the time of the next search, and to the files that the last search found."""

    def files(self, key: tuple[object, ...], search: Callable[[], Iterable[str]]) -> dict[str, None]:
        known, now = self._known.get(key), time.monotonic()
        if known is None or now >= known[0]:
            if len(self._known) >= MAX_FILES:
                self._known.clear()
            found = dict.fromkeys(search())
            known = self._known[key] = next_check(now), found
        return known[1]


class ProgramSearch:
    """Finds the files of a program. ``directory``: the current directory of its tasks. ``path``: directories of programs (PATH).
    ``python_path``: directories of Python modules, in addition to the directory of a script. ``modules``: the results of earlier searches
    for modules. The search gives these results:

    - ``found``: the programs, scripts and own modules.
    - ``libraries``: the directories in which the Python interpreters of the program have their installed packages.
    - ``commands``: other programs in PATH that the scripts name.
    - ``named``: other files that the scripts name. Tasks possibly read or write them.
    """

    def __init__(
        self, words: Sequence[str], directory: str, path: str | None, python_path: Sequence[str], modules: KnownModules | None = None
    ) -> None:
        self.found: dict[str, None] = {}
        self.libraries: dict[str, None] = {}
        self.commands: dict[str, None] = {}
        self.named: dict[str, None] = {}
        self._bases = {directory: None}
        self._path = path
        self._python_path = [os.path.join(directory, place) for place in python_path]
        self._scripts: list[str] = []
        self._imports: dict[str, None] = {}
        self._add_program(words[0])
        for word in words[1:]:
            if is_file(file := os.path.join(directory, word)):
                self._add_file(file)
            elif _MODULE.fullmatch(word):
                self._run_module(word)
            else:
                # ``words`` does not contain an interpreter that a program such as env starts. This interpreter is probably a shell.
                self._add_text(word, _is_shell(words[0]) or not _is_interpreter(words[0]))
        if self._scripts or self._imports:
            key = directory, *self._python_path, *map(tuple, (self._bases, self.libraries, self._scripts, self._imports))
            self.found.update((modules or KnownModules()).files(key, lambda: self._modules(directory)))

    def _add_program(self, word: str) -> None:
        program = os.path.join(next(iter(self._bases)), word) if "/" in word else shutil.which(word, path=self._path)
        if program is not None:
            self._add_file(program)
        if os.path.basename(word) in ("make", "gmake"):
            for name in MAKEFILES:
                if is_file(file := os.path.join(next(iter(self._bases)), name)):
                    self._add_file(file)
                    self._add_text(_read(file))

    def _add_file(self, file: str) -> None:
        if file in self.found or len(self.found) >= MAX_FILES:
            return
        self.found[file] = None
        if _PYTHON.fullmatch(os.path.basename(file)):
            self.libraries.update(dict.fromkeys(_libraries_of(file)))
        elif is_python_script(file):
            self._scripts.append(file)
            self._add_interpreter(_interpreter_of(file))
        elif _is_shell_script(file):
            self._bases[os.path.dirname(os.path.realpath(file))] = None
            self._add_text(_read(file))
        elif names := _names_in(file, _size_and_time(file)):
            self._bases[os.path.dirname(os.path.realpath(file))] = None
            self._add_names(names)

    def _add_interpreter(self, first_line: str) -> None:
        for word in _SEPARATORS.split(first_line.removeprefix("#!")):
            if _PYTHON.fullmatch(os.path.basename(word)):
                self._add_program(word)

    def _add_text(self, text: str, is_shell: bool = True) -> None:
        """Adds the files, programs and modules that the text of a script names. Searches the scripts among them, too."""
        for place in _CHANGE_DIRECTORY.findall(text):
            found = (os.path.join(base, place) for base in [*self._bases] if place.strip("./~$"))
            self._bases.update(dict.fromkeys(islice(found, max(0, MAX_DIRECTORIES - len(self._bases)))))
        for word in words_in(text, is_shell):
            others, file = self.named, self._find(word)
            if file is None:
                others, file = self.commands, _which(word, self._path)
            if file is None:
                continue
            if file.endswith(SCRIPT_SUFFIXES) or _interpreter_of(file) or _is_interpreter(word):
                self._add_file(file)
            else:
                others[file] = None
        for module in _RUN_MODULE.findall(text):
            self._run_module(module)
        if "import" in text:
            self._imports.update(dict.fromkeys(imports_in_source(text, "")))

    def _add_names(self, names: Iterable[str]) -> None:
        """Adds the files that a script in another language names. Searches the scripts among them, too."""
        for file in filter(None, map(self._find, names)):
            if file.endswith(SCRIPT_SUFFIXES) or _interpreter_of(file):
                self._add_file(file)
            else:
                self.named[file] = None

    def _find(self, word: str) -> str | None:
        # "$HERE/solve.py" becomes "/solve.py", so the word is also searched without its slash.
        names = (word, word[1:]) if word[:1] == "/" else (word,)
        return next((file for name in names if name for base in self._bases if is_file(file := os.path.join(base, name))), None)

    def _run_module(self, name: str) -> None:
        self._imports.update(dict.fromkeys(imports_in_source(f"import {name}, {name}.__main__", "")))

    def _modules(self, directory: str) -> Iterator[str]:
        """Yields the files of the user's own modules that the scripts and texts possibly import."""
        others = [*self._python_path, *(place for library in self.libraries for place in _editable_places(library))]
        for script in self._scripts:
            beside = os.path.dirname(os.path.realpath(script))
            search = [beside, *others, *_places_in_search_path(_read(script), (beside, directory))]
            yield from modules_below(*search).files_for_script(script)
        if self._imports:
            yield from modules_below(*self._bases, *others).files_of(list(self._imports))


@lru_cache(maxsize=1024)
def _names_in(file: str, version: object) -> tuple[str, ...]:
    """Returns the words in the text of a script that are probably names of files. ``version``: a value that changes with the file, because
    the answer is remembered: each task of a sweep over the text of ``sh -c`` counts as a new program."""
    text = _read(file)
    names = () if "\0" in text else filter(_FILE_NAME.fullmatch, words_in(text, is_shell=False))  # with \0, it is a compiled program
    return tuple(islice(names, MAX_NAMES))


def _size_and_time(file: str) -> tuple[int, int]:
    try:
        status = os.stat(file)
        return status.st_size, status.st_mtime_ns
    except OSError:
        return 0, 0


@lru_cache(maxsize=1024)
def _which(word: str, path: str | None) -> str | None:
    return shutil.which(word, path=path) if _MODULE.fullmatch(word.replace("-", "_")) or _is_interpreter(word) else None


def _read(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            return opened.read(MAX_TEXT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _places_in_search_path(text: str, bases: Iterable[str]) -> Iterator[str]:
    """Searches the lines of a script that contain ``sys.path``. Yields the directories that these lines name, such as ``src``."""
    for line in _SEARCH_PATH_LINE.findall(text):
        names = _LITERAL.findall(line)
        for name in (*names, "/".join(names), *([".."] if "parent" in line or "dirname" in line else [])):
            for base in bases:
                if os.path.isdir(place := os.path.normpath(os.path.join(base, name))):
                    yield place


@lru_cache(maxsize=64)
def _libraries_of(interpreter: str) -> tuple[str, ...]:
    """Returns the directories in which a Python interpreter has its installed packages. The interpreter is not started."""
    prefix = escape(os.path.dirname(os.path.dirname(interpreter)))
    places = [f"{prefix}/lib*/p*[0-9]*/*-packages", f"{prefix}/local/lib/python*/*-packages", f"{prefix}/lib/python3/dist-packages"]
    places.append(f"{escape(os.path.expanduser('~'))}/.local/lib/python*/site-packages")
    return tuple({os.path.realpath(place): None for pattern in places for place in sorted(glob(pattern))})


def packages_in(library: str) -> tuple[tuple[str, str], ...]:
    """Returns the names and versions of the packages that are installed in a directory."""
    try:
        return _packages_in(library, os.stat(library).st_mtime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=64)
def _packages_in(library: str, _changed_at: int) -> tuple[tuple[str, str], ...]:
    names = (name.rpartition(".") for name in sorted(os.listdir(library)) if name.endswith((".dist-info", ".egg-info", ".egg-link")))
    parted = (name.partition("-") for name, _, _ in names)
    return tuple((name, version) for name, _, version in parted)


def _editable_places(library: str) -> list[str]:
    """Returns the directories of editable installations. Files in ``library``, a directory of installed packages, name them."""
    places: dict[str, None] = {}
    for file in glob(f"{escape(library)}/*.pth"):
        places.update(dict.fromkeys(line.strip() for line in _read(file).splitlines() if not line.startswith(("import", "#"))))
    for file in glob(f"{escape(library)}/__editable__*finder.py"):
        places.update(dict.fromkeys(os.path.dirname(place) for place in _PLACE_OF_MODULE.findall(_read(file))))
    return [place for name in places if name and os.path.isdir(place := os.path.join(library, name))]
