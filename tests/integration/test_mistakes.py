"""Types a hundred mistakes. The answer has the field, the value and a command; typed as it is, this command works."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.cli.main import invoke
from pilotfish.cli.terminal.corrections import FEATURES_ELSEWHERE
from pilotfish.cli.terminal.error_messages import BAD_INPUT, CANNOT

pytestmark = pytest.mark.xdist_group("mistakes")

FILES = {
    "plain.txt": "hello\n",
    "lines.txt": "one\ntwo\n",
    "values.txt": "1\n2\n",
    "tasks.txt": "true\n",
    "after.txt": "id=gen1 true\nid=gen2 true\nafter=gen3 true\n",
    "needs.list": "true\nin=line.txt cat line.txt\n",
    "plot.sub": "executable = /bin/true\nqueue\n",
    "plots.dag": "JOB A plt.sub\n",
    "case.dag": "JOB simA plot.sub\nJOB simB plot.sub\nPARENT simA CHILD simb\n",
    "keyword.dag": 'JOB A plot.sub\nVAR A x="1"\n',
}
PREPARATION = (
    "site add desk --backend ssh --cores 1 --max-pilots 40",
    "run --name sweep --param x=1..3 -- echo {x}",
    "run --name broken -- test -e ready",
    "run -- test -e ready",
    "run --detach --name waiting --local-cores 1 --require 'cores > 1000' -- true",
)
MISTAKES = [
    ("whatif last", "'last' is not a change that can be simulated", "pilotfish whatif --run last '+8 cores'"),
    ("results --save", "option '--save' requires an argument", "pilotfish results --help"),
    ("site add --cores", "option '--cores' requires an argument", "pilotfish site add --help"),
    ("rnu -- true", "there is no command 'rnu'", "pilotfish run -- true"),
    ("frobnicate", "there is no command 'frobnicate'", "pilotfish --help"),
    ("run -- nosuchprogram", "there is no program 'nosuchprogram'", "echo $PATH"),
    ("run -- ./missing.sh", "the program './missing.sh' does not exist", "ls ."),
    ("run -- ./plain.txt", "the program './plain.txt' may not be executed", "chmod +x ./plain.txt"),
    ("run --param x= -- echo {x}", "--param x= has no values: the sweep would be empty", "pilotfish run --param x=1..10 -- echo '{x}'"),
    (
        "run --param x=5..1 -- echo {x}",
        "--param x=5..1: 5 is above 1, the sweep would be empty",
        "pilotfish run --param x=1..5 -- echo '{x}'",
    ),
    ("run --param x=0:1:0 -- echo {x}", "--param x=0:1:0: the step is 0", "pilotfish run --param x=0:1:1 -- echo '{x}'"),
    (
        "run --param x=0:1:-0.1 -- echo {x}",
        "--param x=0:1:-0.1: a step of -0.1 never gets from 0 to 1, the sweep would be empty",
        "pilotfish run --param x=0:1:0.1 -- echo '{x}'",
    ),
    (
        "run --param x=0:0.1:1 -- echo {x}",
        "--param x=0:0.1:1: a step of 1 is larger than the range from 0 to 0.1, so 0 would be the only value",
        "pilotfish run --param x=0:1:0.1 -- echo '{x}'",
    ),
    (
        "run --param x=10:5:100 -- echo {x}",
        "--param x=10:5:100: a step of 100 never gets from 10 to 5, the sweep would be empty",
        "pilotfish run --param x=10:100:5 -- echo '{x}'",
    ),
    (
        "run --param x=0,5:1,5:0,5 -- echo {x}",
        "--param x=0,5:1,5:0,5: commas separate values, so '0,5' is no number",
        "pilotfish run --param x=0.5:1.5:0.5 -- echo '{x}'",
    ),
    (
        "run --param x=@missing.txt -- echo {x}",
        "--param x=@missing.txt: the file 'missing.txt' does not exist",
        "ls .",
    ),
    (
        "run --param alpha=1..3 -- echo {alhpa}",
        "the command has {alhpa}, but there is no parameter 'alhpa'",
        "pilotfish run --param alpha=1..3 -- echo '{alpha}'",
    ),
    (
        "run --param x=1..3 -- echo {x+1}",
        "the command has {x+1}, but nothing is computed in braces",
        "pilotfish run --param x=1..3 -- echo '{x}'",
    ),
    ("run --param x=1..3 -- echo {x:q}", "the command has {x:q}, and 'q' is not a format", "pilotfish run --param x=1..3 -- echo '{x}'"),
    (
        "run --param x=1..3 -- echo {x!r}",
        "the command has {x!r}, but nothing is computed in braces",
        "pilotfish run --param x=1..3 -- echo '{x}'",
    ),
    (
        "run --param x=1..3 --param y=1..2 --zip -- echo {x} {y}",
        "--zip needs as many values of each: x has 3, y has 2",
        "pilotfish run --param x=1..3 --param y=1..2 -- echo '{x}' '{y}'",
    ),
    ("run --params-from missing.csv -- echo {a}", "--params-from: the file 'missing.csv' does not exist", "ls ."),
    (
        "run --each-line missing.txt -- echo {}",
        "--each-line: the file 'missing.txt' does not exist",
        "ls .",
    ),
    ("run --tasks missing.txt", "--tasks: the file 'missing.txt' does not exist", "ls ."),
    ("run --dag missing.dag", "'missing.dag': no such file", "ls {here}"),
    ("run --cores 0 -- true", "cores: a task needs more than 0 cores", "pilotfish run --cores 2 -- true"),
    ("run --cores x -- true", "cores: 'x' is not a number of cores", "pilotfish run --cores 2 -- true"),
    ("run --cores 4-2 -- true", "cores: the range '4-2' ends below its start", "pilotfish run --cores 2 -- true"),
    ("run --nodes 0 -- true", "invalid value for '--nodes': 0 is not in the range x>=1", "pilotfish run --nodes 1 -- true"),
    ("run --memory 2 -- true", "memory: '2' is only 2 B", "pilotfish run --memory 2G -- true"),
    ("run --memory 2X -- true", "memory: '2X' is not a size", "pilotfish run --memory 2G -- true"),
    ("run --memory -1G -- true", "memory: '-1G' is not a size", "pilotfish run --memory 2G -- true"),
    ("run --time 5x -- true", "time: '5x' is not a duration", "pilotfish run --time 10m -- true"),
    ("run --time 0s -- true", "time: no task can end within '0s'", "pilotfish run --time 10m -- true"),
    ("run --signal NOSUCH -- true", "warn signal: 'NOSUCH' cannot be sent as a warning", "pilotfish run --signal USR1 -- true"),
    ("run --retries -1 -- true", "invalid value for '--retries': -1 is not in the range x>=0", "pilotfish run --retries 0 -- true"),
    ("run --retries many -- true", "invalid value for '--retries': 'many' is not a whole number", "pilotfish run --retries 0 -- true"),
    ("run --priority high -- true", "invalid value for '--priority': 'high' is not a whole number", "pilotfish run --priority 0 -- true"),
    ("run --share :3 -- true", "--share: '' is not a valid name of a share", "pilotfish run --share thesis:2 -- true"),
    ("run --share a:0 -- true", "--share: '0' is no weight", "pilotfish run --share a:2 -- true"),
    ("run --share a:b -- true", "--share: 'b' is no weight", "pilotfish run --share a:2 -- true"),
    ("run --deadline yesterday -- true", "--deadline: 'yesterday' is no time and no duration", "pilotfish run --deadline 2h -- true"),
    (
        "run --max-failures -1 -- true",
        "invalid value for '--max-failures': -1 is not in the range x>=0",
        "pilotfish run --max-failures 0 -- true",
    ),
    ("run --input missing.dat -- cat missing.dat", "inputs: 'missing.dat' does not exist (looked in {here})", "ls ."),
    ("run --input 99.0:x -- cat x", "there is no task 99.0", "pilotfish tasks"),
    (
        "run --output /etc/x -- touch x",
        "--output: '/etc/x' does not name a file inside the task's directory",
        "pilotfish run --output x -- touch x",
    ),
    (
        "run --output ../x -- touch x",
        "--output: '../x' does not name a file inside the task's directory",
        "pilotfish run --output x -- touch x",
    ),
    (
        "run --output a.csv,b.json -- touch a.csv b.json",
        "--output a.csv,b.json: it takes one name, and there are 2",
        "pilotfish run --output a.csv --output b.json -- touch a.csv b.json",
    ),
    ("run --output slurm-%j.out -- true", "--output slurm-%j.out: '%j' is a placeholder of Slurm", "pilotfish run -- true"),
    ("run --output=logs/%A_%a.out -- true", "--output logs/%A_%a.out: '%A' is a placeholder of Slurm", "pilotfish run -- true"),
    ("run -o out.txt -- true", "pilotfish run has no option -o", "pilotfish logs"),
    ("run --keep ../x -- touch x", "--keep: '../x' does not name a file inside the task's directory", "pilotfish run --keep x -- touch x"),
    ("run --env NOSUCHVAR -- true", "--env NOSUCHVAR: there is no such variable here", "pilotfish run --env NOSUCHVAR=VALUE -- true"),
    ("run --stdin missing.txt -- cat", "--stdin missing.txt: no such file or directory", "ls ."),
    ("run --max-output 5 -- true", "max_output: '5' is only 5 B", "pilotfish run --max-output 5G -- true"),
    ("run --max-output lots -- true", "max_output: 'lots' is not a size", "pilotfish run --max-output 2G -- true"),
    ("run --site nosuch -- true", "there is no site 'nosuch'", "pilotfish sites"),
    ("run --site dsek -- true", "there is no site 'dsek'", "pilotfish run --site desk -- true"),
    ("run --site desk:x -- true", "site 'desk:x' is not understood", "pilotfish run --site desk -- true"),
    ("run --site desk:0 -- true", "site 'desk:0' is not understood", "pilotfish run --site desk -- true"),
    ("run --times 0 -- true", "invalid value for '--times': 0 is not in the range x>=1", "pilotfish run --times 1 -- true"),
    ("run --name 3 -- true", "--name 3: that already means the run 3", "pilotfish run --name run-3 -- true"),
    (
        "run --pool 'a/b' -- true",
        "pool 'a/b': a pool's name has no slash and does not begin with a dot",
        "pilotfish run --pool default -- true",
    ),
    ("run --parm x=1..3 -- echo {x}", "pilotfish run has no option --parm", "pilotfish run --param x=1..3 -- echo '{x}'"),
    (
        "run --here --input lines.txt -- cat lines.txt",
        "--here does not go with --input, --output, --keep, in= or out=",
        "pilotfish run --input lines.txt -- cat lines.txt",
    ),
    ("run -j 4 -- true", "pilotfish run has no option -j", "pilotfish run --local-cores 4 -- true"),
    ("run --tasks tsks.txt", "--tasks: the file 'tsks.txt' does not exist", "pilotfish run --tasks tasks.txt"),
    ("run -t 10 -- true", "pilotfish run has no option -t", "pilotfish run --time 10m -- true"),
    ("run --array 1-3 -- echo {i}", "pilotfish run has no option --array", "pilotfish run --param i=1..3 -- echo '{i}'"),
    ("run --memory 512 -- true", "memory: '512' is only 512 B", "pilotfish run --memory 512M -- true"),
    (
        "run --detach --require 'memory > 8' -- true",
        "requirement: memory is in bytes, so 8 is only 8 B",
        "pilotfish run --detach --require 'memory > 8G' -- true",
    ),
    (
        "run --param frame=003..001 -- echo {frame}",
        "--param frame=003..001: 3 is above 1, the sweep would be empty",
        "pilotfish run --param frame=001..003 -- echo '{frame}'",
    ),
    (
        "run --param t=10:30:00,11:00:00 -- echo {t}",
        "--param t=10:30:00,11:00:00: '10:30:00' looks like a time of day",
        "pilotfish run --param 't=\"10:30:00\",\"11:00:00\"' -- echo '{t}'",
    ),
    ("run -p fast -- true", "pilotfish run has no option -p", "pilotfish site --help"),
    ("run --retry 2 -- true", "pilotfish run has no option --retry", "pilotfish run --retries 2 -- true"),
    ("run --time-limit 5m -- true", "pilotfish run has no option --time-limit", "pilotfish run --time 5m -- true"),
    ("run --dry-run --gres=gpu:a100:2 -- true", "pilotfish run has no option --gres", "pilotfish run --dry-run --gpus 2 -- true"),
    ("run --halt now,fail=3 -- true", "pilotfish run has no option --halt", "pilotfish run --max-failures 3 -- true"),
    ("run --background -- true", "pilotfish run has no option --background", "pilotfish run --detach -- true"),
    ("run --force -- true", "pilotfish run has no option --force", "pilotfish run --overwrite -- true"),
    ("run --link -- echo {1} {2} ::: a b ::: c d", "no option --link", "pilotfish run --zip -- echo '{1}' '{2}' ::: a b ::: c d"),
    ("run --joblog log.csv -- true", "pilotfish run has no option --joblog", "pilotfish results --joblog"),
    ("run --results out -- true", "pilotfish run has no option --results", "pilotfish results --save out"),
    ("run --resume-failed -- true", "pilotfish run has no option --resume-failed", "pilotfish run --resume -- true"),
    ("run --chdir=/tmp -- true", "pilotfish run has no option --chdir", "cd /tmp"),
    ("run --wrap 'echo a; echo b'", "pilotfish run has no option --wrap", "pilotfish run -- sh -c 'echo a; echo b'"),
    ("results --failed", "pilotfish results has no option --failed", "pilotfish tasks --state failed"),
    ("squeue", "there is no command 'squeue'", "pilotfish status"),
    ("wait 1", "there is no command 'wait'", "pilotfish attach 1"),
    ("scancel 1", "there is no command 'scancel'", "pilotfish cancel 1"),
    ("status --run 1", "pilotfish status has no option --run", "pilotfish status 1"),
    ("bench --seconds 1", "pilotfish bench has no option --seconds", "pilotfish bench --help"),
    ("rerun --times 2", "pilotfish rerun has no option --times", "pilotfish run --help"),
    ("rerun 2 --local-cores 1", "pilotfish rerun has no option --local-cores", "pilotfish run --help"),
    ("tasks --failed", "pilotfish tasks has no option --failed", "pilotfish tasks --state failed"),
    ("workers add 3", "there is no site '3'", "pilotfish workers --local-cores 3"),
    ("predict 1", "run 1 has ended", "pilotfish results 1"),
    ("status nosuch", "there is no run 'nosuch'", "pilotfish status"),
    ("status 99", "there is no run '99'", "pilotfish status"),
    ("tasks 99", "there is no run '99'", "pilotfish status"),
    ("tasks --stat failed", "pilotfish tasks has no option --stat", "pilotfish tasks --state failed"),
    (
        "tasks --state broken",
        "invalid value for '--state': 'broken' is not one of 'waiting', 'ready', 'assigned', 'running', 'done', 'failed', 'cancelled'",
        "pilotfish tasks --state waiting",
    ),
    ("tasks --limit 0", "invalid value for '--limit': 0 is not in the range x>=1", "pilotfish tasks --limit 1"),
    ("tasks 1 2", "got unexpected extra argument (2)", "pilotfish tasks --help"),
    ("why 99.0", "there is no task 99.0", "pilotfish tasks"),
    ("why 1.99", "there is no task 1.99", "pilotfish tasks"),
    ("logs 99.1", "there is no task 99.1", "pilotfish tasks"),
    ("logs 1.99", "there is no task 1.99", "pilotfish tasks"),
    ("logs nosuch", "there is no run 'nosuch'", "pilotfish status"),
    ("tail 1.99", "there is no task 1.99", "pilotfish tasks"),
    ("cancel", "missing argument 'RUN|TASK...'", "pilotfish cancel --help"),
    ("cancel 99", "there is no run '99'", "pilotfish status"),
    ("cancel 1.x", "run 1 has no task 'x'", "pilotfish tasks 1"),
    ("cancel nosuch", "there is no run 'nosuch'", "pilotfish status"),
    ("pause 99", "there is no run '99'", "pilotfish status"),
    ("resume 99", "there is no run '99'", "pilotfish status"),
    ("rerun 99", "there is no run '99'", "pilotfish status"),
    ("rerun 1", "run 1 has no failed or cancelled task (3 done)", "pilotfish tasks 1"),
    ("rerun 1.99", "there is no task 1.99", "pilotfish tasks"),
    ("rerun 2 --time soon", "time: 'soon' is not a duration", "pilotfish rerun 2 --time 10m"),
    ("rerun 2 --site nosuch", "there is no site 'nosuch'", "pilotfish sites"),
    ("rerun 3.0 2.0", "3.0 2.0 are of several runs", "pilotfish rerun 3.0"),
    ("set 4", "nothing was given to change", "pilotfish set 4 --priority 5"),
    ("set 4 --priority x", "invalid value for '--priority': 'x' is not a whole number", "pilotfish set 4 --priority 1"),
    ("set 99 --priority 1", "there is no run '99'", "pilotfish status"),
    ("set 4 --deadline never", "--deadline: 'never' is no time and no duration", "pilotfish set 4 --deadline 2h"),
    ("forget", "missing argument 'RUN...'", "pilotfish forget --help"),
    ("forget 99", "there is no run '99'", "pilotfish status"),
    ("results 99", "there is no run '99'", "pilotfish status"),
    ("results --save plain.txt", "'plain.txt' is not a directory", "pilotfish results --save plain.txt-saved"),
    ("results 1.0", "'1.0' is a task, and a run is needed here", "pilotfish logs 1.0"),
    ("attach 99", "there is no run '99'", "pilotfish status"),
    ("report 99", "there is no run '99'", "pilotfish status"),
    ("predict 99", "there is no run '99'", "pilotfish status"),
    ("whatif 1", "'1' is not a change that can be simulated", "pilotfish whatif '+8 cores'"),
    ("whatif '+x cores'", "'+x cores' is not a change that can be simulated", "pilotfish whatif '+8 cores'"),
    ("whatif '+5 pilots nosuch'", "'+5 pilots nosuch': the pool knows no site 'nosuch'", "pilotfish sites"),
    ("replay 99", "there is no run '99'", "pilotfish status"),
    (
        "simulate --tasks 10 --site 'a 2' --seconds 'norml(1,2)'",
        "--seconds = 'norml(1,2)': there is no distribution norml",
        "pilotfish simulate --tasks 10 --site 'a 2' --seconds 'normal(1,2)'",
    ),
    (
        "simulate --tasks 10 --seconds 1 --site 'a 2 bandwith=3MB'",
        "--site a: bandwith: there is no such field",
        "pilotfish simulate --tasks 10 --seconds 1 --site 'a 2 bandwidth=3MB'",
    ),
    ("workers --local-cores -1", "invalid value for '--local-cores': -1 is not in the range x>=0", "pilotfish workers --local-cores 1"),
    ("workers --local-cores x", "invalid value for '--local-cores': 'x' is not a whole number", "pilotfish workers --local-cores 1"),
    ("pilots add nosuch", "there is no site 'nosuch'", "pilotfish sites"),
    ("pilots add desk 0", "pilots add desk 0: '0' is not a number of pilots", "pilotfish pilots add desk 2"),
    ("pilots add desk x", "pilots add desk x: 'x' is not a number of pilots", "pilotfish pilots add desk 2"),
    ("site add", "missing argument 'NAME'", "pilotfish site add --help"),
    ("site add x", "missing option '--backend'", "pilotfish site add --help"),
    ("site add x --backend slrum", "site add: site x: there is no backend 'slrum'", "pilotfish site add x --backend slurm"),
    (
        "site add y --backend slurm --walltime soon",
        "site y: walltime: 'soon' is not a duration",
        "pilotfish site add y --backend slurm --walltime 10m",
    ),
    (
        "site add z --backend slurm --cores many",
        "site z: cores = 'many' is not a whole number",
        "pilotfish site add z --backend slurm --cores 8",
    ),
    (
        "site add w --backend slurm --nosuch 3",
        "pilotfish site add has no option --nosuch",
        "pilotfish site add --help",
    ),
    ("site set desk", "missing argument 'KEY=VALUE...'", "pilotfish site set --help"),
    ("site set desk coers=2", "site desk: there is no key 'coers'", "pilotfish site set desk cores=2"),
    ("site set desk cores=x", "site desk: cores = 'x' is not a whole number", "pilotfish site set desk cores=8"),
    ("site set desk cores", "'cores' is not KEY=VALUE", "pilotfish site set desk max_pilots=8"),
    ("site set nosuch cores=2", "there is no site 'nosuch'", "pilotfish sites"),
    ("site remove nosuch", "there is no site 'nosuch'", "pilotfish sites"),
    ("site pause nosuch", "there is no site 'nosuch'", "pilotfish sites"),
    ("site resume nosuch", "there is no site 'nosuch'", "pilotfish sites"),
    ("site show nosuch", "there is no site 'nosuch'", "pilotfish sites"),
    ("site test nosuch", "there is no site 'nosuch'", "pilotfish sites"),
    ("site log nosuch", "there is no site 'nosuch'", "pilotfish sites"),
    ("site exec nosuch -- true", "there is no site 'nosuch'", "pilotfish sites"),
    ("site frob", "there is no command 'site frob'", "pilotfish site --help"),
    ("sites nosuch", "got unexpected extra argument (nosuch)", "pilotfish sites --help"),
    ("doctor nosuch", "there is no site 'nosuch'", "pilotfish sites"),
    ("explain P9999", "there is no error code 'P9999'", "pilotfish explain"),
    ("explain nonsense", "there is no error code 'nonsense'", "pilotfish explain"),
    ("completion tcsh", "invalid value for '{bash|zsh|fish}': 'tcsh' is not one of 'bash', 'zsh', 'fish'", "pilotfish completion --help"),
    ("help nosuch", "there is no command 'nosuch'", "pilotfish --help"),
    ("cache list nosuch", "got unexpected extra argument (nosuch)", "pilotfish cache list --help"),
    ("cache forget", "name the runs, or give --all", "pilotfish cache list"),
    ("cache forget nosuch", "there is no run 'nosuch'", "pilotfish status"),
    ("cache frob", "there is no command 'cache frob'", "pilotfish cache --help"),
    ("data nosuch", "there is no run 'nosuch'", "pilotfish status"),
    ("forecasts nosuch", "got unexpected extra argument (nosuch)", "pilotfish forecasts --help"),
    ("gc --nosuch", "pilotfish gc has no option --nosuch", "pilotfish gc --help"),
    ("pools extra", "got unexpected extra argument (extra)", "pilotfish pools --help"),
    # last, because the command deletes run 2
    ("forget broken.0", "2.0 is a task, and only whole runs can be deleted", "pilotfish forget 2"),
]
"""What is typed after ``pilotfish``, the message, and the command to type next."""


@pytest.fixture(scope="module")
def here() -> Iterator[Path]:
    """A directory whose pool has a site, a finished run 1 ``sweep``, the failed runs 2 and 3, and run 4, which waits."""
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-mistakes-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("PILOTFISH_HOME", str(directory / "home"))
        patch.setenv("NO_COLOR", "1")
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        for name, content in FILES.items():
            Path(name).write_text(content)
        for words in PREPARATION:
            invoke(shlex.split(words))
        Path("ready").touch()
        yield directory
        invoke(["stop", "--now"])
    shutil.rmtree(directory)


@pytest.mark.parametrize(("typed", "message", "command"), MISTAKES, ids=[typed for typed, _, _ in MISTAKES])
def test_a_mistake_is_answered_with_a_command_that_works(
    here: Path, capfd: pytest.CaptureFixture[str], typed: str, message: str, command: str
) -> None:
    capfd.readouterr()
    assert invoke(shlex.split(typed)) == 2
    said = capfd.readouterr().err
    assert message.replace("{here}", str(here)) in said
    command = command.replace("{here}", str(here))
    assert any(line.endswith(command) for line in said.splitlines() if line.startswith("  fix:")), said
    program, *words = shlex.split(command)
    assert (invoke(words) if program == "pilotfish" else subprocess.call(["sh", "-c", command])) == 0, capfd.readouterr()


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("run --tasks after.txt", "after.txt, line 3: after=gen3: no task has that id", "Did you mean 'gen2'?"),
        ("run --tasks needs.list", "needs.list, line 2: inputs: 'line.txt' does not exist", "did you mean 'lines.txt'?"),
        ("run plots.dag", "plots.dag, line 1: 'plt.sub': no such file", "Did you mean 'plot.sub'?"),
        ("run case.dag", "case.dag, line 3: there is no node 'simb'", "Did you mean 'simB'?"),
        ("results 1 --pool defualt", "pool 'defualt' has no runs yet", "Did you mean 'default'?"),
        ("run --colsep , -- echo {1} :::: values.txt", "run has no option --colsep", FEATURES_ELSEWHERE["--colsep"]),
        ("run --tag -- true", "run has no option --tag", FEATURES_ELSEWHERE["--tag"]),
        ("run -k -- true", "run has no option -k", FEATURES_ELSEWHERE["--tag"]),
        ("run --keep-order -- true", "run has no option --keep-order", FEATURES_ELSEWHERE["--tag"]),
        ("run --dependency afterok:1 -- true", "run has no option --dependency", FEATURES_ELSEWHERE["--dependency"]),
        ("run --export=ALL -- true", "run has no option --export", FEATURES_ELSEWHERE["--export"]),
        ("run keyword.dag", "keyword.dag, line 2: unknown keyword 'VAR'", "Did you mean 'VARS'?"),
    ],
)
def test_a_wrong_name_is_answered_with_the_name_that_serves_the_purpose(
    here: Path, capfd: pytest.CaptureFixture[str], typed: str, message: str, hint: str
) -> None:
    capfd.readouterr()
    assert invoke(shlex.split(typed)) in (BAD_INPUT, CANNOT)
    said = capfd.readouterr().err
    assert message in said and f"  fix: {hint}\n" in said


def test_there_are_a_hundred_mistakes() -> None:
    assert len({typed for typed, _, _ in MISTAKES}) >= 100
