"""Commands for the HTTP server: serve, which answers requests until it is stopped, and token, which says who may call.

`serve` prints its address, with the token, when it listens. If it knows flows, it is a worker as well, in the same process.
SIGTERM and Ctrl-C make it drain like a worker, and it answers until its running nodes have ended.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, NamedTuple, TextIO

import msgspec
import typer

from holdfast.cli import flow_files, options, program, screen, stores
from holdfast.cli.app import CARE, EXECUTE, command
from holdfast.cli.exits import Exit
from holdfast.cli.suggestions import command_line, find_ways_out, say_trouble
from holdfast.core import requests
from holdfast.errors import SettingError, did_you_mean
from holdfast.reading.remedies import CommandLine
from holdfast.runtime import blocking, settings
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.engine import Engine
from holdfast.runtime.worker import Trouble
from holdfast.server import token_file
from holdfast.server.access import Identity
from holdfast.server.addresses import Addresses, join_host
from holdfast.server.open_streams import STREAMS_MAX
from holdfast.server.rates import Rates
from holdfast.storage import tokens
from holdfast.storage.http.server_url import is_loopback
from holdfast.storage.tokens import ROLES, Role, Token, Tokens
from holdfast.upkeep import retention

PORT = 8765
_ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - recognised, so that they can be refused


Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="N",
        help="How many requests per second each token may send. Default: as many as it wants.",
    ),
]
Streams = Annotated[
    int,
    typer.Option(
        "--streams",
        metavar="N",
        min=1,
        help=f"How many clients may follow events at the same time. Default: {STREAMS_MAX}.",
    ),
]


@command(EXECUTE)
@options.of(requests.Resume, only=options.OF_CHANGES)
def serve(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE.py[:FLOW]]...",
            help="The Python files that define the flows to execute. Default: [tool.holdfast] flows in pyproject.toml.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="The address to listen at. Default: 127.0.0.1."),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="N", min=0, max=65535, help=f"The port; 0 picks a free one. Default: {PORT}."
        ),
    ] = PORT,
    public_url: Annotated[
        list[str] | None,
        typer.Option(
            "--public-url",
            metavar="URL",
            help="An address under which others reach the server, such as that of a reverse proxy; repeatable.",
        ),
    ] = None,
    no_work: Annotated[
        bool, typer.Option("--no-work", help="Execute no run: other workers do that.")
    ] = False,
    no_token: Annotated[
        bool,
        typer.Option(
            "--no-token", help="Let every process of this machine call the server, without a token."
        ),
    ] = False,
    rate: Rate = None,
    streams: Streams = STREAMS_MAX,
    *,
    said: options.Said,
    resources: options.Resources = None,
    grace: options.Grace = None,
    run_base: options.RunBase = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> int:
    """Serve runs over HTTP, and execute them.

    The first line of the output is the address, with the token after #token=. If HOLDFAST_TOKEN is set, that token is valid, and
    the line has only the address.
    """
    Rates(rate)
    given, text = _own_token(store, is_needed=not no_token)
    _check_exposure(host, public_url or [], no_token=no_token)
    flows = _flows_of(files or [])
    plan = _Plan(
        host=host,
        port=port,
        public_urls=public_url or [],
        token=given,
        token_text=text,
        works=bool(flows) and not no_work,
        streams=streams,
        # With several files, a command names the one that is recorded with the run.
        commands=command_line(
            file=files[0] if files and len(files) == 1 else None, store=store, run_base=run_base
        ),
        as_json=as_json,
        rate=rate,
        changes=said,
    )
    made = flow_files.load_resources(resources) if plan.works else None
    given_options: blocking.Options = {
        "flows": flows,
        "resources": made,
        "grace": grace,
        "run_base": run_base,
        "store": store,
    }
    return _run(plan, given_options)


class _Plan(NamedTuple):
    """What `serve` was asked to do."""

    host: str
    port: int
    public_urls: list[str]
    token: Token | None
    token_text: str
    works: bool
    streams: int
    commands: CommandLine
    as_json: bool
    rate: float | None
    changes: options.Said
    """The options about runs whose flow has changed."""


def _run(plan: _Plan, given: blocking.Options) -> int:
    """Serve until a signal ends it. Returns the exit code: 0 if everything has ended in order."""
    from holdfast.server import connection  # here, because it needs packages that not everybody has

    ended = False
    listening = connection.listen(plan.host, plan.port)
    connection.allow_connections(plan.streams)
    engine = blocking.BlockingEngine(**given)
    engine.os_signals.always, engine.os_signals.announces = True, False
    with screen.shielded(json_only=plan.as_json) as out, listening:

        async def main() -> None:
            nonlocal ended
            async with engine:
                app = _application(engine, plan)
                hosting = connection.Host(app, listening)
                serving = asyncio.ensure_future(hosting.host())
                _say_began(out, engine, plan, listening.getsockname()[1])
                program.freeze()
                try:
                    report = partial(_say_trouble, engine, plan)
                    work = [engine.work(on_report=report, **plan.changes)] if plan.works else []
                    await _first(serving, *work)
                finally:
                    app.stop()
                    hosting.stop()
                    await asyncio.shield(serving)
                    ended = True

        try:
            connection.run(main)
        except (KeyboardInterrupt, SystemExit) as signalled:
            code = Exit.INTERRUPTED if isinstance(signalled, KeyboardInterrupt) else Exit.TERMINATED
            return Exit.OK if ended else code
    return Exit.OK


def _say_trouble(engine: Engine, plan: _Plan, trouble: Trouble) -> None:
    ways = find_ways_out(engine.reader, trouble, plan.commands)
    if plan.as_json:
        told = {"event": "trouble", "run": trouble.run_id, "flow": trouble.flow, "told": trouble.message}
        screen.say_json(told | ({"remedies": ways} if ways else {}), indent=None, err=True)
    else:
        say_trouble(trouble, ways)


def _application(engine: Engine, plan: _Plan) -> Any:
    from holdfast.server.asgi import asgi

    # A token of the store has the role that the store says, also if it is in the environment of this process.
    is_kept = plan.token is not None and engine.store.tokens.get(plan.token.id) is not None
    return asgi(
        engine,
        public_urls=plan.public_urls,
        tokens=[plan.token] if plan.token is not None and not is_kept else [],
        anonymous=_anonymous() if plan.token is None else None,
        commands=plan.commands,
        features=("work",) if plan.works else (),
        rate=plan.rate,
        streams=plan.streams,
    )


async def _first(*calls: Any) -> None:
    """Wait until one of the calls has ended, and raise its error if it has one."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for one in done:
        one.result()


