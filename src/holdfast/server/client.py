"""`Client`: the verbs of the engine over HTTP, for a program on any machine. `BlockingClient` has the same verbs, which block.

A client executes no node: it starts runs, follows them and makes requests, and the workers of the server carry these out. It
raises the exceptions that an engine raises. A request that changes something carries a key, so it is safe to send it again: the
client does so by itself if the connection is cut, and a caller who gives an `id` may repeat the call.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from holdfast.core import requests as records
from holdfast.core.graph import Flow, FlowSource
from holdfast.core.run_state import ENDED, GOING, UNDER_WAY
from holdfast.core.verb_options import options_of, read_options
from holdfast.errors import (
    PlanError,
    Problem,
    RequestExists,
    RunNotFound,
    SettingError,
    StoreBusy,
    StoreUnusable,
    did_you_mean,
)
from holdfast.plan.document import Source as PlanSource
from holdfast.plan.document import read
from holdfast.reading.chunks import Chunk
from holdfast.reading.following import Cursor, InOrder
from holdfast.reading.history import Checkpoint, split
from holdfast.reading.ledger import Ledger
from holdfast.reading.plan_documents import plan_document
from holdfast.reading.previews import VERBS, Preview
from holdfast.reading.reader import in_asking_order
from holdfast.reading.relatives import WaitedFor, check_waited_for
from holdfast.reading.views import (
    AskedQuestion,
    EventView,
    RequestView,
    Run,
    RunSummary,
    result_of,
    type_state,
)
from holdfast.runtime.followers import Following
from holdfast.runtime.verb_signatures import takes, takes_run
from holdfast.server.answer_parts import (
    CheckpointsPart,
    EventsPart,
    LedgerPart,
    MovedTo,
    NewRunId,
    PlanPart,
    PlanProblems,
    QuestionsPart,
    RequestsPart,
    RunsPart,
    SentVerb,
    StatePart,
    StreamedEvent,
)
from holdfast.server.http_session import AGAIN_S, HttpSession
from holdfast.storage.contract import RunStatus
from holdfast.storage.http.problem_types import ReportedProblem, error_of
from holdfast.storage.http.server_url import ServerUrl, check_token, token_from
from holdfast.upkeep.retention import KEEP_LAST, Deleted, Pruned

S = TypeVar("S")
T = TypeVar("T")

_LONG_POLL_S = 30
_SILENT_S = 1.0
"""After how many seconds without news a follower looks whether the run has stopped."""
_RESTART_S = (*AGAIN_S, 3.0, 5.0, 10.0, 10.0)
"""For how many seconds a follower waits before each attempt to reach a server again that has answered before: it may be
restarted.
"""
_EVENTS_MAX = 200
_CHECKPOINTS_MAX = 1000
_ENTRIES_MAX = 1000
_AT_ONCE = 8
"""How many runs are read at the same time for their questions."""
_RUNS_MAX = 200


class Client:
    """The runs of a server: `async with Client("https://holdfast.example.com", token) as client`. Without `token`, that in
    HOLDFAST_TOKEN is used. With `flows`, the states of their runs are typed.
    """

    def __init__(self, url: str, token: str | None = None, *, flows: Iterable[Flow[Any]] = ()) -> None:
        self._url = ServerUrl.parse(url)
        self._token = check_token(token, "token") if token is not None else token_from()
        self._flows = {flow.name: flow for flow in flows}
        self._session: HttpSession | None = None

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._url.text

    async def __aenter__(self) -> Self:
        if self._session is not None:
            raise SettingError("this client is open already; make another one with Client(…)")
        self._session = HttpSession(self._url, self._token)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the server. Closing twice is harmless."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> HttpSession:
        if self._session is None:
            raise SettingError("the client is not open; use it as `async with Client(…) as client`")
        return self._session

    # --- verbs that make runs ------------------------------------------------------------------------

    @takes(records.Start, records.StartThere)
    async def start(
        self,
        flow: Flow[S] | FlowSource | str,
        input: S | Mapping[str, Any] | None = None,
        *,
        plan: PlanSource | None = None,
        **options: Unpack[records.StartThere],
    ) -> str:
        """Record a run of a flow that the server knows, given by name or as the flow itself, and return its id. A worker executes
        it. `plan` is the plan to execute, if the flow names capabilities: a file, a text in JSON or YAML, or a dict. The options
        are those of `Engine.start`; `by` is for whom the run is started: logs record it after the name of the token.
        """
        sent = _plan_of(flow, plan)
        body = read_options(records.Start, options)
        by = body.pop("by", None)
        body["flow"] = flow if isinstance(flow, str) else flow.name
        body["input"] = _plain_input(flow, input) if sent is None else input
        return (await self._post("/runs", {**body, "plan": sent}, NewRunId, by=by)).id

    @takes(records.Start, records.RunOptions)
    async def run(
        self,
        flow: Flow[S] | FlowSource | str,
        input: S | Mapping[str, Any] | None = None,
        *,
        plan: PlanSource | None = None,
        **options: Unpack[records.RunOptions],
    ) -> Run[S]:
        """Start a run, and wait until it has stopped: see `start` and `wait`."""
        if isinstance(flow, Flow):
            self._flows.setdefault(flow.name, flow)
        return await self.wait(await self.start(flow, input, plan=plan, **options))

    @takes(records.Fork, records.ForkThere)
    async def fork(self, run: str, **options: Unpack[records.ForkThere]) -> str:
        """Make a new run that shares the history of another up to a checkpoint (default: the latest), and return its id. A worker
        executes it, unless the run had stopped at that checkpoint: then resume it. The options are those of `Engine.fork`.
        """
        parent, seq = split(run, options.pop("checkpoint", None))
        body = {**read_options(records.Fork, options), "checkpoint": seq}
        headers = {name: body.pop(name, None) for name in ("by", "expects")}
        return (await self._post(_path(parent, "fork"), body, NewRunId, **headers)).id

    # --- verbs that ask ------------------------------------------------------------------------------

    @takes(records.Resume, records.ResumeThere)
    async def resume(self, run: str, **options: Unpack[records.ResumeThere]) -> Run[Any]:
        """Ask for a run to be resumed; a worker does it. The options are those of `Engine.resume`, without functions.

        Returns the run as it is when the request is stored; with `wait`, when it has stopped since or asks something, or after so
        many seconds. A refusal that happens meanwhile is raised. `expects` is the digest of a preview that must still be true.
        """
        run_id, seq = split(run, options.pop("checkpoint", None))
        return await self._ask(run_id, records.Resume, {"checkpoint": seq, **options})

    @takes(records.Retry, records.RetryThere)
    async def retry(
        self, run: str, node: str | None = None, **options: Unpack[records.RetryThere]
    ) -> Run[Any]:
        """Ask for a node that failed, was interrupted or waits to be retried (default: all such nodes). `wait`: see `resume`."""
        return await self._ask(run, records.Retry, {"node": node, **options})

    @takes(records.Skip, records.SkipThere)
    async def skip(
        self,
        run: str,
        node: str,
        update: Mapping[str, Any] | None = None,
        **options: Unpack[records.SkipThere],
    ) -> Run[Any]:
        """Ask for a node to be skipped: `update` takes the place of its result. `wait`: see `resume`."""
        return await self._ask(run, records.Skip, {"node": node, "update": update, **options})

    @takes(records.Cancel, records.CancelThere)
    async def cancel(
        self, run: str, reason: str | None = None, **options: Unpack[records.CancelThere]
    ) -> Run[Any]:
        """End a run for good. Running nodes are stopped. `wait`: see `resume`."""
        return await self._ask(run, records.Cancel, {"reason": reason, **options})

    @takes(records.Pause, records.PauseThere)
    async def pause(
        self, run: str, reason: str | None = None, **options: Unpack[records.PauseThere]
    ) -> Run[Any]:
        """Pause a run: running nodes may end, but no node starts until the run is resumed. `wait`: see `resume`."""
        return await self._ask(run, records.Pause, {"reason": reason, **options})

    @takes(records.Edit, records.EditThere)
    async def edit(self, run: str, edit: Mapping[str, Any], **options: Unpack[records.EditThere]) -> Run[Any]:
        """Change fields of the state of a run that is not running. `wait`: see `resume`."""
        return await self._ask(run, records.Edit, {"edit": edit, **options})

    @takes(records.Answer, records.AnswerThere)
    async def answer(
        self, run: str, question: str, value: Any, **options: Unpack[records.AnswerThere]
    ) -> Run[Any]:
        """Answer a question of a run, by its key, or by the name of its node if that has only one open question. With `wait`, the
        run is returned when it has stopped or asks its next question. Raises `AnswerRefused` and `RunOver`.
        """
        return await self._ask(run, records.Answer, {"question": question, "value": value, **options})

    @takes(records.Signal, records.SignalThere)
    async def signal(
        self, run: str, name: str, payload: Any = None, **options: Unpack[records.SignalThere]
    ) -> Run[Any]:
        """Send a signal to a run. With an `id`, it can be sent twice without harm. Raises `SignalRefused` and `RunOver`. `wait`:
        see `resume`.
        """
        return await self._ask(run, records.Signal, {"name": name, "payload": payload, **options})

    @takes_run
    async def prune(self, run: str, keep_last: int = KEEP_LAST, *, compact: bool = False) -> Pruned:
        """Retire all checkpoints of a run except the last `keep_last`, and with `compact` replace the events before them with one
        stored state. The token needs the role `admin`.
        """
        body = {"keep_last": keep_last, "compact": compact}
        return await self._open().send("POST", _path(run, "prune"), Pruned, body=body)

    @takes_run
    async def delete(self, run: str) -> Deleted:
        """Delete a run that is over, with its log, for good. Raises as `Engine.delete` does. The token needs the role `admin`."""
        return await self._open().send("DELETE", _path(run), Deleted)

    async def _ask(
        self, run_id: str, record: type[records.AnyRequest], options: Mapping[str, Any]
    ) -> Run[Any]:
        known, said = options_of(record), read_options(record, options)
        headers = {name: said.pop(name, None) for name in ("id", "by", "expects", "wait")}
        body = {known[name].body_name: value for name, value in said.items() if value is not UNSET}
        try:
            asked = await self._post(_path(run_id, record.verb), body, SentVerb, **headers)
        except RequestExists as other:  # the server says only that the key was used
            other.run_id, other.request, other.verb = run_id, headers["id"] or "", record.verb
            raise
        return self._typed(asked.run)

    async def _post(
        self,
        path: str,
        body: dict[str, Any],
        kind: type[T],
        *,
        by: str | None,
        id: str | None = None,
        expects: str | None = None,
        wait: float | None = None,
    ) -> T:
        """Send a request under a key: the one that the caller gave, or one that is new for this call."""
        headers = {"Idempotency-Key": id if id is not None else secrets.token_hex(12)}
        if by is not None:
            headers["Holdfast-For"] = by
        if expects is not None:
            headers["If-Match"] = f'"{expects}"'
        if wait is not None:
            headers["Prefer"] = f"wait={max(0, int(wait))}"
        sent = {name: value for name, value in body.items() if value is not None or name in _MAY_BE_NULL}
        return await self._open().send("POST", path, kind, body=sent, headers=headers)

    # --- plans ---------------------------------------------------------------------------------------

    async def check_plan(self, flow: FlowSource | str, plan: PlanSource) -> list[Problem]:
        """List the problems of a plan (a file, a text in JSON or YAML, or a dict), each with its path; an empty list if the
        capabilities with this name can execute it. Nothing is recorded.
        """
        try:
            body = {"flow": flow if isinstance(flow, str) else flow.name, "plan": read(plan)}
        except PlanError as fault:
            return list(fault.problems)
        found = await self._open().send("POST", "/plans/check", PlanProblems, body=body)
        return [Problem(one.path, one.message) for one in found.problems]

    async def plan_schema(self, flow: FlowSource | str) -> dict[str, Any]:
        """Get the JSON Schema of the plans that the capabilities with this name can execute."""
        name = flow if isinstance(flow, str) else flow.name
        return await self._open().get("/plans/schema", dict[str, Any], {"flow": name})

    async def plan(self, run: str) -> dict[str, Any]:
        """Get the plan of a run, as a document that can be executed again; by `"r1@17"`, as it was at that event."""
        run_id, at = split(run, None)
        return (await self._open().get(_path(run_id, "plan"), PlanPart, {"at": at})).plan

    # --- verbs that read -----------------------------------------------------------------------------

    async def preview(self, run: str, verb: str, /, **options: Any) -> Preview:
        """Find out what `resume`, `retry`, `skip`, `fork` or `cancel` would do to a run, without doing it. `options` are those of
        the verb. Its digest is `expects` of the verb.
        """
        if verb not in VERBS:
            raise SettingError(
                f"the verb {verb!r} has no preview; {', '.join(VERBS)} have one{did_you_mean(verb, VERBS)}"
            )
        run_id, seq = split(run, options.pop("checkpoint", None))
        body = {name: _plain_option(value) for name, value in options.items() if value is not None}
        body |= {"checkpoint": seq} if seq is not None else {}
        return await self._open().send(
            "POST", _path(run_id, verb), Preview, words={"preview": True}, body=body
        )

    @takes_run
    async def requests(self, run: str) -> list[RequestView]:
        """List the requests to a run that wait for an engine, and those that were refused, oldest first."""
        return (await self._open().get(_path(run, "requests"), RequestsPart)).requests

    async def get(self, run: str) -> Run[Any]:
        """Get a run as it is now or, by `"r1@17"`, as it was at that event. Its state is typed if the client was given the
        flow.
        """
        run_id, at = split(run, None)
        words = {"at": at} if at is not None else {}
        return self._typed(await self._open().get(_path(run_id), Run[Any], words))

    @takes_run
    async def wait(self, run: str, timeout: float | None = None, *, until: WaitedFor = "stopped") -> Run[Any]:
        """Wait until a run has stopped, or waits for an answer, a signal or a long time; with `until="ended"`, until it is
        completed, failed or cancelled. A run that only waits for child runs has not stopped as long as one of them goes on.
        Raises `RunFailed` and `RunCancelled`, and `TimeoutError` after `timeout` seconds.
        """
        check_waited_for(until)
        try:
            async with asyncio.timeout(timeout):
                now = await self._open().get(_path(run), _PolledRun)
                while not (now.status in ENDED if until == "ended" else _has_stopped(now)):
                    words = {"wait": _poll_s(now), "after": now.seq}
                    now = await self._open().get(_path(run), _PolledRun, words)
        except TimeoutError:
            raise TimeoutError(
                f"run {run!r} has not stopped after {timeout:g} s. The run is not affected; you can wait for it again."
            ) from None
        return result_of(self._typed(now))

    async def runs(
        self,
        *,
        status: RunStatus | Collection[RunStatus] = (),
        flow: str | None = None,
        labels: Mapping[str, str] | None = None,
        parent: str | None = None,
        origin: str | None = None,
        limit: int = 100,
    ) -> list[RunSummary]:
        """List the runs that meet every condition, newest first. `parent`: the forks of this run; `origin`: its child runs."""
        words: dict[str, Any] = {
            "status": [status] if isinstance(status, str) else list(status),
            "flow": flow,
            "label": [f"{name}={value}" for name, value in (labels or {}).items()],
            "parent": parent,
            "origin": origin,
        }
        found: list[RunSummary] = []
        while len(found) < limit:
            page = await self._open().get(
                "/runs", RunsPart, {**words, "limit": min(limit - len(found), _RUNS_MAX)}
            )
            found += page.runs
            if page.next is None:
                break
            words["cursor"] = page.next
        return found

    async def state(self, run: str, checkpoint: str | int | None = None) -> Any:
        """Get the state of a run at a checkpoint (default: at the end), as plain data."""
        run_id, seq = split(run, checkpoint)
        return (await self._open().get(_path(run_id, "state"), StatePart, {"at": seq})).state

    @takes_run
    async def events(
        self, run: str, after: int = 0, node: str | None = None, kind: str | None = None
    ) -> list[EventView]:
        """List the stored events of a run, oldest first: those after this seq, or only those of a node or kind."""
        found: list[EventView] = []
        while True:
            page = await self._events(run, found[-1].seq if found else after, node, kind)
            found += page.events
            if page.newer is None or not page.events:
                return found

    async def _events(
        self,
        run_id: str,
        after: int,
        node: str | None = None,
        kind: str | None = None,
        limit: int = _EVENTS_MAX,
    ) -> EventsPart:
        words = {"after": after, "node": node, "kind": kind, "limit": limit}
        return await self._open().get(_path(run_id, "events"), EventsPart, words)

    @takes_run
    async def checkpoints(self, run: str) -> list[Checkpoint]:
        """List the checkpoints from which a run can be resumed or forked, oldest first."""
        found: list[Checkpoint] = []
        after: int | None = 0
        while after is not None:
            words = {"after": after, "limit": _CHECKPOINTS_MAX}
            page = await self._open().get(_path(run, "checkpoints"), CheckpointsPart, words)
            found += page.checkpoints
            after = page.next if page.checkpoints else None
        return found

    @takes_run
    async def ledger(self, run: str, *, verify: bool = False) -> Ledger:
        """Get every decision in the log of a run, oldest first; with `verify`, also whether the log is exactly what was written,
        and which events were removed or altered.
        """
        words: dict[str, Any] = {"limit": _ENTRIES_MAX, "verify": "true" if verify else "false"}
        page = first = await self._open().get(_path(run, "ledger"), LedgerPart, words)
        entries = first.entries
        while page.next is not None:
            page = await self._open().get(
                _path(run, "ledger"), LedgerPart, {"limit": _ENTRIES_MAX, "after": page.next}
            )
            entries = entries + page.entries
        given = {name: getattr(first, name) for name in Ledger.__struct_fields__}
        return Ledger(**given | {"entries": entries, "seq": page.seq, "digest": page.digest})

    @takes_run
    async def questions(self, run: str | None = None) -> list[AskedQuestion]:
        """List the open questions of one run and of its child runs, or of all runs, oldest first."""
        asking = await self._asking(run)
        turns = asyncio.Semaphore(_AT_ONCE)

        async def asked_by(one: str) -> list[AskedQuestion]:
            async with turns:
                try:
                    run = await self._open().get(_path(one), Run[Any])
                except RunNotFound:  # it was deleted meanwhile
                    return []
            return [
                AskedQuestion(run_id=run.id, flow=run.flow, question=question) for question in run.questions
            ]

        return in_asking_order(await asyncio.gather(*map(asked_by, asking)))

    async def _asking(self, run_id: str | None) -> list[str]:
        """Return the ids of the runs with open questions: of all, or of one run and its child runs. A page has only the beginning
        of each question.
        """
        found: dict[str, None] = {}
        words: dict[str, Any] = {"limit": _RUNS_MAX, "run": run_id}
        while True:
            page = await self._open().get("/questions", QuestionsPart, words)
            found |= dict.fromkeys(one.run_id for one in page.questions)
            if page.next is None:
                return list(found)
            words["cursor"] = page.next

    @overload
    def follow(
        self, run: str, after: int | str = 0, *, chunks: Literal[False] = False, stay: bool = False
    ) -> Following[EventView]: ...

    @overload
    def follow(
        self, run: str, after: int | str = 0, *, chunks: Literal[True], stay: bool = False
    ) -> Following[EventView | Chunk]: ...

    @takes_run
    def follow(
        self, run: str, after: int | str = 0, *, chunks: bool = False, stay: bool = False
    ) -> Following[Any]:
        """Yield the events of a run as they become durable, without gap or repeat, until the run has stopped; with `stay`, until
        it is over. If the connection is cut or the server restarts, the client continues where it was. With `chunks`, also yield
        what the nodes stream, as it arrives, or from the log if it is there already. `after` is the seq of an event, or the
        `cursor` of an earlier follower.
        """
        cursor = Cursor.parse(after)
        return Following(self._follow(run, cursor, chunks=chunks, stay=stay), cursor)

    async def _follow(
        self, run_id: str, cursor: Cursor, *, chunks: bool, stay: bool
    ) -> AsyncGenerator[EventView | Chunk, None]:
        order = InOrder(run_id, cursor)
        async for name, data in self._frames(run_id, cursor, stay=stay):
            found = await self._news(run_id, name, data)
            if isinstance(found, EventView) and chunks and order.can_number(found):
                for chunk in order.before(
                    found
                ):  # those that were not streamed to this client are in the event
                    yield order.give(chunk)
                yield order.give(found)
            elif isinstance(found, EventView):
                cursor.seq = found.seq
                yield found
            elif isinstance(found, Chunk) and chunks and found.number > order.seen.get(found.streamer, 0):
                order.seen[found.streamer] = cursor.chunks[found.streamer] = found.number
                yield found
            elif name == "reset":
                cursor.seq = self._open().decode(data, MovedTo).seq

    async def _frames(
        self, run_id: str, cursor: Cursor, *, stay: bool
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield the frames of a run, over as many connections as it takes, until it is over; without `stay`, until it has
        stopped, which makes no event.
        """
        failed, pauses = 0, tuple[float, ...](AGAIN_S)
        while failed <= len(pauses):
            async with self._open().stream("/live", {"run": run_id, "after": cursor.seq}) as frames:
                while True:
                    try:
                        frame = await asyncio.wait_for(frames.get(), _SILENT_S)
                    except TimeoutError:
                        if not stay and await self._has_no_more(run_id, cursor.seq):
                            return
                        continue
                    if isinstance(frame, tuple) and frame[0] == "problem":
                        frame = error_of(self._open().decode(frame[1], ReportedProblem), self.url)
                    if isinstance(frame, (StoreUnusable, StoreBusy)) and failed < len(pauses):
                        failed += 1  # the server may be stopping or starting, or its store be out of reach for a moment
                        break
                    if isinstance(frame, Exception):
                        raise frame
                    if frame is None:
                        break
                    failed, pauses = 0, _RESTART_S
                    if frame[0] == "over":
                        return
                    yield frame
            await asyncio.sleep(pauses[max(0, failed - 1)])

    async def _has_no_more(self, run_id: str, seq: int) -> bool:
        """Return whether a run has stopped, and this is its last event."""
        with suppress(StoreUnusable, StoreBusy):
            run = await self._open().get(_path(run_id), _PolledRun)
            return seq >= run.seq and _has_stopped(run)
        return False

    async def _news(self, run_id: str, name: str, data: bytes) -> EventView | Chunk | None:
        """Return the event or chunk of a frame; None if it has neither. An event that is too large for a stream is read."""
        match name:
            case "event":
                event = self._open().decode(data, StreamedEvent)
                whole = (await self._events(run_id, event.seq - 1, limit=1)).events if event.omitted else []
                if whole and whole[0].seq == event.seq:  # or the log was compacted meanwhile
                    return whole[0]
                return EventView(**{field: getattr(event, field) for field in EventView.__struct_fields__})
            case "chunk":
                return self._open().decode(data, Chunk)
            case _:
                return None

    def _typed(self, run: Run[Any]) -> Run[Any]:
        flow = self._flows.get(run.flow)
        return type_state(run, flow) if flow is not None else run


