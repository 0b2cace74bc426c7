"""Simulates a user who asks ``why`` and types the suggested commands literally, until the work is done."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotfish.cli.terminal.error_messages import NOT_STARTED
from tests.integration.terminal import Said, Typist
from tests.support.scripted_master import eventually

Reason = dict[str, Any]


class Obedient(Typist):
    """A user whose home directory is also private, because sites put their files there."""

    def __init__(self, directory: Path, environment: dict[str, str] | None = None) -> None:
        super().__init__(directory)
        (directory / "person").mkdir()
        self.environment |= environment or {}
        path = os.pathsep.join((str(Path(self.command).parent), self.environment["PATH"]))
        self.environment |= {"PATH": path, "HOME": str(directory / "person")}

    def do(self, *words: str) -> str:
        said = self.type(*words)
        assert said.status == 0, (words, said)
        return said.out

    def ask(self, *words: str) -> Any:
        return json.loads(self.do(*words, "--json"))

    def begin(self, *words: str) -> int:
        """Start a detached run, possibly one that nothing can run yet. Returns its number."""
        said = self.type("run", "--detach", *words)
        assert said.status in (0, NOT_STARTED), (words, said)
        return int(said.out.split()[1].rstrip(":"))

    def hear_why(self, run: int, code: str, words: str = "") -> Reason:
        """Wait for a reason with this code and these words in its text."""
        answers: list[Any] = []

        def found() -> Reason | None:
            answers[:] = self.ask("why", str(run))["reasons"]
            return next((reason for reason in answers if reason["code"] == code and words in reason["text"]), None)

        try:
            reason: Reason = eventually(found)
        except AssertionError:
            raise AssertionError(f"run {run} does not wait because of {code}: {answers}") from None
        return reason

    def obey(self, reason: Reason, filled_in: Mapping[str, str] | None = None) -> None:
        """Type the commands of a reason in order, with placeholders replaced by ``filled_in``."""
        for command in reason["commands"]:
            if not command.startswith("ask for less"):
                for word, value in (filled_in or {}).items():
                    command = command.replace(word, value)
                said = self.type_in_shell(command)
                assert said.status == 0, (command, said)

    def type_in_shell(self, line: str) -> Said:
        return self.run("sh", "-c", line)

    def finish(self, run: int) -> None:
        data = self.ask("attach", str(run))
        assert data["state"] == "done", data

    def leave(self) -> None:
        said = self.type("stop", "--now", "--json")
        assert said.status == 0 and json.loads(said.out)["left"] == [], said
