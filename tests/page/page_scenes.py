"""A store whose runs show what the page is for: every status, crashes, retries, a loop, a fan-out, questions and a fork.

The flows are in `scene/`, and their runs are made by the real library in real processes, some of which are killed with SIGKILL.
A process of the past has a manual clock, so that hours pass in milliseconds; the processes of the present (`Scene`) are plain
workers. `python scenes.py` makes the past in the folder in which it is called. It forks a process for each part, because a new
one would take fifty times as long to start.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import holdfast as hf
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock

FLOWS = Path(__file__).with_name("scene")
STORE = ".holdfast/runs.db"
RUN_BASE = ".holdfast/files"
HOUR = 3600.0

Part = Callable[[hf.Engine], Coroutine[Any, Any, object]]


# --- the past -------------------------------------------------------------------------------------------


def load(name: str) -> Any:
    """Load a module of the scene. Its code has a relative path, so that a traceback shows no temporary folder."""
    module = ModuleType(name)
    sys.modules[name] = module
    file = f"shop/{name}.py"
    exec(compile(Path(file).read_text("utf-8"), file, "exec"), module.__dict__)
    return module


class Past:
    """Makes the runs that were made before now, in the folder in which this process is."""

    def __init__(self) -> None:
        self.payments, self.shop, self.etl = (load(name) for name in ("payments", "shop", "etl"))
        self.now = time.time()
        self.random = random.Random(1)

    def process(self, ago: float, part: Part, *, killed_after: float | None = None, outages: int = 0) -> None:
        """Let a process execute a part that begins so many seconds ago, and kill it after some of its seconds."""
        pid = os.fork()
        if pid == 0:
            self.payments.BANK.outages = outages
            with suppress(hf.RunFailed):
                asyncio.run(self._play(ago, part, killed_after))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == (0 if killed_after is None else -signal.SIGKILL), status

    async def _play(self, ago: float, part: Part, killed_after: float | None) -> None:
        clock = ManualClock(self.now - ago, auto=True)
        self.shop.sleep = lambda seconds: _pass(clock, seconds)
        if killed_after is not None:
            clock.call_at(clock.now() + killed_after, lambda: os.kill(os.getpid(), signal.SIGKILL))
        async with hf.Engine(
            STORE, flows=self.flows(), clock=clock, luck=self.random, inline=True, run_base=RUN_BASE
        ) as engine:
            for name in engine.flows:
                engine.flow_files[name] = "shop/etl.py" if name == "nightly-etl" else "shop/shop.py"
            await part(engine)

    def flows(self) -> list[hf.Flow[Any]]:
        shop = self.shop
        return [shop.order, shop.brief, shop.refund, shop.parcel, shop.reindex, self.etl.etl]

    def work(self, *flows: hf.Flow[Any], for_s: float = 0) -> Part:
        """Return a part that works as a worker for these flows, until no run is left to execute now or in so many seconds."""

        async def part(engine: hf.Engine) -> None:
            for name in engine.flows.keys() - {flow.name for flow in flows}:
                del engine.flows[name]
            await engine.work(queues=["default"], until="idle", on_end=lambda run: None)
            if for_s:
                await self.shop.sleep(for_s)
                await engine.work(queues=["default"], until="idle", on_end=lambda run: None)

        return part


async def _pass(clock: ManualClock, seconds: float) -> None:
    """Sleep on a manual clock."""
    passed = asyncio.get_running_loop().create_future()
    clock.call_at(clock.now() + seconds, lambda: passed.cancelled() or passed.set_result(None))
    await passed


def make_past() -> None:
    """Make all runs, the oldest first: a list of runs has the newest first."""
    past = Past()
    make_orders_of_the_last_hour(past)
    make_long_work(past)
    make_failed_order(past)
    make_questions(past)
    make_briefs(past)
    make_small_ends(past)


def make_orders_of_the_last_hour(past: Past) -> None:
    """Orders that were placed this morning and end one after the other, some of them with a card that is declined."""
    count = 30

    async def place(engine: hf.Engine) -> None:
        for number in range(count):
            card = "tok_51c8f2" if number in (9, 21) else "tok_9ac401"
            given = {"order": f"{4600 + number}", "card": card}
            await engine.start(past.shop.order, given, run_id=f"order-{4600 + number}")

    async def execute(engine: hf.Engine) -> None:
        for number in range(count):
            with suppress(hf.RunFailed):
                await engine.resume(f"order-{4600 + number}")
            if number in (9, 21):
                await engine.cancel(f"order-{4600 + number}", "the customer withdrew", by="ada")
            await past.shop.sleep(10 + 130 * past.random.random() * (1.4 if 15 < number < 24 else 0.7))

    past.process(4 * HOUR, place)
    past.process(3500, execute)


def make_long_work(past: Past) -> None:
    """An index that is paused, one that was shut down in order, and a nightly load whose process died."""

    async def stop_soon(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.resume("reindex-8"))
        await past.shop.sleep(360 + 960)
        await engine.stop("the machine restarts", grace=0)
        await asyncio.gather(going, return_exceptions=True)

    async def pause_soon(engine: hf.Engine) -> None:
        going = asyncio.create_task(engine.resume("reindex-9"))
        await past.shop.sleep(300)
        await engine.pause("reindex-9", "until the migration is through", by="grace")
        await going

    for name, part in (("reindex-8", stop_soon), ("reindex-9", pause_soon)):
        past.process(
            3.2 * HOUR,
            lambda engine, name=name: engine.start(past.shop.reindex, {}, run_id=name, queue="slow"),
        )
        past.process(3 * HOUR, part)
    past.process(
        2.9 * HOUR,
        lambda engine: engine.run(past.etl.etl, {}, run_id="etl-2026-11-16"),
        killed_after=390,
    )


def make_failed_order(past: Past) -> None:
    """An order whose first process is killed, whose bank does not answer and then declines the card, and a fork with another."""
    first = 2 * HOUR + 26 * 60
    given = {"order": "4711", "card": "tok_51c8f2"}
    labels = {"customer": "acme", "region": "eu"}
    order = past.shop.order
    past.process(
        first,
        lambda engine: engine.run(order, given, run_id="order-4711", labels=labels, by="web"),
        killed_after=3.7,
    )
    past.process(first - 10, past.work(order, for_s=5.1), outages=1)
    past.process(40, lambda engine: engine.resume("order-4711", by="ada", reason="card updated"))


def make_questions(past: Past) -> None:
    """A form with a deadline, a payment that was interrupted, a choice of carriers, and a parcel that waits for a signal."""
    shop = past.shop
    past.process(2 * HOUR, lambda engine: engine.run(shop.parcel, {}, run_id="parcel-118"))
    past.process(48 * 60, lambda engine: engine.run(shop.parcel, {"pallets": 14}, run_id="parcel-121"))
    given = {"order": "4690", "cents": 1800}
    labels = {"customer": "lumen"}
    past.process(
        11 * 60,
        lambda engine: engine.run(shop.refund, given, run_id="refund-0093", labels=labels),
        killed_after=7.0,
    )
    past.process(10 * 60, past.work(shop.refund))
    given = {"order": "4698", "cents": 4200, "customer": "lumen"}
    past.process(
        8 * 60, lambda engine: engine.run(shop.refund, given, run_id="refund-0094", labels=labels, by="ada")
    )


def make_briefs(past: Past) -> None:
    """A text that waits for its approval, one whose flow has changed since, and one that was killed twice and goes on now."""
    shop = past.shop
    old = shop.build_brief(checks_facts=True)
    labels = {"team": "docs"}

    async def begin_old(engine: hf.Engine) -> None:
        engine.flows.pop("brief")
        await engine.run(old, {"subject": "moons"}, run_id="brief-03", queue="slow", labels=labels)

    async def drain(engine: hf.Engine) -> None:
        working = asyncio.create_task(past.work(shop.brief)(engine))
        await past.shop.sleep(12)
        engine.stop("deploy", grace=5)
        await working

    def begin(name: str, subject: str, ago: float) -> None:
        def run(engine: hf.Engine) -> Coroutine[Any, Any, object]:
            return engine.run(shop.brief, {"subject": subject}, run_id=name, labels=labels, by="ada")

        past.process(ago, run, killed_after=13)
        past.process(ago - 15, drain)
        past.process(ago - 104, past.work(shop.brief), killed_after=15)

    past.process(7 * 60, begin_old, killed_after=30)
    begin("brief-storms-07", "storms", 6 * 60)
    past.process(6 * 60 - 121, past.work(shop.brief))
    begin("brief-tides-20", "tides", 150)


def make_small_ends(past: Past) -> None:
    """Orders that are retried, cancelled, completed and pending, and two runs for the workers of now."""
    order = past.shop.order

    async def run(engine: hf.Engine, number: int, customer: str, **given: str) -> None:
        await engine.run(
            order,
            {"order": str(number), **given},
            run_id=f"order-{number}",
            labels={"customer": customer},
        )

    async def cancel(engine: hf.Engine) -> None:
        await engine.start(order, {"order": "4719"}, run_id="order-4719", labels={"customer": "north"})
        await engine.cancel("order-4719", "customer withdrew", by="ada")

    async def fork(engine: hf.Engine) -> None:
        joined = [point.seq for point in await engine.checkpoints("order-4711") if point.seq < 16][-1]
        await engine.fork(
            "order-4711", checkpoint=joined, run_id="order-4711-newcard", edit={"card": "tok_77bc01"}, repeat="run",
            by="ada", reason="customer gave another card", labels={"customer": "acme"},
        )  # fmt: skip
        await engine.resume("order-4711-newcard")

    async def record(engine: hf.Engine) -> None:
        labels = {"customer": "orbit"}
        await engine.start(order, {"order": "4725"}, run_id="order-4725", labels=labels)
        await engine.start(past.shop.reindex, {}, run_id="reindex-10", queue="slow", priority=9)
        await engine.start(
            order, {"order": "4726"}, run_id="order-4726", queue="slow", labels={"customer": "acme"}
        )

    past.process(6 * 60, cancel)
    past.process(
        66,
        lambda engine: engine.start(
            order, {"order": "4722"}, run_id="order-4722", labels={"customer": "north"}
        ),
    )
    past.process(65, past.work(order, for_s=5.1), outages=2)
    past.process(48, lambda engine: run(engine, 4723, "quill"))
    past.process(31, lambda engine: run(engine, 4724, "acme"))
    past.process(20, fork)
    past.process(2, record)


# --- the present ----------------------------------------------------------------------------------------


class Scene:
    """The store of the past, and the workers of now: one that writes a text and takes an order, and one that builds an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        shutil.copytree(
            FLOWS, folder / "shop", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        paths = os.pathsep.join([str(folder / "shop"), *(path for path in sys.path if path)])
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))
        }
        self.environment = {
            **clean, "PYTHONPATH": paths, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder),
            "LOGNAME": "ada",
        }  # fmt: skip
        self.program = folder / "holdfast"  # suggested commands begin with a name that the shell finds
        self.program.write_text(f"#!{sys.executable}\nimport holdfast.cli\nholdfast.cli.main()\n")
        self.program.chmod(0o755)
        subprocess.run([sys.executable, __file__], cwd=folder, env=self.environment, check=True)
        self.processes: list[subprocess.Popen[str]] = []

    @property
    def store(self) -> Path:
        """The store, for an engine in the test."""
        return self.folder / STORE

    def start(self, *words: str, pace: float = 1, folder: str = ".") -> subprocess.Popen[str]:
        """Start a command of Holdfast beside the store, or in another folder."""
        begun = subprocess.Popen(
            [self.program, *words],
            cwd=self.folder / folder,
            env={**self.environment, "SHOP_PACE": str(pace)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(begun)
        return begun

    def work(self) -> None:
        """Start the workers. Their nodes take so long that they run as long as the scene is shown."""
        subprocess.run(
            [self.program, "queue", "slow", "--limit", "5"],
            cwd=self.folder, env=self.environment, check=True, capture_output=True,
        )  # fmt: skip
        self.start("worker", "shop/shop.py", "--queue", "default", "--run-base", RUN_BASE, pace=HOUR)
        self.start("worker", "shop/shop.py", "--queue", "slow", "--concurrency", "3", pace=HOUR)
        self._until_refused("brief-03")

    def _until_refused(self, run_id: str) -> None:
        """Wait until the worker has found that it cannot continue a run, whose flow has changed."""
        with closing(SqliteStore(self.store)) as store:
            until = time.monotonic() + 60.0
            while not store.queues.refusals([run_id]):
                assert time.monotonic() < until, f"no worker has refused {run_id}"
                time.sleep(0.05)

    def serve(self, *words: str) -> str:
        """Start a server of the shop, and return its address with the token."""
        return self._address(
            self.start("serve", "shop/shop.py", "--no-work", "--run-base", RUN_BASE, "--port", "0", *words)
        )

    def serve_new(self) -> str:
        """Start a server in an empty folder, and return its address with the token."""
        (self.folder / "new").mkdir()
        return self._address(self.start("serve", "--port", "0", folder="new"))

    def serve_family(self) -> str:
        """Start a server of a run with child runs, and return its address with the token."""
        (self.folder / "family").mkdir()
        self.start("run", "../shop/basket.py:ordered", "--run-id", "order-4800", folder="family").wait()
        return self._address(
            self.start("serve", "../shop/basket.py", "--no-work", "--port", "0", folder="family")
        )

    def serve_plans(self) -> str:
        """Start a server of runs that follow plans, and return its address with the token."""
        folder = self.folder / "plans"
        folder.mkdir()
        making = [sys.executable, "../shop/delivery.py", STORE]
        subprocess.run(making, cwd=folder, env=self.environment, check=True)
        return self._address(
            self.start("serve", "../shop/delivery.py", "--no-work", "--port", "0", folder="plans")
        )

    @staticmethod
    def _address(serving: subprocess.Popen[str]) -> str:
        assert serving.stdout is not None
        return serving.stdout.readline().rstrip()

    def stop(self) -> None:
        """Kill all processes of now."""
        for process in self.processes:
            process.kill()
            process.communicate()


@contextmanager
def open_scene(folder: Path) -> Iterator[Scene]:
    """Make a scene in an empty folder, and end its processes afterwards."""
    scene = Scene(folder)
    try:
        yield scene
    finally:
        scene.stop()


if __name__ == "__main__":
    make_past()
