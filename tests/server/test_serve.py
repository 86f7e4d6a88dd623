"""`holdfast serve` as a process: its first line, its token, what it executes, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import holdfast as hf
from command_line import caller, furnish
from holdfast.errors import SettingError
from holdfast.server import token_file

PATIENCE_S = 60
FLOW = """
import time
import holdfast as hf

graph = hf.Graph("hello")

@graph.node
def greet(state):
    while state.get("long"):
        time.sleep(0.01)
    return {"said": "hi"}

flow = graph.chain(hf.START, greet, hf.END).compile()
"""
SECRET = "t1.0123456789abcdef0123456789abcdef"


class Server:
    """A process of `holdfast serve` in a folder."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        (folder / "flow.py").write_text(FLOW)
        (folder / "pyproject.toml").write_text("")
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))
        }
        paths = os.pathsep.join(path for path in sys.path if path)
        self.environment = clean | {"PYTHONPATH": paths, "HOME": str(folder)} | environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "serve", *words],
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().rstrip()
        self.token = self.link.partition("#token=")[2]

    def get(self, path: str, token: str | None = None) -> tuple[int, Any]:
        place = urlsplit(self.link)
        client = http.client.HTTPConnection(place.hostname, place.port, timeout=PATIENCE_S)
        try:
            client.request(
                "GET", path, headers={"Authorization": f"Bearer {token or self.token}"} if token != "" else {}
            )
            answer = client.getresponse()
            body = answer.read()
            return answer.status, json.loads(body) if body[:1] in b"[{" else body
        finally:
            client.close()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, told


@pytest.fixture
def serve(tmp_path):
    begun: list[Server] = []

    def start(*words: str, **environment: str) -> Server:
        begun.append(Server(tmp_path, *words, "--port", "0", **environment))
        return begun[-1]

    yield start
    for server in begun:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def test_the_first_line_is_a_link_that_works_and_survives_a_restart(serve, tmp_path):
    server = serve("flow.py")
    assert server.link.startswith("http://127.0.0.1:")
    file = tmp_path / ".holdfast" / "runs.db.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() == server.token
    status, about = server.get("/api/v1/meta")
    assert status == 200
    assert (about["role"], about["flows"], about["features"]) == ("admin", ["hello"], ["work"])
    assert server.get("/api/v1/meta", token="")[0] == 401
    assert server.end() == (0, "")
    assert serve("flow.py").get("/api/v1/meta", token=server.token)[0] == 200


def test_it_executes_runs_and_answers_a_caller_that_waits(serve, tmp_path):
    server = serve("flow.py")
    hf.start(_flow(), {}, run_id="r1", store=tmp_path / ".holdfast" / "runs.db")
    status, run = server.get("/api/v1/runs/r1?wait=30&after=4")
    assert (status, run["status"], run["state"]) == (200, "completed", {"said": "hi"})
    assert server.end(signal.SIGINT) == (0, "")


def test_a_suggested_command_names_the_file_and_the_run_base(serve, tmp_path):
    (tmp_path / "other.py").write_text(FLOW.replace('"hello"', '"other"'))
    server = serve("other.py", "flow.py", "--no-work", "--run-base", "files")
    hf.start(_flow(), {}, run_id="r1", store=tmp_path / ".holdfast" / "runs.db", run_base=tmp_path / "files")
    commands = [one["command"] for one in server.get("/api/v1/runs/r1")[1]["remedies"]]
    assert commands
    assert all("--run-base files" in command for command in commands)
    assert not any("other.py" in command for command in commands)


def test_the_command_that_starts_a_run_works_in_every_folder(serve, tmp_path, tmp_path_factory):
    server = serve("flow.py", "--no-work")
    command = server.get("/api/v1/meta")[1]["run_command"]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    subprocess.run(
        [*shlex.split(command), "--run-id", "r1"], cwd=elsewhere, env=server.environment, check=True
    )
    assert server.get("/api/v1/runs/r1")[1]["status"] == "completed"


def test_without_work_it_executes_nothing_and_ends_at_once(serve, tmp_path):
    server = serve("flow.py", "--no-work")
    hf.start(_flow(), {}, run_id="r1", store=tmp_path / ".holdfast" / "runs.db")
    assert server.get("/api/v1/meta")[1]["features"] == []
    assert server.get("/api/v1/runs/r1?wait=1")[1]["status"] == "pending"
    assert server.end() == (0, "")


