"""Routes about the server and its store as a whole: who am I, which flows and queues there are, what is wrong."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core import VERSION
from holdfast.core.graph import Flow, FlowSource
from holdfast.errors import StateError
from holdfast.plan import Capabilities
from holdfast.reading.diagnosis import Diagnosis
from holdfast.reading.remedies import PLACEHOLDER
from holdfast.server.backend import Backend
from holdfast.server.calls import Answer, HttpCall
from holdfast.server.parameters import NoQuery
from holdfast.storage import urls
from holdfast.storage.queues import Queue
from holdfast.storage.tokens import Kind, Role
from holdfast.upkeep.doctor import Check


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and who calls it."""

    name: str
    """The name of the token."""
    by: str
    """The name that logs record for what this caller does."""
    role: Role
    kind: Kind
    expires_at: float | None
    version: str
    store: str
    """The URL of the store, without its password."""
    flows: list[str]
    """The flows that this server knows. It executes them if `features` has `work`."""
    features: list[str]
    """What this server does beyond answering: `work` if it executes runs."""
    run_command: str
    """The command that starts a run in this store, in any folder of the server's machine."""
    public_urls: tuple[str, ...]
    now: float
    """The time of the server."""


class CapabilityView(msgspec.Struct, frozen=True, kw_only=True):
    """What the plans of a flow may call."""

    name: str
    """With its version, as in `refund@2`."""
    description: str
    idempotent: bool


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that this server knows: a graph in code, or capabilities that execute plans."""

    name: str
    description: str
    fingerprint: str
    """Empty for capabilities: each of their plans has a fingerprint of its own."""
    state_version: int
    nodes: list[str]
    input_schema: dict[str, Any] | None
    """The JSON Schema of the input; None if its type has none, and for capabilities: a plan brings its own input."""
    capabilities: list[CapabilityView] | None = None
    """What plans may call; None if the flow is a graph in code. `GET /api/v1/plans/schema` has the JSON Schema of the plans."""


class FlowList(msgspec.Struct, frozen=True):
    """The flows that this server knows, by name."""

    flows: list[FlowView]


class QueueList(msgspec.Struct, frozen=True):
    """All queues, by name."""

    queues: list[Queue]


class Examination(msgspec.Struct, frozen=True):
    """What is wrong with the runs and the store, and when that was examined."""

    examined_at: float
    problems: list[Diagnosis]
    store: list[Check]
    """What was looked at in the store itself. A fault is also among `problems`."""


class DoctorQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether to examine the store again."""

    again: bool = False
    """Examine the store now, also if that was done less than a minute ago."""


def get_meta(call: HttpCall[NoQuery, None]) -> About:
    """Say who calls, and what this server is."""
    backend, who = call.backend, call.who
    return About(
        name=who.name,
        by=who.by,
        role=who.role,
        kind=who.kind,
        expires_at=who.expires_at,
        version=VERSION,
        store=backend.store.url,
        flows=sorted(backend.engine.flows),
        features=list(backend.features),
        run_command=_run_command(backend),
        public_urls=backend.public_urls,
        now=backend.clock.now(),
    )


def _run_command(backend: Backend) -> str:
    url = backend.store.url
    commands = backend.commands.in_any_folder(urls.sqlite_path(url) or url)
    return commands.line("run", commands.file or PLACEHOLDER, "--input", "{}")


def list_flows(call: HttpCall[NoQuery, None]) -> FlowList:
    """List the flows that this server knows, with the JSON Schema of their input."""
    found = [
        _show_flow(flow) if isinstance(flow, Flow) else _show_capabilities(flow)
        for _, flow in sorted(call.backend.engine.flows.items())
    ]
    return FlowList(found)


def _show_flow(flow: Flow[Any]) -> FlowView:
    try:
        schema = flow.input_schema()
    except StateError:
        schema = None
    return FlowView(
        name=flow.name,
        description=flow.description,
        fingerprint=flow.fingerprint,
        state_version=flow.definition.state_version,
        nodes=list(flow.nodes),
        input_schema=schema,
    )


def _show_capabilities(source: FlowSource) -> FlowView:
    descriptions = source.descriptions if isinstance(source, Capabilities) else {}
    shown = [
        CapabilityView(name=name, description=descriptions.get(name, ""), idempotent=node.options.idempotent)
        for name, node in sorted(source.nodes.items())
    ]
    return FlowView(
        name=source.name,
        description=source.description,
        fingerprint="",
        state_version=1,
        nodes=[],
        input_schema=None,
        capabilities=shown,
    )


def list_queues(call: HttpCall[NoQuery, None]) -> QueueList:
    """List all queues: how many of their runs are on offer and held, and their limits."""
    return QueueList(call.backend.store.queues.queues())


async def get_doctor(call: HttpCall[DoctorQuery, None]) -> Examination:
    """Say which runs cannot continue by themselves and what is wrong with the store."""
    found = await call.backend.examine(again=call.query.again)
    return Examination(found.at, found.problems, found.checks)


async def get_document(call: HttpCall[NoQuery, None]) -> Answer:
    """Get this description of the API (OpenAPI 3.1)."""
    return Answer(body=call.backend.document, headers={"Cache-Control": "private, no-cache"})
