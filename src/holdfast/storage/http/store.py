"""`RemoteStore`: a store on a server, opened by the URL of the server. It can be read, and asked; nothing else.

It implements the part of `contract.Store` that needs no lease: every reading verb, and `post`. A process that executes runs, or
changes the store in another way, must be on the machine of the server; the other verbs say that. A request is sent through the
route of its verb, so the server checks who may make it; `by` is the name of the token, whatever the request says.

The rows are those of the server's own store, in the format of `row_format`; logs are read in pages, and blobs by their digest. A
request that was cut off is sent again with the same key, so it is stored once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast.core import VERSION
from holdfast.core.requests import RECORDS, unfold
from holdfast.core.validate import RUN_ID
from holdfast.core.verb_options import options_of
from holdfast.errors import (
    BlobCorrupt,
    RequestExists,
    RunNotFound,
    RunOver,
    SchemaTooNew,
    SettingError,
    StoreUnusable,
)
from holdfast.storage import process
from holdfast.storage.blobs import Blob, Blobs, Piece, require_digest, require_run_id
from holdfast.storage.contract import Feed, Query, Request, Row, RunRow, Snapshot, Tail
from holdfast.storage.http.connections import Connections
from holdfast.storage.http.row_format import (
    EVENTS_MAX,
    ROWS,
    RUNS_MAX,
    Damage,
    StoreAbout,
    StoredDefinition,
    StoredEvents,
    StoredHolders,
    StoredOffers,
    StoredQueues,
    StoredRefusals,
    StoredRequests,
    StoredRuns,
    StoredSnapshot,
    StoredStreams,
    StoredTails,
    StoredUpkeep,
    WantedEvents,
    WantedRefusals,
    WantedRequests,
    WantedTails,
)
from holdfast.storage.http.server_url import ServerUrl, token_from
from holdfast.storage.queues import Board, LiveHolder, OnOffer, Posted, Queue, Queues, Refusal
from holdfast.storage.tokens import Tokens
from holdfast.storage.upkeep import WHOLE, Facts, Kept, Trimmed, Upkeep

T = TypeVar("T")

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
"""What the header `Idempotency-Key` may be."""
_IDS_MAX = 10
"""How many run ids are sent in one request: the head of a request is not long."""
_RANGES_MAX = 100
"""How many ranges of seqs are sent in one request."""


def _only_there(self: Any, *given: Any, **named: Any) -> Any:
    """Refuse a verb that is possible only on the machine of the server."""
    raise self._server.refusal()


class _Server:
    """An open way to the store of a server, which the parts of a `RemoteStore` share."""

    def __init__(self, url: str, token: str | None) -> None:
        self._connections = Connections(ServerUrl.parse(url), token)
        self.url = self._connections.url.text
        self._forks = process.count
        self._closed = False
        try:
            self.about = self.get("/store", StoreAbout)
            if self.about.rows < ROWS:
                raise SchemaTooNew(
                    f"{self.url} runs Holdfast {self.about.version}, which gives rows in an older form than this Holdfast "
                    f"({VERSION}) reads. Install Holdfast {VERSION} on the machine of the server, or {self.about.version} here."
                )
        except BaseException:
            self._connections.close()
            raise

    def get(self, path: str, kind: type[T]) -> T:
        return self._use().get(path, kind)

    def get_bytes(self, path: str) -> bytes:
        return self._use().get_bytes(path)

    def post(self, path: str, body: Any, kind: type[T], *, key: str, expects: str | None) -> T:
        return self._use().post(path, body, kind, key=key, expects=expects)

    def run_path(self, run_id: str) -> str:
        """Return the path of a run's rows. Raises `RunNotFound` for a text that is not the id of a run."""
        if not RUN_ID.fullmatch(run_id):
            raise RunNotFound(run_id, self.url)
        return f"/store/runs/{run_id}"

    def refusal(self) -> SettingError:
        """Return the error for a verb that is possible only on the machine of the server."""
        return SettingError(
            f"{self.url} can be read and asked, but it executes and changes nothing for this process. Do this on the machine of "
            f"the server, with the store that it serves: --store {self.about.url}"
        )

    def close(self) -> None:
        self._closed = True
        if self._forks == process.count:
            self._connections.close()

    def _use(self) -> Connections:
        if self._closed:
            raise StoreUnusable(f"the store {self.url} is closed; open it again")
        if self._forks != process.count:
            raise StoreUnusable(
                f"the store {self.url} was opened before this process was forked. Open the store in the child process."
            )
        return self._connections


