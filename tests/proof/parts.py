"""The parts of the proof. Each part returns lines of a table: how much was tried, the target, and the violations.

A part knows the program that does the work and the target that must be reached; only the program decides what is a violation.
`prove` runs each part in its own process.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
sys.path += [str(TESTS / name) for name in ("proof", "simulation", "chaos", "server", "")]
CHECKED_EVENTS = 1_000_000
CHECKED_S = 30.0
WITH_OTHER_CASES = (
    "tests/runtime",
    "tests/acceptance",
    "tests/page",
    "tests/plan/test_texts.py",
    "tests/reading/test_ledger.py",
    "tests/server/test_openapi.py",
    "tests/simulation/test_plans.py",
    "tests/storage/test_postgres_cuts.py",
    "tests/testing",
)
"""Tests of which `make test` leaves some out."""
OF_OTHER_PARTS = (
    "tests/proof/test_crash_points.py",
    "tests/simulation/test_planted_bugs.py",
    "tests/simulation/test_random_plans.py",
)
"""Tests of which `make test` leaves some out, and whose cases are parts of their own."""
MUTANTS = 50
"""How many mutants must have been tried for their share to be meaningful."""
_PIECE_S = 240.0
"""Schedules run in pieces of this many seconds, so that a night of them fits into memory."""


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    what: str
    many: str
    target: str
    met: bool
    violations: int = 0
    told: str = ""
    """Details, for the JSON file and the document."""
    skipped: str = ""
    """Why nothing was tried; shown prominently with the table."""
    seconds: float = 0.0
    """How long the part took; set in the first line of a part."""
    cpu_s: float = 0.0
    """The processor time that the part used; set in the first line of a part."""


@dataclass(frozen=True)
class Part:
    """One part of the proof: its function, its size in `make prove`, and whether it needs all cores for itself."""

    prove: Callable[[float, int], list[Line]]
    """The function: takes a size (seconds, rounds or runs, depending on the part) and a seed, and returns lines of the table."""
    size: float
    share_s: float
    """The part's share of twelve minutes: in processor time if it runs alone on all cores, otherwise in wall time."""
    nightly: float = 0.0
    """The size for each hour of `make prove-night`; 0 if the night does no more than `make prove`."""
    night_s: float = 0.0
    """About how many seconds of wall time the nightly size takes."""
    alone: bool = False
    only_at_night: bool = False


PARTS: dict[str, Part] = {}


def part(
    size: float = 0.0, share_s: float = 0.0, **options: Any
) -> Callable[[Callable[[float, int], list[Line]]], Any]:
    """Register a function as a part of the proof; the parts keep this order in the table."""

    def register(prove: Callable[[float, int], list[Line]]) -> Callable[[float, int], list[Line]]:
        PARTS[prove.__name__.replace("_", " ")] = Part(prove, size, share_s, **options)
        return prove

    return register


def number(text: str) -> float:
    """Return the first number in a text."""
    found = re.search(r"[\d,]+(?:\.\d+)?", text)
    assert found is not None, text
    return float(found[0].replace(",", ""))


# --- in one process ----------------------------------------------------------------------------------


@part(size=62, share_s=130, nightly=700, night_s=700, alone=True)
def simulated_schedules(seconds: float, seed: int) -> list[Line]:
    """Run the simulator: the real engine and workers on a seeded event loop, with faults."""
    import figures

    pieces = max(1, round(seconds / _PIECE_S))
    schedules = violations = 0
    told: dict[str, str] = {}
    for piece in range(pieces):
        told, _ = figures.prove(
            seconds / pieces, processes=2, first=seed * 1_000_000_000 + piece * 10_000_000
        )
        schedules += int(number(told["schedules"]))
        violations += int(number(told["violations"]))
        print("\n".join(f"{name:<24}{value}" for name, value in told.items()), flush=True)
    rate = schedules / seconds * 60
    shown = {
        "mean number of events": "events, mean",
        "percentiles of the number of events": "events, distribution",
        "mean number of workers": "workers, mean",
        "mean number of faults": "faults, mean",
        "faults of all schedules": "faults by kind",
    }
    least = [number(re.search(r"least (\d+)", told[name])[0]) for name in ("workers, mean", "faults, mean")]  # type: ignore[index]
    mean = number(told["events, mean"])
    distribution = "; ".join(f"{name}: {told[figure]}" for name, figure in shown.items())
    return [
        Line("simulated schedules", f"{schedules:,}, {rate:,.0f} per minute", "≥ 10,000 per minute", rate >= 10_000,
             violations, distribution),
        Line("size of a schedule",
             f"{mean:.0f} events on average; workers: at least {least[0]:.0f}; faults: at least {least[1]:.0f}",
             "≥ 40 events on average, ≥ 2 workers, ≥ 1 fault", mean >= 40 and least[0] >= 2 and least[1] >= 1),
    ]  # fmt: skip


