"""Nodes in processes of their own: real processes, really killed."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import itertools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import process_nodes as nodes
import pytest
from harness import until
from process_nodes import Page, Work

import holdfast as hf
from holdfast import END, START, Flow, Graph, Retry
from holdfast.reading.text import not_cleaned_up
from holdfast.runtime.calls.process.executor import ProcessExecutor
from holdfast.storage.urls import open_store
from holdfast.testing.clock import ManualClock

PATIENCE_S = 60
NOW = Retry(attempts=3, backoff=0.0)


_numbers = itertools.count()


def fresh() -> str:
    """A store of its own."""
    return f"memory://processes-{next(_numbers)}"


def one(fn: Callable[..., Any], **options: Any) -> Flow[Work]:
    """A flow of one node, in a process of its own."""
    graph = Graph("one", Work)
    graph.node(name="only", **{"executor": "process", **options})(fn)
    return graph.chain(START, "only", END).compile()


def chain(*fns: Callable[..., Any]) -> Flow[Work]:
    graph = Graph("chain", Work)
    for fn in fns:
        graph.node(executor="process")(fn)
    return graph.chain(START, *fns, END).compile()


def using(url: str, use: Callable[[hf.Engine], Awaitable[Any]], *flows: Flow[Any], **options: Any) -> Any:
    async def main() -> Any:
        async with hf.Engine(url, flows=flows, **options) as engine:
            return await asyncio.wait_for(use(engine), PATIENCE_S)

    return asyncio.run(main())


def run(flow: Flow[Work], given: Work | None = None, *, url: str = "", **options: Any) -> hf.Run[Work]:
    return using(url or fresh(), lambda engine: engine.run(flow, given or Work(), run_id="r"), **options)


def failure(flow: Flow[Work], **options: Any) -> hf.Run[Work]:
    with pytest.raises(hf.RunFailed) as failed:
        run(flow, **options)
    return failed.value.run


class Witness:
    """Reads a pipe that the process of a node holds."""

    def begun(self, pipe: str) -> None:
        self._pipe = os.open(pipe, os.O_RDONLY)
        assert self._read() == b"begun"

    def end(self) -> None:
        """Nobody holds the pipe any more, and nothing else was written."""
        assert self._read() == b""
        os.close(self._pipe)

    def _read(self) -> bytes:
        assert select.select([self._pipe], [], [], PATIENCE_S)[0], "the process still lives"
        return os.read(self._pipe, 100)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "runs.db")


# --- results ------------------------------------------------------------------------------------------


def test_typed_values_go_there_and_come_back() -> None:
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    ended = run(chain(nodes.typed, nodes.whole), Work(pages=[Page("a", at)], total=decimal.Decimal("0.2")))
    state = ended.state
    assert state.pages == [Page("a", at), Page("b", dt.datetime(2024, 1, 2, tzinfo=dt.UTC))]
    assert (state.total, state.raw, state.tags) == (decimal.Decimal("0.3"), b"\x00\xff", {"x", "y", "whole"})
    assert all(entry["pid"] != os.getpid() for entry in state.log)


def test_what_does_not_fit_the_state_fails_the_node_as_it_does_anywhere() -> None:
    there, here = (
        failure(one(nodes.wrong_type)).error,
        failure(one(nodes.wrong_type, executor="thread")).error,
    )
    assert (there.kind, there.type, there.message) == (here.kind, here.type, here.message)


def test_an_exception_comes_back_with_the_traceback_of_the_node() -> None:
    def told(executor: str) -> Any:
        flow = one(nodes.raise_value, executor=executor)
        failure(flow, url=f"memory://{executor}")
        events = using(f"memory://{executor}", lambda engine: engine.events("r", kind="NodeFailed"))
        return events[0].body["failure"]

    there, here = told("process"), told("thread")
    assert there == here
    assert 'raise ValueError("wrong")' in there["traceback"]


def test_sixteen_items_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_PIPES", str(tmp_path))
    for number in range(16):
        os.mkfifo(tmp_path / f"begun-{number}")
        os.mkfifo(tmp_path / f"go-{number}")

    def let_go() -> None:
        for number in range(16):
            assert (tmp_path / f"begun-{number}").read_text() == "begun"
        for number in range(16):
            (tmp_path / f"go-{number}").write_text("")

    async def use(engine: hf.Engine) -> Any:
        ended, _ = await asyncio.gather(engine.run(flow, Work()), asyncio.to_thread(let_go))
        return ended

    flow = one(nodes.together, each=lambda state: range(16), limit=16)
    assert using(fresh(), use, processes=16).state.log == [f"{number} {number}" for number in range(16)]


# --- killing ------------------------------------------------------------------------------------------


def test_a_timeout_kills_the_process_and_all_that_it_started(pipe: str) -> None:
    clock = ManualClock()

    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(flow, Work(pipe=pipe)))
        await asyncio.to_thread(witness.begun, pipe)
        clock.advance(10.1)
        await asyncio.to_thread(witness.end)
        with pytest.raises(hf.RunFailed, match="took longer than 10 s"):
            await going

    flow = one(nodes.hog, timeout=10, retry=1)
    witness = Witness()
    using(fresh(), use, clock=clock)


def test_the_next_attempt_after_a_timeout_gets_a_process_of_its_own(pipe: str) -> None:
    clock = ManualClock()
    witness = Witness()

    async def use(engine: hf.Engine) -> Any:
        going = asyncio.create_task(engine.run(flow, Work(pipe=pipe)))
        await asyncio.to_thread(witness.begun, pipe)
        clock.advance(10.1)
        await asyncio.to_thread(witness.end)
        return await going

    flow = one(nodes.hog_once, timeout=10, retry=NOW)
    assert using(fresh(), use, clock=clock).state.log == ["attempt 2"]


def test_a_cancelled_run_kills_the_process(pipe: str) -> None:
    witness = Witness()

    async def use(engine: hf.Engine) -> Any:
        going = asyncio.create_task(engine.run(flow, Work(pipe=pipe), run_id="r"))
        await asyncio.to_thread(witness.begun, pipe)
        await engine.cancel("r")
        await asyncio.to_thread(witness.end)
        with pytest.raises(hf.RunCancelled):
            await going

    flow = one(nodes.hog)
    using(fresh(), use)


def test_a_cancelled_run_names_the_node_whose_process_was_killed_and_what_it_has_kept(
    pipe: str, url: str
) -> None:
    witness = Witness()

    async def use(engine: hf.Engine) -> Any:
        going = asyncio.create_task(engine.run(flow, Work(pipe=pipe), run_id="r"))
        await asyncio.to_thread(witness.begun, pipe)
        await engine.cancel("r")
        await asyncio.to_thread(witness.end)
        with pytest.raises(hf.RunCancelled):
            await going
        return await engine.get("r")

    flow = one(nodes.books)
    (left,) = using(url, use).uncleaned
    assert (left.node, left.iteration, left.why, left.steps) == ("only", 1, "killed", ["book"])
    assert not_cleaned_up(left) == (
        "only ran in a process of its own, which was killed, so its cleanup did not run; its kept steps: book"
    )


def test_an_engine_that_closes_kills_the_process_and_a_resume_runs_the_node_again(
    pipe: str, url: str
) -> None:
    witness = Witness()

    async def use(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.run(flow, Work(pipe=pipe), run_id="r"))
        await asyncio.to_thread(witness.begun, pipe)
        engine.stop()
        await asyncio.to_thread(witness.end)
        assert (await going).status == "interrupted"

    flow = one(nodes.hog_once)
    using(url, use, grace=0)
    assert using(url, lambda engine: engine.resume("r"), flow).state.log == ["attempt 2"]


def test_an_engine_that_is_killed_leaves_no_process_behind(pipe: str, url: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "import holdfast as hf\n"
        "import process_nodes as nodes\n"
        "from test_process_executor import one\n"
        "hf.run(one(nodes.hog), nodes.Work(pipe=sys.argv[1]), run_id='r', store=sys.argv[2])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    engine = subprocess.Popen([sys.executable, program, pipe, url], env=environment)
    witness = Witness()
    witness.begun(pipe)
    engine.kill()
    witness.end()
    assert engine.wait() == -signal.SIGKILL
    again = using(url, lambda engine: engine.resume("r"), one(nodes.pid))
    assert len(again.state.log) == 1


# --- dying --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "options", "told"),
    [
        (nodes.segfault, {}, "the process of node 'only' was killed by signal SIGSEGV"),
        (nodes.leave, {}, "the process of node 'only' exited with code 3"),
        (nodes.fork_and_leave, {}, "the process of node 'only' exited with code 3"),
        (nodes.eat, {"memory_limit": 200 * 2**20}, "reached its memory limit of 209,715,200 bytes"),
    ],
)
def test_a_process_that_dies_is_a_failure_of_the_node_and_not_of_the_engine(
    fn: Callable[..., Any], options: dict[str, Any], told: str
) -> None:
    async def use(engine: hf.Engine) -> Any:
        with pytest.raises(hf.RunFailed) as failed:
            await engine.run(one(fn, retry=1, **options), Work())
        assert (await engine.run(chain(nodes.pid), Work())).status == "completed"
        return failed.value.run.error

    error = using(fresh(), use)
    assert told in error.message
    assert error.kind == "partial"


def test_a_process_may_use_what_its_memory_limit_allows() -> None:
    assert run(one(nodes.eat, memory_limit=800 * 2**20)).state.log == [300 * 2**20]


def test_a_failure_says_where_the_process_was_when_it_died() -> None:
    failure(one(nodes.segfault, retry=1), url="memory://crash")
    [failed] = using("memory://crash", lambda engine: engine.events("r", kind="NodeFailed"))
    assert "in segfault" in failed.body["failure"]["traceback"]


def test_a_process_that_died_is_tried_again_by_the_nodes_retry() -> None:
    assert run(one(nodes.segfault_once, retry=NOW)).state.log == ["attempt 2"]
    assert failure(one(nodes.leave, retry=NOW)).nodes["only"].attempt == 3


def test_a_process_that_died_inside_a_node_that_is_not_idempotent_is_asked_about() -> None:
    async def use(engine: hf.Engine) -> Any:
        ended = await engine.run(one(nodes.leave, idempotent=False), Work(), run_id="r")
        assert ended.status == "waiting"
        return await engine.questions("r")

    [question] = using(fresh(), use)
    assert "exited with code 3" in question.question.text


# --- with a context -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [nodes.steps, nodes.async_steps])
def test_steps_and_checkpoints_outlive_the_process(fn: Callable[..., Any]) -> None:
    async def use(engine: hf.Engine) -> Any:
        ended = await engine.run(one(fn, retry=NOW), Work(), run_id="r")
        return ended, await engine.events("r")

    ended, events = using(fresh(), use)
    year, before, squares, _, pid = ended.state.log
    assert (year, before, squares) == (2024, {"attempt": 1}, [1, 4, 9])
    assert pid != os.getpid()
    assert (ended.cost.usd, ended.cost.tokens) == (0.5, 7)
    kinds = [event.kind for event in events]
    assert kinds.count("StepCompleted") == 4
    assert [event.body["chunks"] for event in events if event.kind == "NodeStreamed"] == [[{"chunk": 1}]]


@pytest.mark.parametrize("fn", [nodes.saga, nodes.async_saga])
def test_the_outcome_of_a_step_outlives_the_process(fn: Callable[..., Any]) -> None:
    async def use(engine: hf.Engine) -> Any:
        ended = await engine.run(one(fn, retry=NOW), Work(), run_id="r")
        return ended, await engine.events("r", kind="StepFailed")

    ended, [failed] = using(fresh(), use)
    name, text, pid, *kept = ended.state.log
    assert (name, text, kept) == ("Declined", "no", [True, True])
    assert failed.body["arguments"] == ["no", pid]
    assert (failed.attempt, failed.body["failure"]["type"]) == (1, "Declined")


def test_the_outcome_of_a_step_that_leaves_its_process_is_not_retried() -> None:
    failed = failure(one(nodes.declines, retry=NOW)).nodes["only"]
    assert (failed.attempt, failed.error.kind, failed.error.type) == (1, "partial", "Declined")
    assert "`holdfast retry r only --fresh`" in failed.error.advice


def test_the_tries_of_a_step_in_another_process_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(engine: hf.Engine) -> Any:
        ended = await engine.run(one(nodes.tries), Work(pipe=str(tmp_path / "tries")), run_id="r")
        return ended, await engine.events("r")

    ended, events = using(fresh(), use)
    assert ended.state.log == [3]
    kinds = [event.kind for event in events]
    assert (kinds.count("StepFailed"), kinds.count("StepCompleted")) == (2, 1)
    assert "raised TrulyDeclined, a subclass of Declined" in caplog.text


def test_a_process_that_died_inside_a_step_that_is_not_idempotent_is_asked_about() -> None:
    async def use(engine: hf.Engine) -> Any:
        ended = await engine.run(one(nodes.leaves_in_a_step), Work(), run_id="r")
        assert ended.status == "waiting"
        return await engine.questions("r")

    [question] = using(fresh(), use)
    assert "exited with code 3" in question.question.text
    assert "has begun the step 'charge'" in question.question.text


@pytest.mark.parametrize("fn", [nodes.speaks, nodes.async_speaks])
def test_the_chunks_of_a_step_in_another_process_are_named_after_it(fn: Callable[..., Any]) -> None:
    async def use(engine: hf.Engine) -> Any:
        await engine.run(one(fn, retry=NOW), Work(), run_id="r")
        return [news async for news in engine.follow("r", chunks=True) if isinstance(news, hf.Chunk)]

    assert [(chunk.attempt, chunk.value, chunk.step) for chunk in using(fresh(), use)] == [
        (1, "listen", None),
        (1, "once", "speak"),
        (1, "upon", "speak"),
        (2, "listen", None),
    ]


def test_an_idempotency_key_is_the_same_wherever_the_node_runs() -> None:
    there, here = (run(one(nodes.key, executor=executor)).state.log for executor in ("process", "thread"))
    assert there == here


def test_a_fork_has_the_keys_of_its_parent_in_a_process_too() -> None:
    flow = one(nodes.key)

    async def use(engine: hf.Engine) -> list[Any]:
        await engine.run(flow, run_id="r")
        await engine.fork("r@1", run_id="f")
        await engine.fork("r@1", run_id="g", fresh=True)
        return [(await engine.resume(run_id)).state.log for run_id in ("r", "f", "g")]

    first, fork, other = using(fresh(), use)
    assert first == fork != other


@pytest.mark.parametrize("fn", [nodes.waits, nodes.async_waits])
def test_a_wait_unwinds_the_process_and_the_node_goes_on_from_its_top(fn: Callable[..., Any]) -> None:
    clock = ManualClock()
    flow = one(fn)

    async def use(engine: hf.Engine) -> Any:
        going = asyncio.create_task(engine.run(flow, Work(), run_id="r"))
        await until(lambda: clock.next_at is not None and "NodeWaiting" in kinds(engine))
        clock.advance(61)
        ended = await going
        assert ended.status == "waiting"
        await engine.signal("r", "paid", {"url": "u", "at": "2024-01-01T00:00:00Z"})
        assert (await engine.resume("r")).status == "waiting"
        [question] = await engine.questions("r")
        await engine.answer("r", question.question.key, "yes")
        return await engine.resume("r")

    def kinds(engine: hf.Engine) -> list[str]:
        return [row.kind for row in engine.store.events("r")]

    ended = using("memory://waits" + fn.__name__, use, clock=clock)
    assert ended.state.log == ["u", "yes"]
    assert ended.nodes["only"].attempt == 1


def test_a_node_that_forgets_to_await_is_told() -> None:
    assert "did not await" in failure(one(nodes.forgets)).error.message


def test_files_of_a_process_are_the_nodes_artifacts(tmp_path: Path) -> None:
    async def use(engine: hf.Engine) -> Any:
        await engine.run(one(nodes.writes_a_file), Work(), run_id="r")
        return await engine.events("r", kind="NodeCompleted")

    [completed] = using(fresh(), use, run_base=str(tmp_path))
    assert sorted(completed.body["artifacts"]) == ["2.txt", "pages/1.txt"]


def test_resources_stay_in_the_engines_process() -> None:
    error = failure(one(nodes.uses_resources), resources={"db": object()}).error
    assert error.type == "ContextError"
    assert "resources stay in the engine's process" in error.message


# --- warm processes -----------------------------------------------------------------------------------


def test_a_process_is_used_again_unless_something_was_left_running_in_it() -> None:
    def pids(*fns: Callable[..., Any]) -> list[int]:
        return run(chain(*fns)).state.log

    first, second, third = pids(nodes.pid, nodes.linger, nodes.other_pid)
    assert first == second != third
    assert os.getpid() not in (first, third)


def test_closing_the_engine_ends_its_processes() -> None:
    [pid] = run(chain(nodes.pid)).state.log
    assert not is_alive(pid)


# --- definitions --------------------------------------------------------------------------------------


def closed_over(number: int) -> Callable[..., Any]:
    def inner(state: Work) -> None:
        print(number)

    return inner


class Bound:
    def method(self, state: Work) -> None: ...


async def streams(state: Work) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("fn", "options", "told"),
    [
        (lambda state: None, {}, "cannot find its function"),
        (closed_over(1), {}, "define it at the top of a module"),
        (Bound().method, {}, "cannot find its function"),
        (streams, {}, "ctx.emit"),
        (nodes.pid, {"memory_limit": 0}, "memory_limit=0 is not an amount of memory"),
        (nodes.pid, {"memory_limit": 10, "executor": "thread"}, "add executor='process'"),
        (nodes.pid, {"executor": "the moon"}, "executor='the moon' cannot name an executor"),
    ],
)
def test_what_another_process_could_not_do_is_refused_when_the_graph_is_compiled(
    fn: Callable[..., Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(hf.GraphError) as refused:
        one(fn, **options)
    assert told in str(refused.value)


def test_a_local_state_type_is_refused_when_the_graph_is_compiled() -> None:
    @dataclass
    class Local:
        n: int = 0

    graph = Graph("local", Local)
    graph.node(executor="process")(nodes.pid)
    with pytest.raises(hf.GraphError, match="cannot find the type of its state"):
        graph.chain(START, nodes.pid, END).compile()


def test_another_executor_never_keeps_a_run_from_going_on(url: str) -> None:
    using(url, lambda engine: engine.start(one(nodes.pid, executor="thread"), Work(), run_id="r"))
    flow = one(nodes.pid, memory_limit=2**30)
    [pid] = using(url, lambda engine: engine.resume("r"), flow).state.log
    assert pid != os.getpid()


# --- finding the function -----------------------------------------------------------------------------

PROGRAM = """
from __future__ import annotations
import os
from dataclasses import dataclass
import holdfast as hf
from holdfast import END, START, Graph, Retry

