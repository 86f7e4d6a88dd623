"""A run that workers refuse because its flow has changed, over HTTP: every answer says why, and which command works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from app_client import TOKENS, Caller

import holdfast as hf
from holdfast import END, START, Flow, Graph
from holdfast.storage.contract import Holder
from holdfast.storage.memory.store import MemoryStore

API = "/api/v1"
OTHER = Holder(id="old", host="elsewhere", pid=77, ttl_s=600.0, flows=("one",))
"""A worker that knows the flow of the run."""


def chain(*names: str) -> Flow[Any]:
    graph = Graph("one", dict)

    @graph.node(name=names[0])
    async def first(state: dict[str, Any], ctx: hf.Context) -> None:
        await ctx.wait_for("go")

    for name in names[1:]:
        graph.node(name=name)(lambda state: {})
    return graph.chain(START, *names, END).compile()


OLD, NEW = chain("a"), chain("a", "b")
NOT_BEGUN = "recorded, but not started, and no live worker takes flow 'one'"


@asynccontextmanager
async def served(store: MemoryStore) -> AsyncIterator[Caller]:
    """A server that executes nothing, as `holdfast serve --no-work`, and that knows no flow."""
    async with hf.Engine(store) as engine:
        yield Caller(hf.asgi(engine, tokens=TOKENS))


@asynccontextmanager
async def working(store: MemoryStore, flow: Flow[Any]) -> AsyncIterator[None]:
    """A worker that has found what it cannot continue."""
    told = asyncio.Event()
    async with hf.Engine(store, flows=[flow]) as engine:
        work = asyncio.create_task(engine.work(on_report=lambda trouble: told.set()))
        await told.wait()
        yield
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def get_reasons(caller: Caller) -> list[str]:
    """Return the reasons that the answers about the run give: the run, its row in a list, and its place in its family."""
    (listed,) = (await caller.get(f"{API}/runs")).json["runs"]
    (member,) = (await caller.get(f"{API}/runs/r/family")).json["members"]
    return [(await caller.get(f"{API}/runs/r")).json["reason"], listed["reason"], member["reason"]]


def test_a_refused_run_is_explained_in_every_answer_and_its_remedy_works() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with hf.Engine(store, flows=[OLD]) as engine:
            await engine.start(OLD, {}, run_id="r")
        async with served(store) as caller, working(store, NEW):
            run = (await caller.get(f"{API}/runs/r")).json
            assert run["reason"].startswith(
                "its flow has changed in shape: node b is new; no live worker can continue it: "
            )
            assert await get_reasons(caller) == [run["reason"]] * 3
            (listed,) = (await caller.get(f"{API}/runs?attention=true")).json["runs"]
            assert (listed["id"], listed["needs_attention"]) == ("r", True)
            assert listed["remedy"] == run["remedies"][0]
            (found,) = [
                one for one in (await caller.get(f"{API}/doctor")).json["problems"] if one["run_id"] == "r"
            ]
            assert found["kind"] == "flow changed"
            assert found["remedies"][0]["arguments"] == run["remedies"][0]["arguments"]
            (refusal,) = (await caller.get(f"{API}/store/refusals?query=%7B%7D")).json["refusals"]
            assert (refusal["run_id"], refusal["fingerprint"]) == ("r", NEW.fingerprint)
            (worker,) = [one.holder for one in store.queues.holders() if one.holder.flows]
            lease = store.claim("r", worker)  # to look once more whether it can continue the run
            assert await get_reasons(caller) == [run["reason"]] * 3
            store.release("r", worker.id, lease.fence)
            given = run["remedies"][0]["arguments"]
            assert given == {"run": "r", "on_change": "compatible"}
            headers = {"content-type": "application/json", "prefer": "wait=30"}
            body = b'{"on_change": "compatible"}'
            asked = await caller.send("POST", f"{API}/runs/r/resume", headers=headers, body=body)
            assert asked.status == 200, asked.body
            assert asked.json["run"]["status"] == "waiting"

    asyncio.run(main())


def test_a_client_that_knows_the_run_gets_it_again_when_workers_that_refuse_or_take_it_come_and_go() -> None:
    async def main() -> None:
        store, tags = MemoryStore(), []
        async with hf.Engine(store, flows=[OLD]) as engine:
            await engine.start(OLD, {}, run_id="r")
        async with served(store) as caller:

            async def look() -> str:
                """Ask for the run as a client that has the last answer, and return its reason."""
                known = {"if-none-match": tags[-1]} if tags else {}
                got = await caller.get(f"{API}/runs/r", headers=known)
                assert got.status == 200, "the answer is not what the client has"
                tags.append(got.headers["etag"])
                again = await caller.get(f"{API}/runs/r", headers={"if-none-match": tags[-1]})
                assert again.status == 304
                return got.json["reason"]

            assert await look() == NOT_BEGUN
            async with working(store, NEW):
                assert "no live worker can continue it: " in await look()
                store.renew(OTHER)
                assert "; process 77 on elsewhere takes it, which process " in await look()
                assert len(set(await get_reasons(caller))) == 1
                (listed,) = (await caller.get(f"{API}/runs")).json["runs"]
                assert not listed["needs_attention"]
                store.renew(Holder(id="old", ttl_s=0.0))
                assert "no live worker can continue it: " in await look()
            assert await look() == NOT_BEGUN
        assert len({*tags}) == 3

    asyncio.run(main())
