"""The recipes run: every Python file of docs/recipes.md, and every command of it that needs neither root nor a container.

The files of the page are written into one folder. Servers and workers are real processes; they are killed or get a real SIGTERM.
"""

from __future__ import annotations

import ast
import asyncio
import configparser
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import forked
import holdfast as hf

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text("utf-8")
PATIENCE_S = 60
RUN_HERE = {
    "flows.py",
    "app.py",
    "service.py",
    "notebook.py",
    "nightly.py",
    "test_orders.py",
    "saga.py",
    "test_saga.py",
}
"""The files that a test below runs."""


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


FILES = {snippet.split("\n", 1)[0].removeprefix("# "): snippet for snippet in fences("python")}


class Shop:
    """The folder of the recipes, and the processes that run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in FILES.items():
            (folder / name).write_text(text, "utf-8")
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST"))
        }
        programs = os.pathsep.join([str(folder / ".venv" / "bin"), os.environ["PATH"]])
        path = os.pathsep.join(path for path in sys.path if path)
        self.environment = {**kept, "PATH": programs, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        self.environment["HOLDFAST_STORE"] = str(folder / "runs.db")
        self._processes: list[subprocess.Popen[str]] = []
        command = folder / ".venv" / "bin" / "holdfast"
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast.cli "$@"\n', "utf-8")
        command.chmod(0o755)

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = forked.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._processes.append(process)
        return process

    def run(self, *command: str) -> str:
        process = self.start(*command)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
        return output

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def only_run(self) -> hf.RunSummary:
        (run,) = hf.runs(store=self.folder / "runs.db")
        return run


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.close()


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """The first group of the first line that matches."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(pattern, line):
            return found[1] if found.groups() else found[0]
    pytest.fail(f"it ended without {pattern!r}:\n{''.join(lines)}")


def stop(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    return process.returncode


def test_every_python_file_of_the_page_is_run() -> None:
    assert set(FILES) == RUN_HERE


# --- FastAPI -----------------------------------------------------------------------------------------


class Server:
    """The application, served by uvicorn on a free port."""

    def __init__(self, shop: Shop) -> None:
        (command, *_tests) = [shlex.split(text) for text in fences("sh")]
        assert command[:1] + command[-2:] == ["python", "--port", "8000"]
        self.process = shop.start(sys.executable, *command[1:-1], "0")
        self.address = read_until(self.process, r"running on (http://\S+)")

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    def until(self, path: str, status: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            code, shown = self.ask("GET", f"{path}?wait=2")
            if (code, shown.get("status")) == (200, status):
                return shown
        pytest.fail(f"{path} is {shown}")


def test_the_fastapi_recipe_survives_a_kill_between_start_and_answer(shop: Shop) -> None:
    server = Server(shop)
    for item in ("lamp", "chair"):  # a repeated request uses the run of the first
        assert server.ask("POST", "/orders/o-1", {"item": item}) == (202, {"order": "o-1"})
    shown = server.until("/orders/o-1", "waiting")
    assert shown["questions"] == {"ship.1.1": "Ship lamp for 400?"}
    server.process.kill()

    server = Server(shop)
    assert server.ask("GET", "/orders/o-2")[0] == 404
    assert server.ask("POST", "/orders/o-1/answers/ship?value=perhaps&by=ada")[0] == 409
    assert server.ask("POST", "/orders/o-1/answers/ship?value=approve&by=ada")[0] == 200
    assert server.until("/orders/o-1", "completed")["state"]["shipped"] is True
    (tool,) = server.ask("GET", "/tools")[1]
    assert (tool["name"], tool["parameters"]["required"]) == ("order", ["item"])
    assert stop(server.process) in (0, -signal.SIGTERM)  # uvicorn passes the signal on


# --- services and scripts ----------------------------------------------------------------------------


def test_the_asyncio_service_records_runs_and_stops_in_order(shop: Shop) -> None:
    service = shop.start(sys.executable, "service.py")
    port = int(read_until(service, r"listening on port (\d+)"))
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"lamp\n")
        run_id = connection.makefile().readline().strip()
    assert stop(service) == 143
    assert shop.only_run().id == run_id


def test_the_cells_of_the_notebook_run_inside_a_loop_that_runs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop.folder)
    monkeypatch.syspath_prepend(str(shop.folder))
    monkeypatch.delitem(sys.modules, "flows", raising=False)
    cells = FILES["notebook.py"].split("# %%")[1:]
    names: dict[str, Any] = {"__name__": "__main__"}

    async def notebook() -> None:
        for cell in cells:
            code = compile(f"# %%{cell}", "notebook", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            awaited = eval(code, names)
            if awaited is not None:
                await awaited

    asyncio.run(notebook())
    sys.modules.pop("flows", None)
    printed = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("shipping")]
    assert printed == re.findall(r"print\(.*\) +# (.+)$", FILES["notebook.py"], re.MULTILINE)


