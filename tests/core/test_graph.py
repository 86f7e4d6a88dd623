"""What a graph makes of what it is given: nodes, their options, and what is refused before anything runs."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest

from holdfast import Context
from holdfast.core.graph import END, START, Graph, Retry
from holdfast.errors import CodecError, GraphError


@dataclass
class Notes:
    n: int = 0
    text: str = ""


def plain(state):
    return {}


def added(fn: Any = plain, **options):
    """The node that a graph makes of a function."""
    graph = Graph("g", Notes)
    graph.node(name="a", **options)(fn)
    return graph.chain(START, "a", END).compile().nodes["a"]


def problems(build) -> str:
    """Everything that is wrong with a graph of one node, which `build` adds."""
    graph = Graph("g", Notes)
    build(graph)
    graph.chain(START, "a", END)
    with pytest.raises(GraphError) as refused:
        graph.compile()
    return "\n".join(refused.value.problems)


def asked(question: Any = "Sure?", **options):
    graph = Graph("g", Notes).ask("a", question, **options)
    return graph.chain(START, "a", END).compile().nodes["a"]


async def alone(state: Notes) -> None: ...


async def with_context(state: Notes, ctx: Context) -> None: ...


async def streaming(state: Notes):
    yield state.n


def blocking(state: Notes) -> None: ...


def compiled(fn, **options):
    graph = Graph("flow", Notes)
    graph.node(name="a", **options)(fn)
    graph.edge(START, "a")
    graph.edge("a", END)
    return graph.compile()


# --- retries -----------------------------------------------------------------------------------------


def test_a_retry_has_these_settings_where_none_are_given():
    retry = Retry()
    assert (retry.attempts, retry.backoff, retry.factor, retry.max_delay, retry.jitter, retry.on) == (
        3,
        1.0,
        2.0,
        60.0,
        0.1,
        (),
    )
    assert Retry(attempts=1).attempts == 1


@pytest.mark.parametrize("attempts", [0, -1, 1.5, True, "3"])
def test_a_number_of_attempts_is_one_or_more(attempts):
    with pytest.raises(ValueError, match="at least 1"):
        Retry(attempts=attempts)


@pytest.mark.parametrize("name", ["backoff", "factor", "max_delay", "jitter"])
@pytest.mark.parametrize("given", [-0.1, 1e10, float("inf"), float("nan"), True, "1", None])
def test_a_time_between_tries_is_a_number_that_is_not_negative_and_ends(name, given):
    with pytest.raises(ValueError, match=f"{name}=.*not negative"):
        Retry(**{name: given})


@pytest.mark.parametrize("name", ["backoff", "factor", "max_delay", "jitter"])
@pytest.mark.parametrize("given", [0, 0.0, 9.9999999995e9])
def test_a_time_between_tries_may_be_nothing_or_very_long(name, given):
    assert getattr(Retry(**{name: given}), name) == given


def test_a_retry_cannot_be_changed():
    with pytest.raises(AttributeError):
        Retry().attempts = 5


@pytest.mark.parametrize(
    ("options", "retry"),
    [
        ({}, Retry()),
        ({"idempotent": False}, Retry(attempts=1)),
        ({"retry": 5}, Retry(attempts=5)),
        ({"retry": Retry(backoff=7.0)}, Retry(backoff=7.0)),
        ({"retry": Retry(attempts=None)}, Retry(attempts=None)),
        ({"retry": 2, "idempotent": False}, Retry(attempts=2)),
    ],
)
def test_a_node_is_tried_as_often_as_was_said_and_otherwise_as_its_kind_allows(options, retry):
    assert added(**options).retry == retry


def test_only_a_retry_that_was_given_is_part_of_the_definition():
    assert added().options.retry == {}
    assert added(retry=5).options.retry == {
        "attempts": 5,
        "backoff": 1.0,
        "factor": 2.0,
        "max_delay": 60.0,
        "jitter": 0.1,
    }
    assert added(retry=Retry(on=(ValueError,))).options.retry["on"] == ["ValueError"]
    assert "on" not in added(retry=Retry()).options.retry


@pytest.mark.parametrize("retry", ["often", 1.5, True])
def test_a_retry_of_another_kind_is_refused(retry):
    assert "give a number of tries or Retry(…)" in problems(
        lambda graph: graph.node(name="a", retry=retry)(plain)
    )


# --- options -----------------------------------------------------------------------------------------


def test_a_node_has_these_options_where_none_are_given():
    options = added().options
    assert (options.idempotent, options.on_interrupt, options.each, options.limit) == (
        True,
        "rerun",
        False,
        16,
    )
    assert (options.join, options.safe_to_fail, options.crash_limit) == ("all", False, 3)
    assert (options.executor, options.agent, options.timeout_s, options.memory_limit) == (
        "thread",
        "engine",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("options", "on_interrupt"),
    [
        ({}, "rerun"),
        ({"idempotent": False}, "ask"),
        ({"on_interrupt": "skip"}, "skip"),
        ({"idempotent": False, "on_interrupt": "skip"}, "skip"),
    ],
)
def test_what_must_not_run_twice_is_asked_about_where_nothing_else_was_said(options, on_interrupt):
    assert added(**options).options.on_interrupt == on_interrupt


def test_a_compiled_flow_has_these_limits_where_none_are_given():
    graph = Graph("g", Notes)
    graph.node(plain)
    definition = graph.chain(START, plain, END).compile().definition
    assert (definition.schedule, definition.max_iterations, definition.max_parallel) == ("eager", 1000, 64)
    assert definition.state_version == 1


def test_an_approval_is_fixed_words_or_a_function_of_the_state():
    words, function = added(approve="Go?"), added(approve=lambda state: f"Go with {state.n}?")
    assert (words.options.approve, words.asks) == ("Go?", None)
    assert function.options.approve == "a?"
    assert function.asks(Notes(4)) == "Go with 4?"


@pytest.mark.parametrize("idempotent", [None, 1, "yes"])
def test_whether_a_node_may_run_twice_is_said_by_true_or_false(idempotent):
    assert "use True or False" in problems(lambda graph: graph.node(name="a", idempotent=idempotent)(plain))


def test_items_are_listed_by_a_function():
    assert "lists the items" in problems(lambda graph: graph.node(name="a", each=[1, 2])(plain))
    assert added(each=lambda state: [1]).options.each


# --- functions ---------------------------------------------------------------------------------------


def one_default(state, n=3):
    return {}


def one_default_context(state, ctx=None):
    return {}


def context(state, anything):
    return {}


def three(state, ctx, more=1):
    return {}


@pytest.mark.parametrize(
    ("fn", "takes"),
    [
        (plain, False),
        (context, True),
        (one_default, False),
        (one_default_context, True),
        (three, True),
        (max, False),
    ],
)
def test_a_function_gets_the_context_where_it_has_a_place_for_it(fn, takes):
    assert added(fn).takes_context is takes


def none():
    return {}


def by_word(state, *, ctx):
    return {}


@pytest.mark.parametrize("fn", [none, lambda a, b, c: {}, by_word])
def test_a_function_that_cannot_be_called_as_a_node_is_refused(fn):
    assert "called as fn(state) or fn(state, ctx)" in problems(lambda graph: graph.node(name="a")(fn))


def test_the_function_of_a_fan_out_is_called_with_an_item():
    told = problems(lambda graph: graph.node(name="a", each=lambda state: [])(none))
    assert "called as fn(item) or fn(item, ctx)" in told


def test_what_is_no_function_is_refused():
    assert "which cannot be called" in problems(lambda graph: graph.node(name="a")(3))


async def later(state):
    return {}


async def chunks(state):
    yield 1


class Later:
    async def __call__(self, state):
        return {}


class Now:
    def __call__(self, state):
        return {}


@functools.wraps(later)
def wrapped(state):
    return later(state)


@pytest.mark.parametrize(
    ("fn", "is_async", "streams"),
    [
        (plain, False, False),
        (later, True, False),
        (chunks, False, True),
        (Later(), True, False),
        (Now(), False, False),
        (wrapped, True, False),
    ],
)
def test_what_is_async_and_what_streams_is_told_from_the_function_or_its_call(fn, is_async, streams):
    node = added(fn)
    assert (node.is_async, node.streams) == (is_async, streams)


class Mute:
    """A callable that does not tell how it is called."""

    @property
    def __signature__(self):
        raise self.fault

    def __init__(self, fault):
        self.fault = fault

    def __call__(self, *given):
        return {}


@pytest.mark.parametrize("fault", [TypeError("none"), ValueError("none")])
def test_a_function_that_does_not_tell_how_it_is_called_is_taken_and_gets_the_state_alone(fault):
    assert not added(Mute(fault)).takes_context


def items_of(fn) -> Any:
    graph = Graph("g", Notes)
    graph.node(name="a", each=lambda state: [])(fn)
    return graph.chain(START, "a", END).compile().item_codecs["a"].type


def typed(item: int, ctx):
    return {}


def test_the_items_of_a_fan_out_are_of_the_type_that_its_function_says():
    assert items_of(typed) is int


def unresolved(item: Missing):  # noqa: F821
    return {}


def nothing_by_place(*items):
    return {}


@pytest.mark.parametrize("fn", [plain, unresolved, nothing_by_place, Now(), Mute(ValueError("none")), max])
def test_the_items_of_a_fan_out_may_be_anything_where_its_function_says_nothing(fn):
    assert items_of(fn) is Any


@pytest.mark.parametrize(
    ("fn", "plain"), [(alone, True), (with_context, False), (streaming, False), (blocking, False)]
)
def test_a_node_is_plain_where_it_is_a_coroutine_that_wants_the_state_and_nothing_else(fn, plain):
    assert compiled(fn).nodes["a"].is_plain is plain


def test_an_item_must_fit_what_the_function_asks_of_it():
    def visit(item: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...

    codec = compiled(visit, each=lambda state: [1]).item_codecs["a"]
    assert codec.encode(1) == 1
    with pytest.raises(CodecError, match=">= 1"):
        codec.encode(0)


# --- processes ---------------------------------------------------------------------------------------


def test_a_function_at_the_top_of_a_module_can_have_a_process():
    assert added(plain, executor="process").options.executor == "process"


def in_a_process(fn) -> str:
    return problems(lambda graph: graph.node(name="a", executor="process")(fn))


@pytest.mark.parametrize("fn", [lambda state: {}, Later().__call__])
def test_a_function_without_a_place_in_a_module_cannot_have_a_process(fn):
    assert "cannot find its function" in in_a_process(fn)
    assert added(fn).options.executor == "thread"


def test_what_yields_its_chunks_cannot_have_a_process():
    assert "yields chunks" in in_a_process(chunks)


@pytest.mark.parametrize(
    ("around", "typed_in"),
    [
        ({"__name__": "__main__"}, True),
        ({"__name__": "__main__", "__file__": "script.py"}, False),
        ({"__name__": "__main__", "__spec__": object()}, False),
        ({"__name__": "somewhere"}, False),
    ],
)
def test_a_function_that_was_typed_in_cannot_have_a_process(around, typed_in):
    exec("def at_a_prompt(state): return {}", around)
    if typed_in:
        assert "was defined interactively" in in_a_process(around["at_a_prompt"])
    else:
        assert added(around["at_a_prompt"], executor="process").options.executor == "process"


# --- questions ---------------------------------------------------------------------------------------


def test_a_question_in_fixed_words_has_no_function_of_its_own():
    node = asked("Sure?")
    assert node.options.question.text == "Sure?"
    assert node.fn(Notes()) == ""
    assert not node.streams
    assert (node.retry, node.takes_context, node.is_async, node.each) == (
        Retry(attempts=1),
        False,
        False,
        None,
    )


def test_a_question_may_be_a_function_of_the_state():
    node = asked(lambda state: f"{state.n}?")
    assert node.options.question.text == ""
    assert node.fn(Notes(4)) == "4?"


@pytest.mark.parametrize(
    ("given", "options", "schema"),
    [
        ({}, ["approve", "reject"], {}),
        ({"options": ("one", "two")}, ["one", "two"], {}),
        ({"into": "n"}, [], {"type": "integer"}),
        ({"into": "text", "options": ("one", "two")}, ["one", "two"], {}),
        ({"into": "n", "schema": str}, [], {"type": "string"}),
    ],
)
def test_an_answer_is_one_of_the_options_or_fits_what_was_declared(given, options, schema):
    question = asked(**given).options.question
    assert question.options == options
    assert question.answer_schema == schema


def test_an_answer_goes_into_a_field_that_there_is():
    told = problems(lambda graph: graph.ask("a", "?", into="m"))
    assert "which Notes does not have" in told
    asked(into="text")
    undeclared = Graph("g").ask("a", "?", into="whatever").chain(START, "a", END).compile()
    assert undeclared.nodes["a"].options.question.answer_schema == {}


def test_a_schema_that_cannot_be_written_down_is_refused_only_where_it_was_given():
    class Odd:
        pass

    assert "question 'a'" in problems(lambda graph: graph.ask("a", "?", schema=Odd))


# --- edges -------------------------------------------------------------------------------------------


def test_an_edge_is_added_once():
    graph = Graph("g", Notes)
    graph.node(name="a")(plain)
    with pytest.raises(GraphError, match="the edge from 'a' to 'END' was added twice"):
        graph.chain(START, "a", END).edge("a", END).compile()


def test_a_node_has_one_branch():
    graph = Graph("g", Notes)
    graph.node(name="a")(plain)
    graph.edge(START, "a").branch("a", lambda state: END, ["a", END])
    flow = graph.compile()
    assert list(flow.branches) == ["a"]
    with pytest.raises(GraphError, match="two branches"):
        graph.branch("a", lambda state: END, [END]).compile()


def test_a_flow_knows_where_its_plain_edges_lead():
    graph = Graph("g", Notes)
    for name in ("a", "b"):
        graph.node(name=name)(plain)
    flow = graph.edge(START, "a").edge(START, "b").edge("a", END).edge("b", END).compile()
    assert flow.plain_routes == {"START": ("a", "b"), "a": ("END",), "b": ("END",)}
    assert repr(flow) == f"<Flow 'g': 2 nodes, {flow.fingerprint[:12]}>"


def test_a_node_is_called_after_its_function_or_as_was_said():
    graph = Graph("g", Notes)
    assert graph.node(plain) is plain
    assert graph.node(name="other")(plain) is plain
    assert list(graph.chain(START, plain, "other", END).compile().nodes) == ["plain", "other"]


# --- for those who come from elsewhere ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("add_node", "@graph.node"),
        ("add_edge", "graph.edge(source, target)"),
        ("add_conditional_edges", "graph.branch(source, router, to=[…])"),
        ("set_entry_point", "graph.edge(START, node)"),
        ("set_finish_point", "graph.edge(node, END)"),
    ],
)
def test_a_method_of_another_library_is_answered_with_ours(theirs, ours):
    with pytest.raises(AttributeError, match=f"^Graph has no {theirs}; ") as refused:
        getattr(Graph("g", dict), theirs)
    assert ours in str(refused.value)


def test_any_other_attribute_that_a_graph_does_not_have_is_refused_as_usual():
    graph = Graph("g", dict)
    with pytest.raises(AttributeError, match=r"^'Graph' object has no attribute 'nods'"):
        graph.nods  # noqa: B018
    assert not hasattr(graph, "nods")
    assert copy.copy(graph).name == "g"


CELL = """
@graph.node
def first(state):
    return {}

graph.chain(START, first, END).branch(first, lambda state: END, [END])
"""


def test_a_notebook_cell_that_is_run_twice_is_one_problem_and_says_to_begin_with_a_new_graph():
    graph = Graph("g", dict)
    notebook = {"graph": graph, "START": START, "END": END, "__name__": "__main__"}
    for _ in range(2):
        exec(compile(CELL, "<ipython-input-1>", "exec"), notebook)
    with pytest.raises(GraphError) as refused:
        graph.compile()
    (problem,) = refused.value.problems
    assert "a notebook cell that adds nodes was run again; begin that cell with a new graph" in problem


def test_two_nodes_of_one_name_in_a_file_are_named_as_before():
    graph = Graph("g", dict)
    module = {"graph": graph, "START": START, "END": END, "__name__": "__main__", "__file__": "flow.py"}
    for _ in range(2):
        exec(compile(CELL, "flow.py", "exec"), module)
    with pytest.raises(GraphError, match="two nodes are named 'first'"):
        graph.compile()
