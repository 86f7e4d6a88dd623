"""Workers as processes of their own, on one SQLite file and on PostgreSQL: killed, stopped, and told to drain.

Node bodies write to a witness file beside Holdfast, so that what was executed is known without asking the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import forked
import holdfast as hf
from holdfast.reading import verification
from holdfast.storage.urls import open_store
from postgres_server import drop_schema, schema_for, shared_url

PROGRAM = Path(__file__).parent / "programs" / "fleet.py"
RUNS = 60
PATIENCE_S = 60

SLOW = """
import sys
from holdfast import END, START, Graph

graph = Graph("slow", dict)

@graph.node
def only(state):
    print("begun", flush=True)
    sys.stdin.readline()
    return {"only": 1}

@graph.node
def behind(state):
    return {"behind": 1}

flow = graph.chain(START, "only", "behind", END).compile()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "runs.db")
        return
    schema = schema_for(tmp_path)
    server = shared_url()
    yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    drop_schema(server, schema)


class Worker:
    """`holdfast worker`, as a process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = forked.Popen(
            [sys.executable, "-m", "holdfast.cli", "worker", *arguments],
            cwd=folder,
            env=environment | {"WITNESS": str(folder / "witness"), "HOLDFAST_LEASE_TTL": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def ended(self) -> tuple[int, str]:
        told, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, told


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Any]:
    """Makes workers, and leaves none behind."""
    made: list[Worker] = []

    def make(*arguments: str) -> Worker:
        made.append(Worker(tmp_path, *arguments))
        return made[-1]

    yield make
    for worker in made:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.communicate()


def witnessed(folder: Path) -> Counter[tuple[str, str]]:
    """(run, node) -> how often it was executed."""
    file = folder / "witness"
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter((run_id, node) for run_id, node, _, _ in map(str.split, lines))


def flow_in(file: Path) -> Any:
    return runpy.run_path(str(file))["flow"]


def start_all(url: str, flow: Any, count: int) -> None:
    async def main() -> None:
        async with hf.Engine(url) as engine:
            for number in range(count):
                await engine.start(flow, {}, run_id=f"r{number}")

    asyncio.run(main())


async def until_completed(url: str, count: int) -> None:
    async with hf.Engine(url) as engine:
        for number in range(count):
            await engine.wait(f"r{number}")


def test_a_fleet_completes_every_run_though_one_is_killed_and_one_is_stopped(
    url: str, fleet: Any, tmp_path: Path
) -> None:
    start_all(url, flow_in(PROGRAM), RUNS)
    workers = [fleet(str(PROGRAM), "--store", url, "--concurrency", "5") for _ in range(3)]
    killed, stopped, rest = workers
    for worker in (killed, stopped):
        assert worker.line().startswith("worker")
        assert worker.line().startswith(("completed", "waiting"))  # it is in the middle of it
    killed.process.kill()
    stopped.process.send_signal(signal.SIGTERM)
    code, told = stopped.ended()
    assert (code, told.splitlines()[-1].startswith("stopped")) == (0, True), told
    asyncio.run(asyncio.wait_for(until_completed(url, RUNS), PATIENCE_S))
    rest.process.send_signal(signal.SIGTERM)
    assert rest.ended()[0] == 0

    refuse_repeats(url, tmp_path)


def refuse_repeats(url: str, folder: Path) -> None:
    """Every node was executed, and none again but what was cut."""
    times = witnessed(folder)
    assert set(times) == {(f"r{n}", node) for n in range(RUNS) for node in ("first", "second", "fourth")}
    store = open_store(url)
    cut: set[tuple[str, str]] = set()
    for number in range(RUNS):
        run_id = f"r{number}"
        assert verification.verify(store, run_id).problems == []
        started = Counter(row.node for row in store.events(run_id, kinds=("NodeStarted",)))
        ended = Counter(row.node for row in store.events(run_id, kinds=("NodeCompleted",)))
        assert set(ended.values()) == {1}  # nothing that was recorded was executed again
        cut |= {(run_id, node) for node in started if started[node] > ended[node] and node is not None}
    again = {visit for visit, count in times.items() if count > 1}
    assert again <= cut, "executed again although nothing had cut it"
    store.close()


def pause(worker: Worker, url: str) -> None:
    """Have a process stand still outside of a write to SQLite: inside of one it keeps the file's only write lock, and nobody
    can write until it wakes (docs/concepts.md says so). So the lock is held here until the process has stopped.
    """
    if url.startswith("postgresql://"):
        stop(worker)
        return
    connection = apsw.Connection(url)
    connection.set_busy_timeout(PATIENCE_S * 1000)
    connection.execute("begin immediate")
    stop(worker)
    connection.execute("rollback")
    connection.close()


def stop(worker: Worker) -> None:
    worker.process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(worker.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_what_a_worker_holds_that_stands_still_is_taken_over_and_it_does_no_harm_when_it_wakes(
    url: str, fleet: Any, tmp_path: Path
) -> None:
    start_all(url, flow_in(PROGRAM), RUNS)
    paused = fleet(str(PROGRAM), "--store", url, "--concurrency", "5")
    assert paused.line().startswith("worker")
    assert paused.line().startswith(("completed", "waiting"))
    pause(paused, url)  # alive, and beyond its lease in a second
    rest = fleet(str(PROGRAM), "--store", url, "--concurrency", "5")
    asyncio.run(asyncio.wait_for(until_completed(url, RUNS), PATIENCE_S))
    paused.process.send_signal(signal.SIGCONT)
    for worker in (paused, rest):
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ended()[0] == 0
    refuse_repeats(url, tmp_path)


def test_a_worker_that_is_told_to_stop_leaves_in_order_and_its_run_on_offer(
    url: str, fleet: Any, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    worker = fleet("slow.py:flow", "--store", url, "--grace", "30")
    assert worker.line().startswith("worker  slow")
    flow = flow_in(tmp_path / "slow.py")
    hf.start(flow, {}, run_id="r", store=url)
    assert worker.line() == "begun"
    worker.process.send_signal(signal.SIGTERM)
    assert worker.line().startswith("draining  1 run is still executed")
    worker.process.stdin.write("\n")
    worker.process.stdin.flush()
    code, told = worker.ended()
    assert code == 0, told
    assert told.splitlines()[-2].startswith("interrupted  r"), told
    run = hf.get("r", store=url)
    assert (run.status, run.held_by) == ("interrupted", None)
    assert hf.events("r", store=url)[-1].kind == "RunInterrupted"
    code, told = fleet("slow.py:flow", "--store", url, "--until-idle").ended()
    assert (code, "completed  r" in told) == (0, True), told
    tries = Counter(event.node for event in hf.events("r", store=url, kind="NodeStarted"))
    assert tries["only"] == 1  # it ended within its grace, so it is never run again


def test_a_second_signal_leaves_at_once(fleet: Any, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    url = str(tmp_path / "runs.db")
    hf.start(flow_in(tmp_path / "slow.py"), {}, run_id="r", store=url)
    worker = fleet("slow.py:flow", "--store", url)
    assert worker.line().startswith("worker")
    assert worker.line() == "begun"
    worker.process.send_signal(signal.SIGTERM)
    assert worker.line().startswith("draining")
    worker.process.send_signal(signal.SIGTERM)
    code, told = worker.ended()
    assert (code, "stopped at once" in told) == (143, True), told


def test_a_worker_speaks_json_for_programs(fleet: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "runs.db")
    start_all(url, flow_in(PROGRAM), 2)
    code, told = fleet(str(PROGRAM), "--store", url, "--json", "--until-idle", "--queue", "default").ended()
    lines = [json.loads(line) for line in told.splitlines()]
    assert code == 0
    assert lines[0]["event"] == "began"
    assert lines[0]["flows"] == ["fleet"]
    assert {line["id"]: line["status"] for line in lines if line["event"] == "run"} == {
        "r0": "completed",
        "r1": "completed",
    }
    assert lines[-1] == {"event": "left", "in_order": True, "runs": 2}


def test_a_worker_tells_of_what_it_cannot_take_up_and_goes_on(fleet: Any, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    url = str(tmp_path / "runs.db")
    changed = hf.Graph("slow", dict)
    changed.node(name="gone")(lambda state: None)
    hf.start(changed.chain(hf.START, "gone", hf.END).compile(), {}, run_id="r", store=url)
    code, told = fleet("slow.py:flow", "--store", url, "--until-idle").ended()
    assert code == 0
    assert "trouble: run 'r' was not resumed: the flow has changed" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "a worker needs flows"),
        (["nowhere.py"], "does not exist"),
        ([str(PROGRAM), "--queue", "no way"], "is not a valid queue name"),
        ([str(PROGRAM), "--concurrency", "0"], "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_with_2(
    fleet: Any, tmp_path: Path, arguments: list[str], told: str
) -> None:
    code, said = fleet(*arguments, "--store", str(tmp_path / "runs.db")).ended()
    assert code == 2, said
    assert told in said


# --- who takes what ----------------------------------------------------------------------------------


def doctor(folder: Path, url: str) -> list[tuple[str, str, list[str]]]:
    """What `holdfast doctor` says about runs: the run, the reason and the commands that it suggests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    told = forked.run(
        [sys.executable, "-m", "holdfast.cli", "doctor", "--json", "--store", url],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )
    return [
        (
            found["run_id"],
            found["reason"],
            [" ".join(one["command"].split()[1:-2]) for one in found["remedies"]],
        )
        for found in json.loads(told.stdout)["findings"]
        if found["run_id"] is not None
    ]