class Odd(Exception): ...

@dataclass
class State:
    pid: int = 0

graph = Graph("program", State)

@graph.node(executor="process", retry=Retry(attempts=2, backoff=0.0, on=(Odd,)))
def only(state: State, ctx: hf.BlockingContext) -> dict:
    if ctx.attempt == 1:
        raise Odd("once")
    print("printed")
    return {"pid": os.getpid()}

flow = graph.chain(START, only, END).compile()
"""
GUARDED = (
    PROGRAM
    + "if __name__ == '__main__':\n    print(hf.run(flow, store='memory://').state.pid != os.getpid())\n"
)


def program(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["program.py"], ["-m", "program"], ["-m", "package.inner"]])
def test_a_program_finds_its_own_nodes_in_another_process(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(GUARDED)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text(GUARDED)
    ended = program(*arguments, folder=tmp_path)
    assert (ended.stdout, ended.stderr) == ("printed\nTrue\n", "")


def test_a_program_that_runs_its_flow_when_imported_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + "hf.run(flow, store='memory://')\n")
    ended = program("program.py", folder=tmp_path)
    assert ended.returncode == 1
    assert "under if __name__ == '__main__':" in ended.stderr


def test_a_file_that_the_command_line_has_loaded_finds_its_nodes(tmp_path: Path) -> None:
    (tmp_path / "no-module.py").write_text(PROGRAM)
    ended = program(
        "-m", "holdfast.cli", "run", "no-module.py", "--store", "runs.db", "--json", folder=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(ended.stdout)["status"] == "completed"
    assert "printed" in ended.stderr


def test_a_name_that_leads_to_another_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = one(nodes.pid)
    monkeypatch.setattr(nodes, "pid", nodes.leave)
    assert "belongs to another object" in failure(flow).error.message


def test_an_executor_that_was_never_used_holds_nothing() -> None:
    executor = ProcessExecutor()
    executor.close()
    executor.close()


def test_a_resumed_run_runs_a_node_that_died_again(url: str) -> None:
    failure(one(nodes.leave, retry=1), url=url)
    assert using(url, lambda engine: engine.resume("r"), one(nodes.pid)).status == "completed"
    store = open_store(url)
    kinds = [row.kind for row in store.events("r")]
    store.close()
    assert kinds.count("NodeStarted") == 2


@pytest.mark.parametrize("fn", [nodes.picks, nodes.async_picks])
def test_a_signal_that_does_not_fit_is_set_aside_for_a_later_wait(fn: Callable[..., Any]) -> None:
    flow = one(fn)

    async def use(engine: hf.Engine) -> Any:
        await engine.start(flow, Work(), run_id="r")
        await engine.signal("r", "paid", "text")
        waiting = await engine.resume("r")
        assert [one.payload for one in waiting.set_aside] == ["text"]
        await engine.signal("r", "paid", {"url": "u", "at": "2024-01-01T00:00:00Z"})
        return await engine.resume("r")

    assert using("memory://picks" + fn.__name__, use).state.log == ["u", "text"]