def _check_exposure(host: str, public_urls: list[str], *, no_token: bool) -> None:
    """Raise `SettingError` for an address that others can reach, unless the options say under which name, and with a token."""
    Addresses(public_urls)
    if no_token and (not is_loopback(host) or public_urls):
        raise SettingError(
            "--no-token works only for this machine: leave out --host and --public-url, or leave out --no-token"
        )
    if not is_loopback(host) and not public_urls:
        told = (
            "all addresses of this machine"
            if host in _ANYWHERE
            else "an address that other machines can reach"
        )
        raise SettingError(
            f"--host {host} is {told}. Say under which name others call the server: --public-url https://holdfast.example.com"
        )


def _flows_of(files: list[str]) -> list[Any]:
    found = [flow for file in files for flow in flow_files.flows_in(file)] or flow_files.project_flows(
        all_of_them=True
    )
    return list({id(flow): flow for flow in found}.values())


def _own_token(store: str | None, *, is_needed: bool) -> tuple[Token | None, str]:
    """Return the token of this server, if it needs one, and its text if the first line is to contain it."""
    stores.require_here(store, "serve", "Name the store itself: --store runs.db, or postgresql://…")
    if not is_needed:
        return None, ""
    name, now = _login(), SystemClock().now()
    found = token_file.from_environment(name, now)
    if found is not None:
        return found, ""
    place = token_file.place_for(settings.resolve({"store": store}).store)
    return token_file.from_file(place, name, now)


def _login() -> str:
    return options.resolve_actor(None) or "admin"


def _anonymous() -> Identity:
    name = _login()
    return Identity(token_id="none", name=name, role="admin", by=name)  # noqa: S106 - no secret


def _link(plan: _Plan, port: int) -> str:
    """Return the address to print. The token is in its fragment, which browsers do not send."""
    url = plan.public_urls[0].rstrip("/") if plan.public_urls else f"http://{join_host(plan.host, port)}"
    return f"{url}/#token={plan.token_text}" if plan.token_text else f"{url}/"


