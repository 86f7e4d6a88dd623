"""An agent that answers a customer: it calls a model that streams its words, calls tools as steps, and asks a person to
approve a refund.

    holdfast run examples/agent.py --run-id agent            # calls the model and the tools, and stops at the refund
    holdfast answer agent refund approve                     # or reject: then the refund is never paid
    holdfast resume agent examples/agent.py

Kill the process at any time (Ctrl-C, `kill -9`), and resume the run: a call of the model or of a tool that has returned is
not repeated, and the refund is in shop/refunds.jsonl once. The model is scripted, so that the example needs no network; call
a real model in `ask_model`.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import holdfast as hf
from holdfast import END, START, Graph, append


@dataclass
class Message:
    who: str  # user, model or tool
    text: str
    tool: str = ""  # the tool that the model wants to call, or the tool whose result this is
    given: dict[str, Any] = field(default_factory=dict)


@dataclass
class Chat:
    request: str = "My order 7 came broken. Can I have my money back?"
    messages: Annotated[list[Message], append] = field(default_factory=list)
    shop: str = "shop"  # a folder that stands in for the shop's real systems


# --- a scripted model ---------------------------------------------------------------------------------

SCRIPT = [
    Message("model", "Let me see what was ordered, and what our rules say.", "look_up", {"order": 7}),
    Message("model", "The order was 40 euros. Are broken goods refunded?", "search", {"words": "broken"}),
    Message("model", "They are, in full. I will refund it.", "refund", {"order": 7, "euros": 40}),
    Message("model", "I am sorry about the vase. Your 40 euros are on their way."),
]


async def ask_model(messages: list[Message], ctx: hf.Context) -> Message:
    """Stream the next message of the model, word by word. The cost is reported first, so that it counts even after a crash."""
    line = SCRIPT[sum(message.who == "model" for message in messages)]
    words = line.text.split()
    ctx.cost(usd=0.0001 * len(words), tokens=len(words))
    for word in words:
        ctx.emit(word + " ")
        await asyncio.sleep(0.05)
    return line


# --- the tools ----------------------------------------------------------------------------------------


def look_up(order: int) -> str:
    return json.dumps({"order": order, "item": "a vase", "euros": 40})


def search(words: str) -> str:
    rules = {"broken": "Broken goods are refunded in full.", "late": "Late parcels get a voucher."}
    return next(rule for key, rule in rules.items() if key in words)


def pay_back(shop: str, order: int, euros: int, key: str) -> str:
    """Refund an order, as a payment provider would: a second call with the same key pays nothing."""
    ledger = Path(shop, "refunds.jsonl")
    ledger.parent.mkdir(exist_ok=True)
    paid = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
    if not any(payment["key"] == key for payment in paid):
        with ledger.open("a") as file:
            file.write(json.dumps({"key": key, "order": order, "euros": euros}) + "\n")
            file.flush()
            os.fsync(file.fileno())
    return f"{euros} euros were paid back for order {order}."


SAFE_TOOLS = {"look_up": look_up, "search": search}

# --- the agent ----------------------------------------------------------------------------------------

graph = Graph("agent", Chat)


@graph.node(agent="support")
async def think(state: Chat, ctx: hf.Context) -> dict[str, Any]:
    heard = state.messages or [Message("user", state.request)]
    said = await ctx.step("model", ask_model, heard, ctx)
    return {"messages": [*([] if state.messages else heard), said]}


@graph.node(timeout=10)
async def act(state: Chat, ctx: hf.Context) -> dict[str, Any]:
    wanted = state.messages[-1]
    answer = await ctx.step(wanted.tool, SAFE_TOOLS[wanted.tool], **wanted.given)
    return {"messages": [Message("tool", answer, wanted.tool)]}


def may_it(state: Chat) -> str:
    wanted = state.messages[-1].given
    return (
        f"The agent wants to refund {wanted['euros']} euros for order {wanted['order']}. Approve the refund?"
    )


@graph.node(approve=may_it, agent="cashier")
async def refund(state: Chat, ctx: hf.Context) -> dict[str, Any]:
    wanted = state.messages[-1].given
    key = ctx.idempotency_key("refund")  # the same key in every attempt, so that the refund is paid once
    answer = await ctx.step("pay_back", pay_back, state.shop, wanted["order"], wanted["euros"], key)
    return {"messages": [Message("tool", answer, "refund")]}


def next_move(state: Chat) -> str:
    tool = state.messages[-1].tool
    return "refund" if tool == "refund" else "act" if tool else END


graph.edge(START, "think").edge("act", "think").edge("refund", "think")
graph.branch("think", next_move, to=["act", "refund", END])
flow = graph.compile(max_iterations=20)  # fail the run if the agent does not stop by itself

if __name__ == "__main__":
    run = hf.run(flow, Chat(), run_id="agent")
    for message in run.state.messages:
        print(f"{message.who:>5}: {message.text}")
    for question in run.questions:
        print(f"{question.text} To approve it: holdfast answer {run.id} {question.key} approve")
