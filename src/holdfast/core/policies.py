"""The policies of a graph in code: which nodes each applies to, and the mistakes in them, found before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.rules import Policy
from holdfast.core.signatures import is_a, takes_one
from holdfast.errors import name_known


def policy_problems(policies: Sequence[Any], fans_out: Mapping[str, bool]) -> Iterator[str]:
    """Yield the mistakes in the policies of a graph. `fans_out`: node -> whether it fans out."""
    seen: set[str] = set()
    for policy in policies:
        if not isinstance(policy, Policy):
            yield f"policies has {policy!r:.80}, which is not a policy; give hf.Policy(…)"
            continue
        if policy.id in seen:
            yield f"two policies are named {policy.id!r}; rename one"
        seen.add(policy.id)
        yield from policy_mistakes(policy)
        found = [name for name in fans_out if policy.applies_to(name)]
        if not found:
            near = name_known(policy.node, fans_out)
            yield f"policy {policy.id!r} applies to {policy.node!r}, but the graph has no such node{near}"
        for name in found if policy.stage == "post" else ():
            if fans_out[name]:
                yield (
                    f"policy {policy.id!r} is asked about the result of {name!r}, which fans out and has no result of its own; "
                    "let the policy apply to the node after it"
                )


def with_policies(nodes: Mapping[str, Any], policies: Sequence[Any]) -> dict[str, Any]:
    """Return the nodes of a graph, each with the policies that apply to it. None applies to a question node."""
    found = dict(nodes)
    for name, node in nodes.items() if policies else ():
        mine = [policy for policy in policies if isinstance(policy, Policy) and policy.applies_to(name)]
        if node.options.question is not None or not mine:
            continue
        pre = tuple(policy for policy in mine if policy.stage == "pre")
        post = tuple(policy for policy in mine if policy.stage == "post")
        judged = [policy.stage for policy in (*pre[:1], *post[:1])]
        options = msgspec.structs.replace(node.options, judged=judged)
        found[name] = msgspec.structs.replace(node, options=options, pre=pre, post=post)
    return found


def policy_mistakes(policy: Policy) -> Iterator[str]:
    """Yield what is wrong with the function or the stage of a policy."""
    if policy.stage not in ("pre", "post"):
        yield f"policy {policy.id!r} has stage={policy.stage!r}; use 'pre' or 'post'"
    if not callable(policy.judge) or not takes_one(policy.judge):
        yield f"policy {policy.id!r} has {policy.judge!r:.80}; give a function of one argument, which gets an Asked"
    elif is_a(inspect.iscoroutinefunction, policy.judge):
        yield f"policy {policy.id!r} is an async def; give a plain, quick function: it is called between two steps of the run"
