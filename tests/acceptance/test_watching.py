"""`holdfast watch`: an operator looks at runs in a terminal while processes execute them, die, and are replaced."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postgres_server import PostgresServer
from served_process import PATIENCE_S, Installation, kill
from terminal import Terminal

STORY = """
import os
import time
import holdfast as hf

graph = hf.Graph("story")

@graph.node
def plan(state):
    return {"plan": 1}

@graph.node
def write(state):
    ctx = hf.current()
    ctx.emit(f"once upon a time, attempt {ctx.attempt}\\n")
    ctx.emit("there was a \\x1b[31mharbour\\n")
    while not os.path.exists("go"):
        time.sleep(0.01)
    return {"text": "a tale"}

@graph.node(approve="Publish the tale?")
def publish(state):
    return {"published": True}

flow = graph.chain(hf.START, plan, write, publish, hf.END).compile()
"""

Watch = Callable[..., Terminal]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path)
    (tmp_path / "flow.py").write_text(STORY)
    yield installation
    installation.close()


@pytest.fixture
def watch(here: Installation) -> Iterator[Watch]:
    opened: list[Terminal] = []

    def begin(*words: str, columns: int = 80, rows: int = 24, **environment: str) -> Terminal:
        command = [sys.executable, "-m", "holdfast.cli", "watch", *words]
        env = here.environment(**environment)
        opened.append(Terminal(command, columns=columns, rows=rows, env=env, cwd=str(here.folder)))
        return opened[-1]

    yield begin
    for terminal in opened:
        terminal.close()


def done(called: subprocess.CompletedProcess[str]) -> None:
    assert called.returncode == 0, called.stderr


def test_an_operator_watches_a_run_whose_worker_is_killed_until_it_is_completed(
    here: Installation, watch: Watch
) -> None:
    done(here.call("start", "flow.py", "--run-id", "r1"))
    terminal = watch("r1")
    terminal.until("pending", "r1", "no live worker takes flow 'story'")
    first = here.work()
    terminal.until("▶ running", f"process {first.pid} on", "once upon a time, attempt 1", "harbour")
    assert "✓ completed" in terminal.screen.text  # the node before
    kill(first)
    terminal.until("↯ crashed", f"process {first.pid} on", "harbour")
    second = here.work()
    terminal.until(f"process {second.pid} on", "died", "attempt 2", "once upon a time, attempt 2")
    here.let_drafts_end()
    terminal.until("◆ waiting", "publish asks: Publish the tale?", "approve / reject", without="▶ running")
    done(here.call("answer", "r1", "publish", "approve"))
    assert terminal.ended() == 0
    assert "✓ completed  r1" in terminal.screen.text
    assert "The run is over: it was completed." in terminal.screen.text


def test_an_operator_watches_all_runs(here: Installation, watch: Watch) -> None:
    terminal = watch(rows=12)
    terminal.until("error: there is no store")
    assert terminal.ended() == 6
    done(here.call("start", "flow.py", "--run-id", "r1"))
    terminal = watch(columns=100, rows=9)
    terminal.until("1 needs attention", "◌ pending", "r1", "story")
    first = here.work()
    terminal.until("▶ running", f"process {first.pid} on", without="attention")
    kill(first)
    terminal.until("↯ crashed", "1 needs attention")
    for number in range(5):
        done(here.call("start", "flow.py", "--run-id", f"more-{number}"))
    terminal.until("more-4", "… 2 more runs")
    terminal.type(b"\x03")
    assert terminal.ended() == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_and_restores_the_terminal(
    here: Installation, watch: Watch, number: int, code: int
) -> None:
    done(here.call("start", "flow.py", "--run-id", "r1"))
    terminal = watch("r1")
    terminal.until("pending", "r1")
    assert terminal.screen.is_alternate
    assert not terminal.screen.has_cursor
    terminal.process.send_signal(number)
    assert terminal.ended() == code
    assert "Traceback" not in terminal.screen.text
    assert "r1 is not affected" in terminal.screen.text


def test_a_pipe_gets_a_line_for_each_change_and_no_control_codes(here: Installation) -> None:
    done(here.call("start", "flow.py", "--run-id", "r1"))
    process = here.begin("watch", "r1")
    assert process.stdout is not None
    assert "◌ pending  r1  story  recorded, but not started" in process.stdout.readline()
    first = here.work()
    lines = []
    while "▶ write" not in (line := process.stdout.readline()):
        lines.append(line)
        assert line, lines
    kill(first)
    while "↯ crashed  r1" not in (line := process.stdout.readline()):
        lines.append(line)
        assert line, lines
    here.work()
    here.let_drafts_end()
    while "publish asks" not in (line := process.stdout.readline()):
        lines.append(line)
        assert line, lines
    done(here.call("answer", "r1", "publish", "approve"))
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "The run is over: it was completed." in rest.splitlines()[-1]
    assert "\x1b" not in "".join(lines) + rest


def test_a_server_that_is_away_for_a_while_is_shown_and_then_forgotten(
    here: Installation, watch: Watch
) -> None:
    url = here.serve("flow.py")
    port = int(url.rpartition(":")[2])
    done(here.call("start", "flow.py", "--run-id", "r1", "--store", url))
    terminal = watch("r1", "--store", url, columns=120)
    terminal.until("▶ running", "harbour")
    kill(here.server)
    terminal.until("No answer since", "r1", "harbour")
    here.serve("flow.py", port=port)
    terminal.until("▶ running", "once upon a time, attempt 2", without="No answer since")
    here.let_drafts_end()
    terminal.until("◆ waiting")
    terminal.type(b"\x03")
    assert terminal.ended() == 130


def test_ctrl_c_ends_the_command_also_while_a_server_does_not_answer(
    here: Installation, watch: Watch
) -> None:
    url = here.serve("flow.py")
    done(here.call("start", "flow.py", "--run-id", "r1", "--store", url))
    terminal = watch("--store", url, columns=120)
    terminal.until("▶ running", "r1")
    here.server.send_signal(signal.SIGSTOP)
    terminal.until("waiting for the store", "r1")
    terminal.type(b"\x03")
    assert terminal.ended() == 130


def test_keys_are_not_shown_and_ctrl_z_leaves_the_terminal_to_the_shell(
    here: Installation, watch: Watch
) -> None:
    done(here.call("start", "flow.py", "--run-id", "r1"))
    terminal = watch("r1")
    terminal.until("pending")
    terminal.type(b"rm -r typed\n")
    terminal.type(b"\x1a")
    # No shell waits here that could let it continue, so the system does not stop it.
    terminal.until(where=lambda text: terminal.screen.entered == 2)
    here.work()
    terminal.until("▶ running", without="typed")
    terminal.resize(40, 20)
    terminal.until("▶ running", "Live", where=lambda text: max(map(len, text.splitlines())) <= 40)
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    assert "typed" not in terminal.screen.text


def test_a_postgresql_server_that_restarts_is_watched_on(here: Installation, watch: Watch) -> None:
    server = PostgresServer()
    url = server.url()
    done(here.call("start", "flow.py", "--run-id", "r1", "--store", url))
    terminal = watch("--store", url, columns=120)
    terminal.until("◌ pending", "r1")
    one = watch("r1", "--store", url, columns=120)
    one.until("◌ pending", "r1", "no live worker")
    server.stop()
    terminal.until("No answer since", "r1")
    one.until("No answer since", "r1")
    server.start()
    done(here.call("cancel", "r1", "--store", url))
    terminal.until("⊘ cancelled", "r1", without="No answer since")
    one.until("The run is over: it was cancelled.")
    assert one.ended() == 8
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    server.remove()