@part(size=300, share_s=8, nightly=2500, night_s=80)
def simulated_plans(size: float, seed: int) -> list[Line]:
    """Run the simulator with random plans: guards, policies, verification, budgets, error edges."""
    return _simulated("plans", size, seed)


@part(size=300, share_s=8, nightly=2000, night_s=70)
def simulated_families(size: float, seed: int) -> list[Line]:
    """Run the simulator with child runs over three generations, which fail and are mended one by one or from the top."""
    return _simulated("families", size, seed)


@part(size=300, share_s=8, nightly=2000, night_s=70)
def simulated_deploys(size: float, seed: int) -> list[Line]:
    """Run the simulator with workers that have the old and the new code of one flow."""
    return _simulated("deploys", size, seed)


def _simulated(kind: str, size: float, seed: int) -> list[Line]:
    import simulated_kinds

    report = simulated_kinds.prove(kind, seed * 1_000_000, int(size))
    print(report, flush=True)
    many = f"{report.schedules:,} schedules, {sum(report.events):,} events"
    return [Line(f"simulated {kind}", many, "no violation", not report.violations, len(report.violations))]


@part(size=150, share_s=10, nightly=1000, night_s=90)
def random_plans(size: float, seed: int) -> list[Line]:
    """Execute random plan documents, eagerly and layer by layer, and compare them with an oracle in plain Python."""
    import random_plans

    figures = random_plans.prove(seed * 1_000_000, int(size))
    print("\n".join([*figures.wrong, str(figures)]), flush=True)
    many = f"{figures.plans:,} plans, {figures.tasks:,} tasks, {figures.runs:,} runs"
    return [
        Line(
            "random plans", many, "what the oracle says", not figures.wrong, len(figures.wrong), str(figures)
        )
    ]


@part(share_s=100)
def planted_bugs(size: float, seed: int) -> list[Line]:
    """Plant bugs, each of which the simulator must find."""
    import figures

    told, sharp = figures.prove_teeth()
    said = told["planted bugs found"]
    return [
        Line(
            "planted bugs found",
            said.partition(";")[0],
            "all, and at least 100",
            sharp and number(said) >= 100,
            told=said,
        )
    ]


@part(share_s=5)
def golden_histories(size: float, seed: int) -> list[Line]:
    """Replay the logs that earlier versions wrote."""
    kept = len(list((TESTS / "histories").glob("v*/*.jsonl")))
    _, wrong = _test("tests/histories")
    return [Line("golden histories", f"{kept} logs", "all are read with the same meaning", not wrong, wrong)]


@part(share_s=100, alone=True)
def tests_that_are_left_out(size: float, seed: int) -> list[Line]:
    """Run the tests that `make test` leaves out: those of the engine on the other stores, and the cases of other days."""
    passed, wrong = _test("--workers", "2", "--left-out", *WITH_OTHER_CASES)
    many = f"{passed:,} tests on another store, or with another case"
    return [Line("tests that make test leaves out", many, "≥ 1,500, all pass", passed >= 1500, wrong)]


@part(share_s=100, alone=True)
def generated_examples(size: float, seed: int) -> list[Line]:
    """Run the tests that generate their examples, with five times as many examples as `make test` has."""
    files = [file for file in TESTS.rglob("test_*.py") if "import given" in file.read_text("utf-8")]
    passed, wrong = _test("--workers", "2", *map(str, files))
    many = f"{passed:,} tests in {len(files)} files"
    return [Line("tests with generated examples", many, "all pass", passed > 0, wrong)]


@part(share_s=15)
def pictures(size: float, seed: int) -> list[Line]:
    """Compare the pictures of the documents with the web page in a real browser."""
    sys.path[:0] = [str(ROOT), str(TESTS / "page")]
    import pictures as studio
    from bench.page import CHROMIUM

    if CHROMIUM is None:
        return [_skipped("pictures of the web page", "chromium is missing")]
    wrong = studio.check(studio.FOLDER)
    print(*wrong, sep="\n", flush=True)
    many = f"{len(studio.SCREENS)} pictures"
    return [Line("pictures of the web page", many, "show what the page shows", not wrong, len(wrong))]