def test_doctor_names_a_run_exactly_while_no_live_worker_can_take_it(
    url: str, fleet: Any, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    start_all(url, flow_in(tmp_path / "slow.py"), 2)
    commands = ["worker FILE.py", "resume {} FILE.py"]
    alone = "recorded, but not started, and no live worker takes flow 'slow'"
    named = {(run_id, alone, *(one.format(run_id) for one in commands)) for run_id in ("r0", "r1")}
    assert {(run_id, why, *ways) for run_id, why, ways in doctor(tmp_path, url)} == named
    worker = fleet("slow.py", "--store", url, "--concurrency", "1")
    while worker.line() != "begun":
        pass
    assert doctor(tmp_path, url) == []  # it is busy, and takes the second run later
    worker.process.send_signal(signal.SIGTERM)
    ends_at = time.monotonic() + PATIENCE_S
    while not (found := doctor(tmp_path, url)):  # until the worker has noticed the signal
        assert time.monotonic() < ends_at
    assert [(run_id, why) for run_id, why, _ in found] == [("r1", alone)]
    assert worker.process.poll() is None
    worker.process.kill()
    worker.process.wait()
    assert {run_id for run_id, _, _ in doctor(tmp_path, url)} == {"r0", "r1"}


def said(url: str, *words: str) -> str:
    """Return what a command prints, in a process of its own."""
    command = [sys.executable, "-m", "holdfast.cli", *words, "--store", url]
    done = forked.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def begin(url: str, fleet: Any, folder: Path) -> Worker:
    """Let a worker execute the run `r`, up to the middle of its first node."""
    (folder / "slow.py").write_text(SLOW)
    worker: Worker = fleet("slow.py:flow", "--store", url)
    assert worker.line().startswith("worker  slow")
    hf.start(flow_in(folder / "slow.py"), {}, run_id="r", store=url)
    assert worker.line() == "begun"
    return worker


def test_a_run_that_is_paused_during_a_long_node_of_a_worker_is_pausing_until_the_node_has_ended(
    url: str, fleet: Any, tmp_path: Path
) -> None:
    worker = begin(url, fleet, tmp_path)
    asked = said(url, "pause", "r", "--by", "ann", "--reason", "tea time")
    assert asked.startswith("pausing  r: the pause is recorded, and the run is paused when only has ended"), (
        asked
    )
    assert json.loads(said(url, "pause", "r", "--json"))["pausing"]
    assert "r  flow slow  pausing" in said(url, "show", "r")
    assert "executes it, now in only; a pause" in said(url, "show", "r")
    assert "pausing" in said(url, "runs", "--status", "running")
    assert [(one["status"], one["pausing"]) for one in json.loads(said(url, "runs", "--json"))] == [
        ("running", True)
    ]
    assert json.loads(said(url, "show", "r", "--json"))["pausing"]
    run = hf.get("r", store=url)
    assert (run.status, run.pausing, hf.runs(store=url)[0].pausing) == ("running", True, True)
    assert worker.process.stdin is not None
    worker.process.stdin.write("\n")
    worker.process.stdin.flush()
    assert worker.line().startswith("paused  r")
    run = hf.get("r", store=url)
    assert (run.status, run.pausing, run.state) == ("paused", False, {"only": 1})
    assert "pausing" not in said(url, "show", "r") + said(url, "runs")


def test_a_run_whose_worker_is_killed_while_it_is_pausing_is_not_pausing_for_ever(
    url: str, fleet: Any, tmp_path: Path
) -> None:
    worker = begin(url, fleet, tmp_path)
    assert said(url, "pause", "r", "--by", "ann").startswith("pausing")
    worker.process.kill()
    worker.process.wait()
    with closing(open_store(url)) as store:
        deadline = time.monotonic() + PATIENCE_S
        while store.run("r").held:  # until its lease has expired, or its process is known to be dead
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert "running, crashed" in (told := said(url, "show", "r"))
        assert "a pause by ann is recorded, so nothing of it starts until it is resumed" in told
        code, told = fleet("slow.py:flow", "--store", url, "--until-idle").ended()
        assert (code, store.run("r").status) == (0, "paused"), told
    assert "paused by ann until it is resumed" in said(url, "show", "r")