_MAY_BE_NULL = {"input"} | {
    given.body_name
    for record in records.RECORDS.values()
    for given in options_of(record).values()
    if given.type is Any
}
"""Fields of bodies whose value may be null; another field that is None was not given."""


def _path(run_id: str, *parts: str) -> str:
    return "/".join(("/runs", quote(run_id, safe=""), *parts))


def _plain_option(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Collection) and not isinstance(value, str) else value


def _plan_of(flow: Flow[Any] | FlowSource | str, plan: PlanSource | None) -> dict[str, Any] | None:
    """Return the plan to send: the one that was given, or that of a flow that was made from a plan. Raises `PlanError`."""
    if plan is not None:
        return read(plan)
    if isinstance(flow, Flow) and flow.input is not None:
        return plan_document(flow.definition, flow.input, flow.options.get("budget"))
    return None


def _plain_input(flow: Flow[Any] | FlowSource | str, given: Any) -> Any:
    if isinstance(flow, Flow):
        return flow.state.dump({} if given is None else given)
    return msgspec.to_builtins(given, str_keys=True) if given is not None else None


class _PolledRun(Run[Any], frozen=True, kw_only=True):
    """A run as the server shows it, with what a client that waits for it needs to know."""

    family_moves: bool = False


def _has_stopped(run: _PolledRun) -> bool:
    """Return whether a run waits for an answer or a signal, or no process continues it."""
    if run.family_moves:
        return False
    if run.status not in GOING:
        return True
    if run.status == "waiting" and run.due_at is None:
        return True
    return run.status in UNDER_WAY and run.held_by is None


def _poll_s(run: Run[Any]) -> int:
    """Return how long the server may wait before it answers: a process that dies, or releases the run, makes no event."""
    return _LONG_POLL_S if run.status == "pending" else 2