def _test(*words: str) -> tuple[int, int]:
    """Run tests with every example that they generate. Return how many passed and how many failed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr, flush=True)
    passed, wrong = (
        sum(map(int, re.findall(rf"(\d+) {how}", done.stdout.splitlines()[-1] if done.stdout else "")))
        for how in ("passed", "(?:failed|error)")
    )
    return passed, wrong if done.returncode == 0 else max(1, wrong)


@part(share_s=18)
def checked_events(size: float, seed: int) -> list[Line]:
    """Measure how many events per second the independent checker reads."""
    sys.path.insert(0, str(ROOT))
    from bench import checking

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        checking.main(CHECKED_EVENTS)
    took = number(said.getvalue().partition("checked in")[2])
    print(said.getvalue(), flush=True)
    return [
        Line(
            "events checked", f"{CHECKED_EVENTS:,} in {took:.1f} s", f"≤ {CHECKED_S:.0f} s", took <= CHECKED_S
        )
    ]


@part(size=500, share_s=100, nightly=600, night_s=100)
def forked_flows(flows: float, seed: int) -> list[Line]:
    """Fork random flows at every checkpoint, and let each fork die after every commit."""
    import forked_flows as forking

    # A crash question records the git checkout of the current folder: here, there is none.
    with tempfile.TemporaryDirectory(prefix="hf-forks-") as folder, contextlib.chdir(folder):
        told = forking.main(int(flows), seed)
    print(*told["told"], sep="\n", flush=True)
    many = f"{told['flows']:,} flows, {told['forks']:,} forks, killed after {told['deaths']:,} commits"
    return [
        Line("forked flows", many, "≥ 500 flows", told["flows"] >= 500, told["violations"], _listed(told))
    ]


# --- on a real disk ----------------------------------------------------------------------------------


# The same work takes more processor time on a busy machine: so both of these parts may use more than their share.
@part(size=1000, share_s=480, nightly=2000, night_s=1000, alone=True)
def crash_points(cpu_s: float, seed: int) -> list[Line]:
    """Crash or fail at every call that changes the disk, and during the recovery from such a crash."""
    import crash_points as crashes

    by_day = cpu_s <= PARTS["crash points"].size
    told = crashes.main(cpu_s, seed, 1 if by_day else math.inf)
    if "skipped" in told:
        return [_skipped(name, told["skipped"]) for name in ("crash points", "faults while recovering")]
    points, modes, wrong = told["crash points"], told["fault modes"], told["violations"]
    crashed, there_are = told["faults during recovery"], told["possible cases during recovery"]
    states, under_fire = told["different states after a fault"], told["states with a fault during recovery"]
    every_point = told["operations with faults at every point of one recovery"]
    all_points, all_states = told["cases"] == points * modes and modes == 7, under_fire == states
    tried = f"{points:,} points x {modes} faults = {points * modes:,} cases, {'all' if all_points else told['cases']} tried"
    return [
        Line("crash points", tried,
             "every point with all 7 faults", all_points, wrong, _listed(told)),
        Line("faults while recovering", f"{crashed:,} of {there_are:,} possible cases, in {under_fire:,} of {states:,} states",
             "every state once; one state of each operation at every point", all_states and every_point == told["operations"]),
    ]  # fmt: skip


@part(size=280, share_s=110, nightly=500, night_s=250, alone=True)
def power_loss(cpu_s: float, seed: int) -> list[Line]:
    """Check the states that a disk may have after a power loss."""
    import power_loss as losses

    wanted = losses.STATES if cpu_s <= PARTS["power loss"].size else math.inf
    told = losses.main(cpu_s, wanted, seed)
    if "skipped" in told:
        return [
            _skipped(name, told["skipped"])
            for name in ("power-loss states", "control: power-loss states with unsafe syncs")
        ]
    states, wrong = told["power-loss states"], told["violations"]
    moments, in_all = told["moments"], told["possible moments"]
    lost, careless = told["of these, lost acknowledged data"], told["states of the control"]
    return [
        Line("power-loss states", f"{states:,}, at {moments:,} of {in_all:,} moments", "≥ 20,000, at all moments",
             states >= 20_000 and moments == in_all, wrong, _listed(told)),
        Line("control: power-loss states with unsafe syncs", f"{lost:,} of {careless:,} states lost data", "at least 1",
             lost > 0),
    ]  # fmt: skip


def _skipped(what: str, why: str) -> Line:
    return Line(what, "SKIPPED", "to be tried", met=False, told=why, skipped=why)


# --- real processes ----------------------------------------------------------------------------------


@part(size=200, share_s=40, nightly=500, night_s=90)
def zombie_rounds(rounds: float, seed: int) -> list[Line]:
    """Stop processes until their lease has expired, and let them continue."""
    import zombies

    told = zombies.main(rounds)
    many, stale = told["zombie rounds"], told["stale writes in the control"]
    return [
        Line(
            "zombie rounds (SIGSTOP)",
            f"{many:,} rounds",
            "≥ 200",
            many >= 200,
            told["violations"],
            _listed(told),
        ),
        Line(
            "control: zombie rounds without the fence check",
            f"{stale} stale writes accepted",
            "at least 1",
            stale > 0,
        ),
    ]


@part(size=150, share_s=20, nightly=1000, night_s=150)
def chaos_on_sqlite(runs: float, seed: int) -> list[Line]:
    """Run a fleet on SQLite whose workers are killed and paused."""
    return _chaos("SqliteGround", int(runs), seed)


@part(size=150, share_s=20, nightly=1000, night_s=150)
def chaos_on_postgres(runs: float, seed: int) -> list[Line]:
    """Run a fleet on PostgreSQL whose workers are killed and paused, and whose database is restarted."""
    return _chaos("PostgresGround", int(runs), seed)


def _chaos(ground: str, runs: int, seed: int) -> list[Line]:
    import chaos

    with tempfile.TemporaryDirectory(prefix="hf-chaos-") as folder:
        made = chaos.SqliteGround(Path(folder)) if ground == "SqliteGround" else chaos.PostgresGround()
        try:
            found = chaos.endure(
                made, Path(folder), chaos.Plan(seed=seed, runs=runs, batches=max(10, runs // 25))
            )
        finally:
            made.close()
    print(found, *found.violations[:20], sep="\n  VIOLATION ", flush=True)
    many = f"{found.ended} runs; workers killed: {found.kills}, suspended: {found.pauses}"
    many += f"; restarts of the server: {found.restarts}" if found.restarts else ""
    return [
        Line(
            f"chaos on {found.ground}",
            many,
            "all runs end",
            found.ended == runs,
            len(found.violations),
            str(found).removeprefix(f"chaos on {found.ground}, "),
        )
    ]


# --- the server --------------------------------------------------------------------------------------


@part(size=5000, share_s=60)
def random_requests(requests: float, seed: int) -> list[Line]:
    """Send requests that are made at random from the OpenAPI document, valid and invalid ones."""
    import storms

    told = storms.random_requests(int(requests), seed)
    print(*told["violations"], sep="\n", flush=True)
    many = f"{told['requests']:,} requests to {told['operations']} operations"
    met = told["requests"] >= 5000
    target = "≥ 5,000; no 5xx, every answer fits its schema"
    return [Line("random requests to the server", many, target, met, len(told["violations"]), _listed(told))]


@part(size=40, share_s=18)
def repeated_keys(rounds: float, seed: int) -> list[Line]:
    """Send every verb with the same `Idempotency-Key` 16 times at once; it must act once."""
    import asyncio

    import storms

    with tempfile.TemporaryDirectory(prefix="hf-keys-") as folder, contextlib.chdir(folder):
        told = asyncio.run(storms.same_keys(int(rounds), Path(folder)))
    print(*told["violations"], sep="\n", flush=True)
    many = f"{told['runs']:,} runs, {told['requests']:,} requests"
    return [
        Line("verbs sent 16 times at once", many, "≥ 300 runs", told["runs"] >= 300, len(told["violations"]))
    ]


@part(size=6, share_s=15)
def live_events(seconds: float, seed: int) -> list[Line]:
    """Follow runs over HTTP while connections are cut and processes are killed, and stop a server with a thousand streams."""
    import live_storm

    found = live_storm.storm(seconds, seed)
    print(found, *found.violations[:20], sep="\n  VIOLATION ", flush=True)
    took_s, code = live_storm.end_full_server()
    many = f"{found.clients} clients; connections cut: {found.cuts}, processes killed: {found.kills}"
    return [
        Line(
            "live events",
            many,
            "every client gets every event once",
            found.cuts > 100 and found.kills >= 5,
            len(found.violations),
            f"{found.events:,} events and {found.chunks:,} chunks read",
        ),
        Line(
            "SIGTERM with 1,000 streams",
            f"ended after {took_s:.1f} s with exit code {code}",
            "≤ 5 s",
            took_s <= 5.0 and code == 0,
        ),
    ]


# --- only at night -----------------------------------------------------------------------------------


@part(only_at_night=True, alone=True)
def branch_coverage(size: float, seed: int) -> list[Line]:
    """Measure the branch coverage of the modules that all promises depend on, by their own tests."""
    import covered

    found = covered.main()
    many = f"{found.share:.2f} %" + (", but tests failed" if found.failed else "")
    return [
        Line("branch coverage", many, "100 %", found.share >= 100.0 and not found.failed, told=found.missing)
    ]


@part(size=300, nightly=1200, night_s=1200, alone=True, only_at_night=True)
def mutants_of_the_core(seconds: float, seed: int) -> list[Line]:
    """Make small mistakes in the core, each of which the core's own tests must find."""
    import mutation

    told = mutation.main(seconds, least=MUTANTS + 10)  # Python may refuse to load a few
    many = f"{told['killed']} of {told['tried']} ({told['share']:.1%})"
    well = told["share"] >= 0.85 and told["tried"] >= MUTANTS
    return [Line("mutants found", many, f"≥ 85 % of ≥ {MUTANTS}", well, told=_listed(told))]


def _listed(told: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in told.items() if not isinstance(value, list))