def _say_began(out: TextIO, engine: Engine, plan: _Plan, port: int) -> None:
    names, link = sorted(engine.flows), _link(plan, port)
    if plan.as_json:
        told = {"event": "began", "url": link, "store": engine.store.url, "flows": names, "works": plan.works}
        out.write(screen.json_text(told, indent=None) + "\n")
    else:
        screen.say(link)
        flows = f"executes {', '.join(names)}" if plan.works else "executes no run"
        screen.say((f"serves {engine.store.url}, {flows}; Ctrl-C stops it", "dim"))
    out.flush()


# --- tokens ------------------------------------------------------------------------------------------


@command(CARE)
def token(
    action: Annotated[
        str, typer.Argument(metavar="create|list|revoke", help="What to do: create, list or revoke.")
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="create: who will use the token. revoke: the id of the token, or its name."
        ),
    ] = None,
    role: Annotated[
        str,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="What the token allows: read, start, operate or admin, each of which includes those before it. Default: read.",
        ),
    ] = "read",
    agent: Annotated[
        bool, typer.Option("--agent", help="The token is for an agent, which the server knows as agent:NAME.")
    ] = False,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="How long the token is valid, e.g. 30d or 12h."),
    ] = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Create, list or revoke tokens for the server.

    The secret of a token is printed once, when it is created; the store keeps only its digest.
    """
    match action:
        case "create":
            made = _make_token(name, role, agent=agent, expires=expires)
            stores.read(store, lambda reader: reader.store.tokens.add(made[0]))
            _say_created(*made, as_json=as_json)
        case "list":
            _say_tokens(stores.read(store, lambda reader: reader.store.tokens.all()), as_json=as_json)
        case "revoke":
            revoked = stores.read(store, lambda reader: _revoke(reader.store.tokens, name))
            if as_json:
                screen.say_json(_shown(revoked))
            else:
                screen.say(
                    ("revoked  ", "bold"),
                    f"{revoked.id}  {revoked.name}; servers refuse it within 10 seconds",
                )
        case _:
            raise SettingError(
                f"{action!r} is not an action{did_you_mean(action, ('create', 'list', 'revoke'))}; the actions are create, list "
                "and revoke"
            )


def _make_token(name: str | None, role: str, *, agent: bool, expires: str | None) -> tuple[Token, str]:
    if role not in ROLES:
        raise SettingError(
            f"{role!r} is not a role{did_you_mean(role, ROLES)}; the roles are {', '.join(ROLES)}"
        )
    found: Role = next(one for one in ROLES if one == role)
    now = SystemClock().now()
    return tokens.new_token(
        name,
        found,
        kind="agent" if agent else "person",
        now=now,
        created_by=options.resolve_actor(None),
        expires_at=now + retention.seconds(expires, "--expires") if expires is not None else None,
    )


def _revoke(kept: Tokens, named: str | None) -> Token:
    now = SystemClock().now()
    valid = [one for one in kept.all() if one.revoked_at is None]
    found = [one for one in valid if one.id == named] or [one for one in valid if one.name == named]
    if len(found) != 1:
        ids = ", ".join(one.id for one in found)
        raise SettingError(
            f"there are {len(found)} tokens with the name {named!r}; give the id of one of them: {ids}"
            if found
            else f"there is no valid token {named!r}; `holdfast token list` lists all tokens"
        )
    kept.revoke(found[0].id, now)
    return msgspec.structs.replace(found[0], revoked_at=now)


def _shown(token: Token) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(token).items() if name != "digest"}


def _say_created(made: Token, text: str, *, as_json: bool) -> None:
    if as_json:
        screen.say_json(_shown(made) | {"token": text})
        return
    screen.say(text)
    until = f", until {screen.when(made.expires_at)}" if made.expires_at is not None else ""
    screen.say((f"the token of {made.actor} ({made.role}{until}); it is not shown again", "dim"), err=True)


def _say_tokens(found: list[Token], *, as_json: bool) -> None:
    if as_json:
        screen.say_json([_shown(one) for one in found])
        return
    now = SystemClock().now()
    rows: list[list[screen.Part]] = [
        [
            one.id,
            one.name,
            one.kind,
            one.role,
            screen.when(one.created_at),
            "revoked" if one.revoked_at is not None else _until(one, now),
        ]
        for one in found
    ]
    screen.say_table(["ID", "NAME", "KIND", "ROLE", "CREATED", "VALID"], rows)


def _until(one: Token, now: float) -> str:
    if one.expires_at is None:
        return "until revoked"
    return f"until {screen.when(one.expires_at)}" if one.is_valid(now) else "expired"