def test_the_script_continues_its_failed_run_after_the_fix(shop: Shop) -> None:
    (commands,) = (fence for fence in fences("sh") if "nightly.py" in fence)
    lines = (line.split("  #")[0] for line in commands.splitlines())
    failing, mend, again = (re.sub(r"^python ", f"{sys.executable} ", line) for line in lines)
    failed = shop.run("sh", "-c", f"{failing} || echo failed with $?")
    assert ("FileNotFoundError" in failed, "fetched\n" in failed, "failed with 1" in failed) == (
        True,
        True,
        True,
    )
    assert shop.run("sh", "-c", f"{mend} && {again} && {again}").split() == ["6", "6"]


def test_the_crontab_starts_one_run_a_day_and_executes_it(shop: Shop) -> None:
    (crontab,) = fences("cron")
    lines = [line.split(maxsplit=5)[5].replace("\\%", "%") for line in crontab.splitlines()]
    record, execute = (line.replace("/srv/shop", str(shop.folder)) for line in lines)
    for line in (record, record, execute):
        shop.run("sh", "-c", line)
    run = shop.only_run()
    assert re.fullmatch(r"report-\d{4}-\d\d-\d\d", run.id)
    assert run.status == "completed"


@pytest.mark.parametrize(("number", "passed"), [(0, 3), (1, 2)], ids=["orders", "saga"])
def test_the_tests_of_the_recipe_pass(shop: Shop, number: int, passed: int) -> None:
    tested = [fence for fence in fences("sh") if fence.startswith("python -m pytest ")]
    command = shlex.split(tested[number])
    plugins = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:schemathesis")
    said = shop.run(sys.executable, *command[1:], "-q", *plugins)
    assert f"{passed} passed" in said


# --- containers and machines -------------------------------------------------------------------------


def drain(shop: Shop, *command: str) -> None:
    """Start a worker, give it a run, and stop it."""
    worker = shop.start(*command)
    read_until(worker, r"(?i)worker|works|ready|waiting")
    shop.run(str(shop.folder / ".venv" / "bin" / "holdfast"), "start", "flows.py:report", "--run-id", "r")
    read_until(worker, r"\br\b.*completed|completed.*\br\b")
    assert stop(worker) == 0


def test_the_command_of_the_dockerfile_is_a_worker_that_drains(shop: Shop) -> None:
    (dockerfile,) = fences("dockerfile")
    steps = [line.split(maxsplit=1) for line in dockerfile.splitlines()]
    copied = [word for kind, words in steps if kind == "COPY" for word in words.split()[:-1]]
    assert set(copied) - {"requirements.txt"} <= set(FILES)
    drain(shop, *json.loads(dict(steps)["CMD"]))


def read_unit(text: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    return unit


def test_the_command_of_the_systemd_unit_is_a_worker_that_drains_before_it_is_killed(shop: Shop) -> None:
    unit = read_unit(fences("ini")[0])
    command = shlex.split(unit["Service"]["ExecStart"].replace("/srv/shop", str(shop.folder)))
    assert int(unit["Service"]["TimeoutStopSec"]) > float(command[command.index("--grace") + 1])
    drain(shop, *command)


def server_commands() -> dict[str, list[str]]:
    """The commands of the page that serve HTTP."""
    (compose,) = fences("yaml")
    (composed,) = re.findall(r"command: (\[.*\])", compose)
    unit = read_unit(fences("ini")[1])["Service"]
    return {"compose": json.loads(composed), "systemd": shlex.split(unit["ExecStart"])}


@pytest.mark.parametrize("place", ["compose", "systemd"])
def test_the_commands_of_servers_answer_under_their_name_with_the_token_of_their_environment(
    shop: Shop, place: str
) -> None:
    (made,) = fences("bash")
    token = shop.run("bash", "-c", f"{made}\necho $HOLDFAST_TOKEN").strip()
    shop.environment["HOLDFAST_TOKEN"] = token
    words = [
        word.replace("/srv/shop", str(shop.folder)).replace("0.0.0.0", "127.0.0.1")
        for word in server_commands()[place]
    ]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = shop.start(*words, "--port", str(port))
    link = read_until(server, r"(https?://\S+)")
    assert token not in link
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    for host, status in ((urlsplit(link).netloc, 200), ("evil.com", 421)):
        client.request("GET", "/api/v1/flows", headers={"Host": host, "Authorization": f"Bearer {token}"})
        answer = client.getresponse()
        assert (answer.status, b"report" in answer.read()) == (status, status == 200)
    client.close()
    assert stop(server) == 0


def test_a_container_is_given_more_time_to_stop_than_its_nodes() -> None:
    (compose,), (dockerfile,) = fences("yaml"), fences("dockerfile")
    found = re.search(r"stop_grace_period: (\d+)s", compose)
    given = re.search(r'"--grace", "(\d+)"', dockerfile)
    assert found is not None
    assert given is not None
    assert int(found[1]) > int(given[1])
