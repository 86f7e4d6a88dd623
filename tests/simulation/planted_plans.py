"""Planted bugs about plans and policies: see `planted`. They are found by simulated plans."""

from __future__ import annotations

from planting import on_take_up, patched, plan_bug

from holdfast.core import commands, events
from holdfast.core import decide as decides
from holdfast.core.fold import judged
from holdfast.core.readiness import _CountedReadiness
from holdfast.core.run_state import NODE_LEVEL
from holdfast.runtime import judging, outcomes, perform, runner


@plan_bug
def a_guard_is_evaluated_twice():
    """When its source ends, and once more when another process has claimed the run."""
    real = outcomes.complete_ruled

    def complete(*args):
        produced = real(*args)
        return [event for event in produced for _ in range(1 + isinstance(event, events.GuardEvaluated))]

    with patched((outcomes, "complete_ruled", complete)):
        yield


@plan_bug
def the_verdict_of_a_guard_is_not_recorded():
    with patched((outcomes.Route, "evidence", lambda self, header: [])):
        yield


@plan_bug
def the_route_is_not_in_the_append_of_its_guard():
    """The route follows when the node is routed again."""
    real = outcomes.complete_ruled

    def complete(flow, state, faults, name, output, now, artifacts):
        produced = real(flow, state, faults, name, output, now, artifacts)
        if len(produced) < 2 or produced[-1].routes is None:
            return produced
        return [*produced[:-1], events.NodeCompleted(**_place(produced[-1]), changes=produced[-1].changes)]

    with patched((outcomes, "complete_ruled", complete)):
        yield


def _place(event):
    return {name: getattr(event, name) for name in ("node", "iteration", "execution", "attempt")}


@plan_bug
def the_skip_is_not_closed():
    """Only the first of the nodes that can never run is skipped."""
    real = perform.perform

    def perform_less(journal, command, starts):
        if isinstance(command, commands.SkipNodes) and len(command.nodes) > 1:
            journal.record(events.NodesSkipped(nodes=[command.nodes[0]], why=command.why))
            return True
        return real(journal, command, starts)

    with patched((runner, "perform", perform_less)):
        yield


@plan_bug
def a_join_waits_for_the_first_edge_only():
    real = _CountedReadiness._settle

    def settle(self, state, name):
        real(self, state, name)
        for target in self._targets[name]:
            if self._undecided[target] and state.arrivals.get(target) and target not in self._every:
                self._undecided[target] = 0
                self._consider(state, target)

    with patched((_CountedReadiness, "_settle", settle)):
        yield


@plan_bug
def an_allowance_is_not_durable_before_the_call():
    """A node that policies judge is called as any idempotent node is, before its start is saved."""

    def careful(self, calls):
        return any(not self.flow.nodes[body.key[0]].options.idempotent for body in calls)

    with patched((runner.Runner, "_careful", careful)):
        yield


@plan_bug
def a_denied_task_is_begun():
    def refuse(state, name, failure):
        state.nodes[name].approved = True

    with patched((judged, "refuse", refuse)):
        yield


@plan_bug
def the_weakest_verdict_counts():
    with patched((judging, "_STRICTEST", ("allow", "ask", "deny"))):
        yield


@plan_bug
def what_has_returned_is_run_again():
    """After an approving answer, the node is called once more in place of using what it returned."""
    real = decides._again

    def again(options, state, node, name):
        if node.returned is not None and node.attempt and NODE_LEVEL not in node.parked:
            return commands.StartNode(name, node.iteration, node.execution, node.attempt + 1, 0)
        return real(options, state, node, name)

    with patched((decides, "_again", again)):
        yield


@plan_bug
def an_unverified_result_is_used():
    real = judging._verify

    def verify(checks, asked, facts):
        return [events.Checked(one.id, True) for one in real(checks, asked, facts)]

    with patched((judging, "_verify", verify)):
        yield


@plan_bug
def an_error_edge_for_all_failures_takes_a_denial():
    with patched((decides, "REFUSALS", ())):
        yield


@plan_bug
def a_resume_resets_the_budget():
    def forget(prepared):
        prepared.state.tokens = 0

    with on_take_up(forget):
        yield