def test_a_running_node_gets_its_grace_and_the_server_answers_meanwhile(serve, tmp_path):
    server = serve("flow.py", "--grace", "1.5")
    store = tmp_path / ".holdfast" / "runs.db"
    hf.start(_flow(), {"long": True}, run_id="r1", store=store)
    assert server.get("/api/v1/runs/r1?wait=30&after=2")[1]["status"] == "running"
    server.process.send_signal(signal.SIGTERM)
    assert server.get("/api/v1/runs/r1")[0] == 200
    code, _ = server.end(signal.SIGCONT)
    assert code == 0
    assert hf.get("r1", store=store).status == "interrupted"


def test_the_environment_gives_the_token_and_the_line_has_only_the_address(serve, tmp_path):
    server = serve(HOLDFAST_TOKEN=SECRET)
    assert "#" not in server.link
    assert server.get("/api/v1/meta", token=SECRET)[0] == 200
    assert not list(tmp_path.rglob("*.token"))
    _, told = server.end()
    assert SECRET not in told


def test_no_token_is_needed_only_if_it_was_said(serve):
    server = serve("--no-token")
    assert server.link.endswith("/")
    status, about = server.get("/api/v1/meta", token="")
    assert (status, about["role"]) == (200, "admin")
    assert server.end()[0] == 0


def test_the_link_shows_the_public_address(serve):
    server = serve("--public-url", "https://holdfast.example.com/ops/", "--json")
    told = json.loads(server.link)
    assert told["url"].startswith("https://holdfast.example.com/ops/#token=")
    assert told["event"] == "began"
    assert server.end()[0] == 0


@pytest.mark.parametrize(
    ("words", "environment", "told"),
    [
        (["--host", "0.0.0.0"], {}, "--public-url"),
        (["--host", "0.0.0.0", "--no-token"], {}, "only for this machine"),
        (["--no-token", "--public-url", "https://x.example"], {}, "only for this machine"),
        (["--public-url", "x.example"], {}, "not a public URL"),
        ([], {"HOLDFAST_TOKEN": "short.one"}, "HOLDFAST_TOKEN"),
        (["--host", "256.1.1.1", "--public-url", "https://x.example"], {}, "--host"),
    ],
)  # fmt: skip
def test_what_would_be_unsafe_is_refused(tmp_path, monkeypatch, capsys, words, environment, told):
    furnish(tmp_path, monkeypatch)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ended = caller(capsys)("serve", "--port", "0", *words)
    assert ended.code == 2
    assert told in ended.err
    assert "short.one" not in ended.err


def test_a_port_in_use_is_reported(serve, tmp_path):
    port = urlsplit(serve("--no-token").link).port
    other = Server(tmp_path, "--no-token", "--port", str(port))
    _, said = other.process.communicate(timeout=PATIENCE_S)
    assert other.process.returncode == 2
    assert "--port" in said


