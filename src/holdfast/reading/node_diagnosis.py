"""What resuming a stopped run does to each of its nodes that has not ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.core import situation
from holdfast.core.definition import NodeOptions
from holdfast.core.run_state import NodeState, RunState
from holdfast.reading import remedies
from holdfast.reading.diagnosis import Diagnosis, Kind
from holdfast.reading.remedies import CommandLine
from holdfast.storage.contract import RunRow

_INTERRUPTED = {
    "rerun": "resuming runs the node again, as attempt {next}",
    "ask": "resuming asks whether to run the node again, to skip it, or to cancel the run",
    "skip": "resuming skips the node",
}


def diagnose_nodes(
    row: RunRow,
    state: RunState,
    nodes: Mapping[str, NodeOptions],
    now: float,
    commands: CommandLine | None = None,
) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each node of a stopped run that crashed, waits for a retry, or is due but was not started. It says
    what resuming the run does to that node.
    """
    commands = (commands or CommandLine()).for_flow_of(state.options.get(situation.FLOW_FILE))
    for name, node in state.nodes.items():
        found = _node_case(state, name, node, nodes.get(name, NodeOptions()), now)
        if found is not None:
            kind, since, reason, words = found
            remedy = remedies.resume(commands, row.run_id, words)
            yield Diagnosis(
                kind=kind,
                reason=reason,
                remedies=(remedy,),
                run_id=row.run_id,
                flow=row.flow,
                status=row.status,
                node=name,
                since=since if since is not None else row.updated_at,
                crashed=kind == "crashed",
            )


def _node_case(
    state: RunState, name: str, node: NodeState, options: NodeOptions, now: float
) -> tuple[Kind, float | None, str, str] | None:
    if node.status == "running":
        reason = f"attempt {node.attempt} was started but has not ended"
        return (
            "crashed",
            node.started_at,
            reason,
            _INTERRUPTED["ask" if node.is_in_doubt else options.on_interrupt].format(next=node.attempt + 1),
        )
    if node.status == "waiting" and node.retry_at is not None:
        left = node.retry_at - now
        when = f"in {left:.0f} s" if left > 0 else "as soon as a worker claims the run"
        failed = node.failure.type if node.failure is not None else "it"
        return (
            "retry",
            node.ended_at,
            f"attempt {node.attempt} failed ({failed})",
            f"the node is retried {when}",
        )
    if node.status == "pending" and (name in state.open or name in state.arrivals):
        words = f"the node starts, as attempt {max(node.attempt, 1)}"
        return "not started", None, "the node is due but was not started", words
    return None
