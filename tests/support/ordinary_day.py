"""Lives one ordinary day of a user: run, edit, break, look, fix, rerun, leave, come back and resume, in two projects at once."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.integration.terminal import Said, Typist

STUDY = """
import sys
import model
from pilotfish import Run
with Run("study of {name}", resume="--resume" in sys.argv, sites={sites!r}) as run:
    print(*[future.result() for future in [run.submit(model.area, side) for side in range(3)]])
"""
MODEL = """
def area(side):
    with open({log!r}, "a") as log:
        log.write(f"{{side}}\\n")
    return {factor} * side
"""
SIMULATION = """#!/bin/sh
echo "$1" >> {log}
while test -e {gate}; do sleep 0.05; done
test "$(cat limit.txt)" -ge "$1" || {{ echo "seed $1 is above the limit" >&2; exit 3; }}
echo "{word} $1" > out.txt
"""
READ_LATER = "import pilotfish; print(*pilotfish.Run.find('study of second').results())"


class Project:
    """A directory with a study in Python and a simulation. Each task writes a line to the log."""

    def __init__(self, typist: Typist, name: str, factor: int, sites: tuple[str, ...]) -> None:
        self.directory = typist.directory / name
        self.directory.mkdir()
        self.person = typist.at(self.directory)
        self.log, self.gate = self.directory / "log", self.directory / "gate"
        self._seen = 0
        self._sites = [word for site in sites for word in ("--site", site)]
        (self.directory / "study.py").write_text(STUDY.format(name=name, sites=sites))
        self.edit_model(factor)
        self.edit_simulation("first", limit=10)

    def edit_model(self, factor: int) -> None:
        (self.directory / "model.py").write_text(MODEL.format(log=str(self.log), factor=factor))

    def edit_simulation(self, word: str, limit: int) -> None:
        (self.directory / "sim.sh").write_text(SIMULATION.format(log=self.log, gate=self.gate, word=word))
        (self.directory / "sim.sh").chmod(0o755)
        (self.directory / "limit.txt").write_text(f"{limit}\n")

    def study(self, *words: str) -> str:
        # -B: two edits within a second that keep the size of a module leave its cached bytecode valid for Python.
        said = self.person.run(sys.executable, "-B", "study.py", *words)
        assert said.status == 0, said
        return said.out.strip()

    def sweep(self, *options: str, seeds: str = "1..4") -> Said:
        return self.person.type("run", *options, *self.words(seeds))

    def words(self, seeds: str, into: str = "results") -> list[str]:
        files = ["--input", "limit.txt", "--output", f"out.txt={into}/{{seed}}.txt"]
        return [*self._sites, *files, "--param", f"seed={seeds}", "--", "./sim.sh", "{seed}"]

    def ran(self) -> list[str]:
        """Returns which tasks have begun since the last call."""
        lines = self.log.read_text().split() if self.log.exists() else []
        new, self._seen = sorted(lines[self._seen :]), len(lines)
        return new

    def files(self, into: str = "results") -> dict[str, str]:
        return {path.name: path.read_text().strip() for path in sorted((self.directory / into).iterdir())}


def live_one_day(typist: Typist, *sites: str) -> None:
    first, second = Project(typist, "first", 2, sites), Project(typist, "second", 5, sites)
    edit_a_module_in_two_projects(first, second)
    fail_fix_and_rerun(second)
    leave_and_come_back(second)
    read_values_later(typist)
    resume(first, second)


def edit_a_module_in_two_projects(first: Project, second: Project) -> None:
    with ThreadPoolExecutor(2) as both:
        assert list(both.map(Project.study, (first, second))) == ["0 2 4", "0 5 10"]
    first.edit_model(3)
    assert first.study() == "0 3 6"
    assert first.ran() == ["0", "0", "1", "1", "2", "2"] and second.ran() == ["0", "1", "2"]


def fail_fix_and_rerun(project: Project) -> None:
    project.edit_simulation("broken", limit=2)
    said = project.sweep("--name", "day")
    assert said.status == 1 and "2 done, 2 failed" in said.out and "seed 3 is above the limit" in said.out, said
    assert "seed 4 is above the limit" in project.person.type("logs", "day.3").err
    assert project.files() == {"1.txt": "broken 1", "2.txt": "broken 2"}
    project.ran()
    project.edit_simulation("fixed", limit=10)
    said = project.person.type("rerun", "day")
    assert said.status == 0 and "Changed since the last try: " in said.out and "limit.txt" in said.out and "sim.sh" in said.out, said
    assert project.ran() == ["3", "4"]
    assert project.files() == {"1.txt": "broken 1", "2.txt": "broken 2", "3.txt": "fixed 3", "4.txt": "fixed 4"}
    rows = json.loads(project.person.type("results", "day", "--json").out)
    assert [(row["state"], row["attempt"]) for row in rows] == [("done", 1), ("done", 1), ("done", 2), ("done", 2)]


def leave_and_come_back(project: Project) -> None:
    project.gate.touch()
    terminal = project.person.sit_down("run", "--name", "night", *project.words("5..7", "nights"))
    terminal.wait_for(" running")
    terminal.press_ctrl_c()
    status, seen = terminal.finish()
    assert status == 0 and "The work goes on" in seen, seen
    project.gate.unlink()
    said = project.person.type("attach", "night")
    assert said.status == 0 and "3 done" in said.out, said
    assert project.files("nights") == {"5.txt": "fixed 5", "6.txt": "fixed 6", "7.txt": "fixed 7"}
    project.ran()


def read_values_later(typist: Typist) -> None:
    said = typist.run(sys.executable, "-c", READ_LATER)
    assert said == Said(0, "0 5 10\n", "")


def resume(first: Project, second: Project) -> None:
    assert first.study("--resume") == "0 3 6"
    first.ran()  # the calls before were not made with resume
    assert (first.study("--resume"), first.ran()) == ("0 3 6", [])
    first.edit_model(4)
    assert (first.study("--resume"), first.ran()) == ("0 4 8", ["0", "1", "2"])
    said = second.sweep("--resume", "--name", "again")
    assert said.status == 0, said
    assert second.ran() == ["1", "2"], "the program of these tasks was edited since; the others were rerun with the edited program"
    assert set(second.files().values()) == {"fixed 1", "fixed 2", "fixed 3", "fixed 4"}
    said = second.sweep("--resume")
    assert (said.status, second.ran()) == (0, []), said
    said = second.sweep("--resume", seeds="1,2,3,8")
    assert (said.status, second.ran()) == (0, ["8"]), said
    assert second.files()["8.txt"] == "fixed 8"