@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
def test_an_installation_without_the_extra_says_what_to_install(tmp_path, package):
    program = f"import sys; sys.modules[{package!r}] = None; from holdfast.cli import main; main()"
    paths = os.pathsep.join(path for path in sys.path if path)
    ended = subprocess.run(
        [sys.executable, "-c", program, "serve", "--no-token", "--port", "0"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "pip install 'holdfast[server]'" in ended.stderr


# --- the file of the token -----------------------------------------------------------------------------


def test_a_token_that_others_may_read_is_not_used(tmp_path):
    file = tmp_path / "a.token"
    _, text = token_file.from_file(file, "ada", 0.0)
    file.chmod(0o640)
    with pytest.raises(SettingError, match="others may read"):
        token_file.from_file(file, "ada", 0.0)
    file.chmod(0o600)
    assert token_file.from_file(file, "ada", 0.0)[1] == text


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path):
    (tmp_path / "real").write_text("t.0123456789abcdef0123")
    (tmp_path / "a.token").symlink_to(tmp_path / "real")
    with pytest.raises(SettingError, match="cannot be read"):
        token_file.from_file(tmp_path / "a.token", "ada", 0.0)


def test_a_file_without_a_token_is_reported(tmp_path):
    (tmp_path / "a.token").write_text("nonsense")
    (tmp_path / "a.token").chmod(0o600)
    with pytest.raises(SettingError, match="does not contain a token"):
        token_file.from_file(tmp_path / "a.token", "ada", 0.0)


def test_the_token_of_another_store_is_in_the_state_folder(tmp_path):
    one = token_file.place_for("postgresql://u:secret@h/d", {"XDG_STATE_HOME": str(tmp_path)})
    other = token_file.place_for("postgresql://u:secret@h/e", {"XDG_STATE_HOME": str(tmp_path)})
    assert one != other
    assert one.parent == tmp_path / "holdfast"
    assert "secret" not in str(one)
    token, text = token_file.from_file(one, "ada", 5.0)
    assert (token.role, token.name, token.fits(text.partition(".")[2])) == ("admin", "ada", True)
    assert stat.S_IMODE(one.parent.stat().st_mode) == 0o700


def _flow():
    graph = hf.Graph("hello")
    graph.node(name="greet")(lambda state: {"said": "hi"})
    return graph.chain(hf.START, "greet", hf.END).compile()


def until_completed(server: Server, run_id: str) -> None:
    seq = 0
    while (run := server.get(f"/api/v1/runs/{run_id}?wait=30&after={seq}")[1])["status"] != "completed":
        assert run["seq"] >= seq, run
        seq = run["seq"]


def test_a_server_gives_nodes_resources_and_follows_changes_that_it_accepts(serve, tmp_path):
    older = hf.Graph("hello")
    older.node(name="salute", approve="Go on?")(lambda state: {})
    older.edge(hf.START, "salute").edge("salute", hf.END)
    store = tmp_path / ".holdfast" / "runs.db"
    assert hf.run(older.compile(), {}, run_id="old", store=store).status == "waiting"
    (tmp_path / "means.py").write_text("names = {'name': 'Ada'}")
    (tmp_path / "new.py").write_text(
        FLOW.replace("@graph.node", "@graph.node(approve='Go on?')")
        .replace("greet(state)", "greet(state, ctx)")
        .replace('"hi"', "ctx.resources['name']")
    )
    server = serve("new.py", "--rename", "salute=greet", "--resources", "means.py:names")
    with hf.BlockingClient(server.link.partition("#")[0], server.token) as client:
        assert client.preview("old", "resume").refused is None
        run = client.answer("old", "salute", "approve", wait=30)
    assert (run.status, run.state) == ("completed", {"said": "Ada"})
    server.end()


def test_a_run_that_the_server_refuses_is_explained_in_its_output_and_in_the_api(serve, tmp_path):
    older = hf.Graph("hello")
    older.node(name="greet")(lambda state: {"said": "hi"})
    older.node(name="bow")(lambda state: {})
    flow = older.chain(hf.START, "greet", "bow", hf.END).compile()
    hf.start(flow, {}, run_id="old", store=tmp_path / ".holdfast" / "runs.db")
    server = serve("flow.py")
    hf.start(_flow(), {}, run_id="new", store=tmp_path / ".holdfast" / "runs.db")
    until_completed(server, "new")
    assert (
        server.process.stderr.readline()
        == "trouble: run 'old' was not resumed: the flow has changed in shape: node bow is no longer in the flow. Use "
        'on_change="compatible" (--on-change compatible) if the run may continue with the new flow, rename={"old": "new"} '
        "(--rename old=new) if a "
        "node has a new name, a fork, or the old code. This worker tries the run again later; another worker may claim it.\n"
    )
    assert "# resume it" in server.process.stderr.readline()
    printed = server.process.stderr.readline().removeprefix("  $ ").rstrip()
    run = server.get("/api/v1/runs/old")[1]
    (listed,) = server.get("/api/v1/runs?attention=true")[1]["runs"]
    refuses = f"process {server.process.pid} on "
    for reason in (run["reason"], listed["reason"]):
        assert reason.startswith("its flow has changed in shape: node bow is no longer in the flow; ")
        assert f"; no live worker can continue it: {refuses}" in reason
    assert run["remedies"][0]["arguments"] == {"run": "old", "on_change": "compatible"}
    assert listed["remedy"] == run["remedies"][0]
    assert shlex.split(printed)[1:] == shlex.split(run["remedies"][0]["command"])[1:]
    subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *shlex.split(printed)[1:]],
        cwd=tmp_path, env=server.environment, check=True, capture_output=True,
    )  # fmt: skip
    until_completed(server, "old")
    server.end()
