"""Compare Holdfast with its peers: the same workloads, in turn within each round, on the same disk, with a sync for every step.

"The fastest other library" is the fastest peer of a round, with its default settings. By default some peers use a slower journal
mode of SQLite than Holdfast does; a second ratio ("with WAL") also counts these peers with the journal mode of Holdfast.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from bench import lasting, workloads
from bench.contest import PEERS, SERVERS, Absent, Environment, Incapable, Peer
from bench.parts import Bench
from bench.report import Figure, Target, at_least
from bench.stores import Place
from bench.workloads import CHAIN_NODES, FLEET_NODES

_FASTEST = "compared with the fastest other library"
SHIPPED = tuple(peer for peer in PEERS if peer.mode == "shipped")


@dataclass(frozen=True)
class Contest:
    """One workload, for Holdfast and for its peers."""

    name: str
    workload: str
    """The name of the workload in the programs of the peers."""
    ours: Callable[[Place], float]
    """Runs the workload with Holdfast, and returns steps per second."""
    rounds: int
    steps: int
    runs: int = 1
    target: Target | None = None
    only: tuple[str, ...] = ()
    """The peers that the target compares with; empty: all peers."""


@dataclass
class Seen:
    """The results of a peer in a contest."""

    rates: list[float] = field(default_factory=list)
    stored: list[float] = field(default_factory=list)
    """Stored bytes per step."""
    settings: str = ""
    absent: str = ""
    incapable: bool = False


def contests(bench: Bench) -> list[Contest]:
    effort = bench.effort
    wide = {"rounds": 1, "steps": effort.peer_large, "only": ("LangGraph",)}
    return [
        Contest(
            "chain",
            "chain",
            lambda place: CHAIN_NODES / workloads.chain(place).wall_s,
            effort.peer_rounds,
            effort.peer_steps,
            target=at_least(3),
        ),
        Contest(
            "fleet",
            "fleet",
            lambda place: 1000 * FLEET_NODES / workloads.fleet(place, 1000).wall_s,
            max(effort.peer_rounds // 3, 1) if effort.name != "full" else effort.peer_rounds,
            FLEET_NODES,
            effort.peer_fleet,
            at_least(20),
        ),
        Contest("grow", "grow", _grow, 1, min(effort.peer_steps, 1000)),
        Contest("wide state, typed", "wide", lambda at: _wide(at, typed=True), target=at_least(5), **wide),
        Contest(
            "wide state, plain dict",
            "wide_plain",
            lambda at: _wide(at, typed=False),
            target=at_least(3),
            **wide,
        ),
    ]


def _grow(place: Place) -> float:
    return 1e6 / lasting.grow(place, 1000, loop=True).step_us(0, 1000)


def _wide(place: Place, *, typed: bool) -> float:
    return 1000 / lasting.wide(place, 1000, typed=typed).took.wall_s


def peers(bench: Bench) -> list[Figure]:
    """Measure all contests, and return the figures that compare Holdfast with its peers."""
    with Environment() as environment:
        bench.progress.say("install the peers")
        try:
            environment.install()
        except Absent as absent:
            return [
                Figure(f"{contest.name}, {_FASTEST}", "times its rate", [], contest.target, note=str(absent))
                for contest in contests(bench)
            ]
        figures = [figure for contest in contests(bench) for figure in _hold(bench, environment, contest)]
    told = ", ".join(f"{name} {version}" for name, version in sorted(environment.versions.items()))
    figures.append(
        Figure("versions of the other libraries", "packages", [float(len(environment.versions))], note=told)
    )
    return figures


def _hold(bench: Bench, environment: Environment, contest: Contest) -> list[Figure]:
    ours: list[float] = []
    peers = (*PEERS, *SERVERS) if bench.effort.name == "full" else PEERS
    theirs: dict[str, Seen] = {peer.name: Seen() for peer in peers}
    for _ in bench.each_round(f"{contest.name} beside the peers", contest.rounds):
        with bench.fresh() as place:
            ours.append(contest.ours(place))
        for peer in peers:
            _ask(bench, environment, contest, peer, theirs[peer.name])
    shipped = [peer.name for peer in SHIPPED if not contest.only or peer.name in contest.only]
    compared = f"compared with {', '.join(contest.only)}" if contest.only else _FASTEST
    figures = [_ratio(contest, compared, shipped, ours, theirs, contest.target)]
    if not contest.only:
        everyone = [peer.name for peer in PEERS]
        figures.append(_ratio(contest, f"{_FASTEST}, with WAL", everyone, ours, theirs, None))
    figures += [
        _ratio(contest, f"compared with {server.name}", [server.name], ours, theirs, None)
        for server in SERVERS
        if theirs.get(server.name, Seen()).rates
    ]
    figures.append(
        Figure(f"{contest.name}, Holdfast", "steps/s", ours, note="journal mode wal, synchronous=FULL")
    )
    figures += [_shown(contest, name, seen) for name, seen in theirs.items() if seen.rates or seen.absent]
    return figures


def _ask(bench: Bench, environment: Environment, contest: Contest, peer: Peer, seen: Seen) -> None:
    if seen.absent or seen.incapable:
        return
    try:
        answer = environment.ask(peer, bench.folder, contest.workload, steps=contest.steps, runs=contest.runs)
    except Incapable:
        seen.incapable = True
        return
    except Absent as absent:
        seen.absent = str(absent)
        return
    seen.rates.append(answer["steps"] / answer["wall_s"])
    seen.stored.append(answer["stored_bytes"] / answer["steps"])
    seen.settings = answer["settings"]


def _ratio(
    contest: Contest,
    compared: str,
    names: list[str],
    ours: list[float],
    theirs: dict[str, Seen],
    target: Target | None,
) -> Figure:
    whole = [name for name in names if len(theirs[name].rates) == len(ours)]
    ratios = [
        rate / max(theirs[name].rates[number] for name in whole) for number, rate in enumerate(ours) if whole
    ]
    note = "" if whole else "no peer gave a result"
    return Figure(f"{contest.name}, {compared}", "times its rate", ratios, target, note=note)


def _shown(contest: Contest, name: str, seen: Seen) -> Figure:
    if not seen.rates:
        return Figure(f"{contest.name}, {name}", "steps/s", [], note=seen.absent)
    size = f"{contest.runs} runs of {contest.steps}" if contest.runs > 1 else f"{contest.steps}"
    note = f"{size} steps; {seen.settings}"
    return Figure(
        f"{contest.name}, {name}",
        "steps/s",
        seen.rates,
        beside={"bytes stored per step": seen.stored},
        note=note,
    )