class RemoteStore:
    """A store on a server. `token` is sent with every request; by default, it is that in HOLDFAST_TOKEN."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._server = _Server(url, token if token is not None else token_from())
        self.url = self._server.url
        self.served = self._server.about.url
        """The URL of the store on the machine of the server."""
        self.generation = self._server.about.generation
        self.blobs: Blobs = RemoteBlobs(self._server)
        self.queues: Queues = RemoteQueues(self._server)
        self.feed: Feed = RemoteFeed(self._server)
        self.upkeep: Upkeep = RemoteUpkeep(self._server)
        self.tokens: Tokens = RemoteTokens(self._server)

    # --- reading -------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRow:
        return self._server.get(self._server.run_path(run_id), RunRow)

    def runs(self, query: Query) -> list[RunRow]:
        ids = tuple(dict.fromkeys(query.ids or ()))
        if len(ids) <= _IDS_MAX:
            return self._runs(query)
        found = [
            row
            for begin in range(0, len(ids), _IDS_MAX)
            for row in self._runs(msgspec.structs.replace(query, ids=ids[begin : begin + _IDS_MAX]))
        ]
        return sorted(found, key=lambda row: row.position, reverse=True)[: query.limit]

    def _runs(self, query: Query) -> list[RunRow]:
        found: list[RunRow] = []
        while len(found) < query.limit:
            wanted = msgspec.structs.replace(
                query,
                limit=min(query.limit - len(found), RUNS_MAX),
                after=found[-1].position if found else query.after,
            )
            page = _page(self._server, "/store/runs", wanted, StoredRuns)
            if page is None:
                break
            found += page.runs
            if not page.more or not page.runs:
                break
        return found

    def events(
        self,
        run_id: str,
        after: int = 0,
        upto: int | None = None,
        *,
        kinds: Collection[str] = (),
        node: str | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        found: list[Row] = []
        path = f"{self._server.run_path(run_id)}/events"
        while True:
            left = EVENTS_MAX if limit is None else min(limit - len(found), EVENTS_MAX)
            place = found[-1].seq if found else after
            wanted = WantedEvents(after=place, upto=upto, kinds=tuple(kinds), node=node, limit=left)
            page = _page(self._server, path, wanted, StoredEvents)
            if page is None:
                return []
            found += page.events
            is_full = limit is not None and len(found) >= limit
            if is_full or not page.more or not page.events or page.events[-1].seq <= place:
                return found

    def snapshot(self, run_id: str, within: Sequence[tuple[int, int]]) -> Snapshot | None:
        latest: Snapshot | None = None
        for begin in range(0, max(len(within), 1), _RANGES_MAX):
            some = [("within", f"{first}-{last}") for first, last in within[begin : begin + _RANGES_MAX]]
            found = self._server.get(
                f"{self._server.run_path(run_id)}/snapshot?{urlencode(some)}", StoredSnapshot
            ).snapshot
            if found is not None and (latest is None or found.seq > latest.seq):
                latest = found
        return latest

    def definition(self, fingerprint: str) -> bytes | None:
        words = urlencode({"fingerprint": fingerprint})
        return self._server.get(f"/store/definition?{words}", StoredDefinition).definition

    def inbox(self, holder: str | None = None, *, run_id: str | None = None) -> list[Request]:
        if holder is not None or run_id is None:  # only an engine that executes runs asks for these
            raise self._server.refusal()
        return self._server.get(f"{self._server.run_path(run_id)}/inbox", StoredRequests).requests

    def now(self) -> float:
        return self._server.get("/store", StoreAbout).now

    def check(self) -> list[str]:
        return self._server.get("/store/check", Damage).damage

    # --- asking --------------------------------------------------------------------------------------

    def post(self, run_id: str, request: Request, *, only_look: bool = False) -> bool:
        """Send a request through the route of its verb. Its run and its id are the `Idempotency-Key`, and the server records the
        name of the token as `by`.
        """
        if only_look:
            raise self._server.refusal()
        return _post(self._server, run_id, request)

    # --- what is possible only on the machine of the server ------------------------------------------

    append = appended = claim = renew = release = _only_there

    # --- life ----------------------------------------------------------------------------------------

    def close(self) -> None:
        self._server.close()


class _Repeated(msgspec.Struct):
    repeated: bool = False


class _Asked(msgspec.Struct):
    """What a store needs from the answer to a request."""

    run: _Repeated


def _post(server: _Server, run_id: str, request: Request) -> bool:
    path = f"/runs/{quote(run_id, safe='')}/{quote(request.verb, safe='')}"
    key = _key(run_id, request.id)
    body, expects = _body(request), request.body.get("expects")
    return not server.post(path, body, _Asked, key=key, expects=expects).run.repeated


def _body(request: Request) -> dict[str, Any]:
    """Return the body with which the route of its verb is asked for the same. Raises `SettingError` for what cannot be sent."""
    options = options_of(RECORDS[request.verb]).values()
    given = {**unfold(request.body), "reason": request.reason, "expects": None}
    given |= given.pop("stated", None) or {}
    lost = [name for name in given.keys() - {option.field for option in options} if given[name] is not None]
    if lost:
        raise SettingError(
            f"{request.verb} with {' and '.join(sorted(lost))} cannot be sent to a server: what a function has changed is known "
            "only here. Give the fields and their new values."
        )
    return {
        option.body_name: given[option.field]
        for option in options
        if option.field in given and (given[option.field] is not None or option.option.is_required)
    }


def _key(run_id: str, id: str) -> str:
    """Return the key of a request. A server knows a key for one run only, and the same id may be given for several runs."""
    key = f"{run_id}/{id}"
    return key if _KEY.fullmatch(key) else sha256(key.encode(errors="surrogatepass")).hexdigest()


def _page(server: _Server, path: str, wanted: msgspec.Struct, kind: type[T]) -> T | None:
    """Get a page of rows; None if the conditions contain a text that no store can keep, so that no row meets them."""
    try:
        words = urlencode({"query": msgspec.json.encode(wanted).decode()})
    except UnicodeEncodeError:
        return None
    return server.get(f"{path}?{words}", kind)


class _Part:
    """A part of a store on a server."""

    def __init__(self, server: _Server) -> None:
        self._server = server


class RemoteBlobs(_Part):
    """The blobs of a store on a server."""

    def __init__(self, server: _Server) -> None:
        super().__init__(server)
        self.where = server.url

    def get(self, digest: str) -> bytes:
        require_digest(digest)
        body = self._server.get_bytes(f"/store/blob?digest={digest}")
        if Blob.of(body).digest != digest:
            raise BlobCorrupt(digest, self.where)
        return body

    def spilled(self, run_id: str) -> dict[str, bytes]:
        require_run_id(run_id)
        return self._server.get(f"/store/runs/{run_id}/streams", StoredStreams).streams

    def spilled_after(self, marks: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Piece]]:
        """Read the streams of each run as a whole: a mark is how many of its bytes were returned before."""
        found = {}
        for run_id, known in marks.items():
            streams = {key: _piece(data, known.get(key, 0)) for key, data in self.spilled(run_id).items()}
            if streams:
                found[run_id] = streams
        return found

    def now(self) -> float:
        return 0.0

    put = digests = delete = expire = tidy = spilling = spill = unspill = _only_there


def _piece(data: bytes, mark: int) -> Piece:
    if mark > len(data):
        return Piece(data, len(data), anew=True)
    return Piece(data[mark:], len(data))


class RemoteFeed(_Part):
    """The feed of a store on a server."""

    def look(self, after: Mapping[str, int], limit: int) -> dict[str, Tail]:
        wanted = [(run_id, seq) for run_id, seq in after.items() if RUN_ID.fullmatch(run_id)]
        found: dict[str, Tail] = {}
        for begin in range(0, len(wanted), _IDS_MAX):
            some = WantedTails(after=dict(wanted[begin : begin + _IDS_MAX]), limit=limit)
            words = urlencode({"query": msgspec.json.encode(some).decode()})
            found |= self._server.get(f"/store/tails?{words}", StoredTails).tails
        return found


class RemoteQueues(_Part):
    """The queues of a store on a server."""

    def post_all(self, batch: Sequence[Request]) -> list[Posted]:
        """Send the requests one by one: if the connection is lost, the same call sends the rest, and none twice."""
        return list(self._post_each(batch))

    def _post_each(self, batch: Sequence[Request]) -> Iterator[Posted]:
        for request in batch:
            try:
                yield _post(self._server, request.run_id, request)
            except (RunNotFound, RunOver, RequestExists) as refused:
                yield refused

    def holders(self) -> list[LiveHolder]:
        return self._server.get("/store/holders", StoredHolders).holders

    def waiting(self, run_ids: Collection[str]) -> list[Request]:
        wanted = [run_id for run_id in dict.fromkeys(run_ids) if RUN_ID.fullmatch(run_id)]
        found: list[Request] = []
        for begin in range(0, len(wanted), _IDS_MAX):
            some = WantedRequests(run_ids=tuple(wanted[begin : begin + _IDS_MAX]))
            words = urlencode({"query": msgspec.json.encode(some).decode()})
            found += self._server.get(f"/store/waiting?{words}", StoredRequests).requests
        return sorted(found, key=lambda one: one.at)

    def refusals(self, run_ids: Collection[str] | None = None) -> list[Refusal]:
        if not self._server.about.refusals:
            return []
        if run_ids is None:
            return self._server.get("/store/refusals", StoredRefusals).refusals
        wanted = [run_id for run_id in dict.fromkeys(run_ids) if RUN_ID.fullmatch(run_id)]
        found: list[Refusal] = []
        for begin in range(0, len(wanted), _IDS_MAX):
            some = WantedRefusals(run_ids=tuple(wanted[begin : begin + _IDS_MAX]))
            words = urlencode({"query": msgspec.json.encode(some).decode()})
            found += self._server.get(f"/store/refusals?{words}", StoredRefusals).refusals
        return found

    def offered(self) -> tuple[OnOffer, ...]:
        return self._server.get("/store/offers", StoredOffers).offered

    def board(self) -> Board:
        return self._server.get("/store/board", Board)

    def queues(self) -> list[Queue]:
        return self._server.get("/queues", StoredQueues).queues

    def full(self) -> list[Queue]:
        return [queue for queue in self.queues() if queue.is_full]

    def hush(self) -> None:
        return

    take = held_by = gone = refuse = give_back = next_due = limit = hear = renew_generation = _only_there


class RemoteUpkeep(_Part):
    """The upkeep of a store on a server: what can be read of it."""

    def trimmed(self, run_id: str) -> Trimmed:
        try:
            return self._upkeep(run_id).trimmed
        except RunNotFound:
            return WHOLE

    def snapshots(self, run_id: str) -> list[Kept]:
        return self._upkeep(run_id).snapshots

    def facts(self) -> Facts:
        return self._server.get("/store/facts", Facts)

    def _upkeep(self, run_id: str) -> StoredUpkeep:
        return self._server.get(f"{self._server.run_path(run_id)}/upkeep", StoredUpkeep)

    referring = retire = compact = delete = sweep = fingerprints = drop_definitions = adopt = backup = (
        _only_there
    )


class RemoteTokens(_Part):
    """The tokens of a server, which are kept on its machine."""

    add = get = all = revoke = _only_there
