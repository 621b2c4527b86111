"""The command line as a whole: quick help, exit codes, messages instead of tracebacks, catalogues, schema, init."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.cli import main as cli
from sim.config import load_experiment
from sim.errors import InputError, PolicyError


def run(*arguments: str) -> int:
    """Call the entry point in this process; its exit code."""
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    return int(left.value.code or 0)


def in_a_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-X", "importtime", "-m", "sim", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_help_lists_the_commands_and_imports_nothing_heavy(tmp_path: Path) -> None:
    done = in_a_process("--help", cwd=tmp_path)
    assert done.returncode == 0
    for command in ("run", "policies", "profiles", "models", "schema", "init"):
        assert f"\n  {command} " in done.stdout
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert not imported & {"numpy", "pandas", "scipy", "matplotlib", "pyarrow", "pydantic", "yaml", "simpy"}


def test_every_command_that_is_there_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    app = cli.build_app([])
    names = [command.name for command in app.registered_commands if command.name]
    assert len(names) >= 6
    for name in names:
        assert run(name, "--help") == 0
        assert f"Usage: servesim {name}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("servesim ")


@pytest.mark.parametrize("arguments", [["nonsense"], ["run"], ["run", "a.yaml", "--nonsense"], ["schema", "nonsense"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(InputError("no such key"), 2), (PolicyError("bad answer"), 1)])
def test_errors_on_purpose_are_a_message_and_an_exit_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "build_app", fail)
    assert run("run") == code
    assert capsys.readouterr().err == f"error: {error}\n"


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sim.config.load_experiment", interrupt)
    assert run("run", "a.yaml") == 130
    assert "run the same command" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["sweep", "compare", "plan"])
def test_an_interrupt_of_what_can_go_on_says_resume(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._interrupted([command, "x.yaml"]) == 130
    assert "add --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "offered"), [("servesim compare-m", "compare-measured"), ("servesim run --se", "--seed")]
)
def test_shells_are_told_how_to_complete(line: str, offered: str, tmp_path: Path) -> None:
    words = line.split(" ")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "_SERVESIM_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    command = [sys.executable, "-c", "from sim.cli.main import main; main()"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert offered in done.stdout.split(), done.stderr


def test_policies_are_listed_with_their_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("policies", "list", "--json") == 0
    catalogue = json.loads(capsys.readouterr().out)
    assert {"fcfs"} <= set(catalogue["scheduler"])
    assert {"round_robin", "least_outstanding_requests"} <= set(catalogue["router"])
    assert all(rule for table in catalogue.values() for rule in table.values())


def test_a_policy_is_shown_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("policies", "show", "queue_limit") == 0
    shown = capsys.readouterr().out
    assert "queue_limit (admission," in shown
    assert "max_outstanding: int = 1024" in shown


def test_an_unknown_policy_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("policies", "show", "round_robbin") == 2
    assert "did you mean 'round_robin'?" in capsys.readouterr().err


def test_the_schema_is_json_and_names_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["additionalProperties"] is False
    assert {"workload", "cluster"} <= set(schema["required"])


def test_init_writes_an_experiment_that_loads_and_never_overwrites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init", str(tmp_path / "new")) == 0
    assert load_experiment(tmp_path / "new" / "experiment.yaml").name == "starter"
    for kind in ("experiment", "study", "plan"):
        schema = json.loads((tmp_path / "new" / f"servesim.{kind}.schema.json").read_text())
        assert schema["title"] == f"servesim {kind}"
    (tmp_path / "new" / "experiment.yaml").write_text("mine")
    capsys.readouterr()
    assert run("init", str(tmp_path / "new")) == 2
    assert "is not overwritten" in capsys.readouterr().err
    assert (tmp_path / "new" / "experiment.yaml").read_text() == "mine"


def test_the_starters_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three files as they stand but for a shorter workload."""
    assert run("init", str(tmp_path)) == 0
    monkeypatch.chdir(tmp_path)
    assert run("run", "experiment.yaml", "--set", "workload.num_requests=300", "--quiet") == 0
    assert run("sweep", "study.yaml", "--set", "workload.num_requests=300", "--workers", "1", "--quiet") == 0
    quick = ("--set", "workload.num_requests=200", "--set", "verify=0", "--set", "candidates.gpu=[h100-sxm]")
    assert run("plan", "plan.yaml", *quick, "--workers", "1", "--quiet") == 0
    assert "gpu:\n  - h100-sxm\n" in (tmp_path / "out" / "starter-plan" / "plan.yaml").read_text()


def test_report_of_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", str(tmp_path)) == 2
    assert "is not the output directory of a run" in capsys.readouterr().err
