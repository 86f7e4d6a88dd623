"""An engine knows the executors that it is given: it asks them for their traits, and never looks at a name."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import process_nodes as nodes
import pytest

import holdfast as hf
from holdfast.core.definition import BUILT_IN_EXECUTORS, Definition
from holdfast.core.difference import difference
from holdfast.core.graph import END, START, Flow, Graph
from holdfast.runtime.calls.executors import Call, Executor, ExecutorTraits, Left, ThreadExecutor, Threads
from holdfast.runtime.calls.process.executor import ProcessExecutor
from holdfast.runtime.engine import Engine
from holdfast.testing.executors import ExecutorConformance


class Counting(ThreadExecutor):
    """A third executor: threads of this process, with a list of the nodes that it has called."""

    def __init__(self) -> None:
        super().__init__(Threads())
        self.called: list[str] = []
        self.closed = False

    def submit(self, call: Call, left: Left) -> ThreadExecutor:
        self.called.append(call.node.name)
        return super().submit(call, left)

    def close(self) -> None:
        self.closed = True
        super().close()


class TestCounting(ExecutorConformance):
    kills = False
    isolates = False

    def open(self) -> Counting:
        return Counting()


def one(fn: Callable[..., Any], **options: Any) -> Flow[Any]:
    graph = Graph("flow", nodes.Work)
    graph.node(name="a", **options)(fn)
    return graph.chain(START, "a", END).compile()


def run(flow: Flow[Any], **executors: Executor) -> Any:
    async def main() -> Any:
        async with Engine("memory://registered", executors=executors) as engine:
            return await engine.run(flow, nodes.Work())

    return asyncio.run(main())


async def pid_later(state: nodes.Work) -> dict[str, Any]:
    return {"log": [os.getpid()]}


@pytest.fixture
def farm() -> Iterator[ProcessExecutor]:
    executor = ProcessExecutor(warm_max=1)
    yield executor
    executor.close()


# --- a registered executor ----------------------------------------------------------------------------


def test_a_node_is_called_by_the_executor_that_it_names() -> None:
    seen: list[str] = []
    counting = Counting()
    done = run(
        one(lambda state: seen.append(threading.current_thread().name), executor="counting"),
        counting=counting,
    )
    assert done.status == "completed"
    assert counting.called == ["a"]
    assert seen == ["holdfast-node"]


def test_a_coroutine_is_called_on_the_event_loop_where_its_executor_is_in_this_process() -> None:
    seen: list[bool] = []

    async def node(state: nodes.Work) -> None:
        seen.append(
            asyncio.get_running_loop() is not None and threading.current_thread() is threading.main_thread()
        )

    counting = Counting()
    assert run(one(node, executor="counting"), counting=counting).status == "completed"
    assert (seen, counting.called) == ([True], [])


@pytest.mark.parametrize("fn", [nodes.pid, pid_later])
def test_an_executor_elsewhere_calls_functions_and_coroutines_in_its_own_processes(
    fn: Callable[..., Any], farm: ProcessExecutor
) -> None:
    [pid] = run(one(fn, executor="farm"), farm=farm).state.log
    assert pid != os.getpid()


def test_the_engine_leaves_the_executors_that_it_was_given_open() -> None:
    counting = Counting()
    for _ in range(2):
        assert run(one(nodes.pid, executor="counting"), counting=counting).status == "completed"
    assert counting.called == ["a", "a"]
    assert not counting.closed


def test_the_blocking_verbs_take_executors_too() -> None:
    counting = Counting()
    done = hf.run(
        one(nodes.pid, executor="counting"),
        nodes.Work(),
        store="memory://blocking",
        executors={"counting": counting},
    )
    assert (done.status, counting.called) == ("completed", ["a"])


def test_an_inline_engine_calls_every_node_itself_whatever_executor_it_names() -> None:
    async def main() -> Any:
        async with Engine("memory://inline", inline=True) as engine:
            return await engine.run(one(nodes.pid, executor="farm"), nodes.Work())

    assert asyncio.run(main()).state.log == [os.getpid()]


# --- what is refused ----------------------------------------------------------------------------------


def test_a_flow_with_an_unknown_executor_is_refused_when_the_engine_gets_it() -> None:
    flow = one(nodes.pid, executor="contuing")
    with pytest.raises(hf.SettingError) as refused:
        Engine("memory://unknown", flows=[flow], executors={"counting": Counting()})
    assert str(refused.value) == (
        "flow 'flow': node 'a' has executor='contuing', but this engine has only 'thread', 'process', 'counting'; did you "
        "mean 'counting'? Use one of these, or register yours: Engine(executors={'contuing': …})."
    )


def test_a_run_of_a_flow_with_an_unknown_executor_is_refused_before_it_exists() -> None:
    async def main() -> None:
        async with Engine("memory://unknown") as engine:
            with pytest.raises(hf.SettingError, match="executor='farm'"):
                await engine.run(one(nodes.pid, executor="farm"), nodes.Work(), run_id="r")
            with pytest.raises(hf.RunNotFound):
                await engine.get("r")

    asyncio.run(main())


async def streams(state: nodes.Work) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (lambda state: None, "node 'a' has executor='farm', and another process cannot find its function"),
        (streams, "node 'a' yields chunks, which executor='farm' does not support"),
    ],
)
def test_a_function_that_a_registered_executor_cannot_call_is_refused_when_the_engine_gets_the_flow(
    fn: Callable[..., Any], told: str, farm: ProcessExecutor
) -> None:
    with pytest.raises(hf.GraphError) as refused:
        Engine("memory://misfit", flows=[one(fn, executor="farm")], executors={"farm": farm})
    assert told in str(refused.value)


def test_a_limit_of_memory_is_refused_where_the_executor_is_in_this_process() -> None:
    flow = one(nodes.pid, executor="counting", memory_limit=2**30)
    with pytest.raises(hf.GraphError, match="needs a process of its own"):
        Engine("memory://misfit", flows=[flow], executors={"counting": Counting()})


@pytest.mark.parametrize("name", [*BUILT_IN_EXECUTORS])
def test_a_built_in_executor_is_not_replaced(name: str) -> None:
    with pytest.raises(hf.SettingError, match="every engine has an executor of this name already"):
        Engine("memory://given", executors={name: Counting()})


def test_what_is_not_an_executor_or_has_no_name_is_refused() -> None:
    with pytest.raises(hf.SettingError, match="has no submit and no close and no traits"):
        Engine("memory://given", executors={"farm": object()})  # type: ignore[dict-item]
    with pytest.raises(hf.SettingError, match="'the farm' cannot name an executor"):
        Engine("memory://given", executors={"the farm": Counting()})
    with pytest.raises(hf.SettingError, match="give names and executors"):
        Engine("memory://given", executors=[Counting()])  # type: ignore[arg-type]


# --- what stays as it was -----------------------------------------------------------------------------


def test_the_built_in_executors_have_the_traits_that_a_graph_is_compiled_with() -> None:
    assert ThreadExecutor(Threads()).traits == BUILT_IN_EXECUTORS["thread"] == ExecutorTraits(here=True)
    assert ProcessExecutor.traits == BUILT_IN_EXECUTORS["process"] == ExecutorTraits(here=False, by_name=True)


def test_another_executor_is_tuning_also_where_it_is_registered() -> None:
    old, new = (one(nodes.pid, executor=executor).definition for executor in ("thread", "farm"))
    found = difference(old, new)
    assert found.lines() == ['~ node "a": executor thread -> farm']
    assert found.only_options


def test_a_stored_definition_with_a_registered_executor_is_read_by_every_engine() -> None:
    definition = one(nodes.pid, executor="farm").definition
    assert msgspec.json.decode(msgspec.json.encode(definition), type=Definition) == definition
