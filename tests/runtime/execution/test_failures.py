"""Which class a failure has, and when it is tried again. Exceptions of other packages are made to look like theirs:
the same module, the same name, the same attributes.
"""

import asyncio
import email.message
import email.utils
import enum
import errno
import http.client
import io
import random
import socket
import sqlite3
import ssl
import subprocess
import sys
import types
import urllib.error
from datetime import timedelta

import pytest

from holdfast.core.graph import Retry
from holdfast.errors import CodecError, Fatal, Recoverable, StateError, StoreFull
from holdfast.runtime.failures import classify, describe, retry_after, retry_delay

NOW = 1_700_000_000.0
CERTIFICATE = ssl.SSLCertVerificationError(1, "certificate verify failed")


def look(*lineage: str, base: type[BaseException] = Exception, **attributes: object) -> BaseException:
    """An exception of a class of that name and module, under classes of the further names: the nearest first."""
    kind: type[BaseException] = base
    for full in reversed(lineage):
        module, _, name = full.rpartition(".")
        kind = type(name, (kind,), {"__module__": module})
    error = kind("it went wrong")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def caused(error: BaseException, *causes: BaseException) -> BaseException:
    inner = error
    for cause in causes:
        inner.__cause__ = cause
        inner = cause
    return error


def response(status: int, **headers: str) -> types.SimpleNamespace:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return types.SimpleNamespace(status_code=status, headers=named)


class Rpc(enum.Enum):
    UNAVAILABLE = 14
    NOT_FOUND = 5


OPENAI = ("openai.APIStatusError", "openai.APIError", "openai.OpenAIError")
ANTHROPIC = ("anthropic.APIStatusError", "anthropic.APIError", "anthropic.AnthropicError")
CLOUD = "botocore.exceptions.ClientError"


def cloud(code: str, status: int) -> dict[str, object]:
    return {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}}}


PYDANTIC_AI = ("pydantic_ai.exceptions.ModelAPIError", "pydantic_ai.exceptions.AgentRunError")


def mcp(code: int, message: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(code=code, message=message, data=None)


PASSING = {
    "timeout": TimeoutError(),
    "refused": ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
    "no route": OSError(errno.EHOSTUNREACH, "no route to host"),
    "name not found": socket.gaierror(socket.EAI_AGAIN, "try again"),
    "tls cut off": ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
    "stream cut off": asyncio.IncompleteReadError(b"", 5),
    "body cut off": http.client.IncompleteRead(b""),
    "slow program": subprocess.TimeoutExpired("x", 1),
    "urllib refused": urllib.error.URLError(ConnectionRefusedError()),
    "urllib 503": urllib.error.HTTPError("http://x", 503, "busy", email.message.Message(), io.BytesIO()),
    "httpx": look("httpx.ReadTimeout", "httpx.TimeoutException", "httpx.TransportError"),
    "httpx 502": look("httpx.HTTPStatusError", "httpx.HTTPError", response=response(502)),
    "httpcore": look("httpcore.ConnectError", "httpcore.NetworkError"),
    "requests": look(
        "requests.exceptions.ConnectionError", "requests.exceptions.RequestException", base=OSError
    ),
    "requests 429": look("requests.exceptions.HTTPError", base=OSError, response=response(429)),
    "requests tls cut off": look(
        "requests.exceptions.SSLError",
        "requests.exceptions.ConnectionError",
        base=OSError,
        args=(look("urllib3.exceptions.MaxRetryError", reason=ssl.SSLEOFError()),),
    ),
    "aiohttp": look("aiohttp.client_exceptions.ServerDisconnectedError", "aiohttp.ClientConnectionError"),
    "aiohttp 503": look("aiohttp.client_exceptions.ClientResponseError", status=503),
    "openai connection": look("openai.APITimeoutError", "openai.APIConnectionError", "openai.APIError"),
    "openai rate": look(
        "openai.RateLimitError", *OPENAI, status_code=429, code="rate_limit_exceeded", type="requests"
    ),
    "openai in a stream": look(
        "openai.APIError", code=None, type="server_error", body={"type": "server_error"}
    ),
    "anthropic overloaded": look(
        "anthropic._exceptions.OverloadedError",
        "anthropic.InternalServerError",
        *ANTHROPIC,
        status_code=529,
    ),
    "anthropic in a stream": look(
        *ANTHROPIC, status_code=200, body={"type": "error", "error": {"type": "overloaded_error"}}
    ),
    "grpc": look("grpc._channel._InactiveRpcError", "grpc.RpcError", code=lambda: Rpc.UNAVAILABLE),
    "botocore": look("botocore.exceptions.EndpointConnectionError", "botocore.exceptions.ConnectionError"),
    "botocore throttled": look(CLOUD, response=cloud("ThrottlingException", 400)),
    "botocore 500": look(CLOUD, response=cloud("InternalError", 500)),
    "psycopg lost": look("psycopg.OperationalError", sqlstate=None),
    "psycopg deadlock": look("psycopg.errors.DeadlockDetected", "psycopg.OperationalError", sqlstate="40P01"),
    "psycopg2 failure": look("psycopg2.OperationalError", pgcode="08006"),
    "asyncpg": look(
        "asyncpg.exceptions.SerializationError", "asyncpg.exceptions._base.PostgresError", sqlstate="40001"
    ),
    "sqlalchemy": look("sqlalchemy.exc.DBAPIError", orig=look("psycopg.OperationalError")),
    "redis": look("redis.exceptions.BusyLoadingError", "redis.exceptions.ConnectionError"),
    "mcp closed": look("mcp.shared.exceptions.MCPError", error=mcp(-32000, "Connection closed"), code=-32000),
    "mcp closed, older": look("mcp.shared.exceptions.McpError", error=mcp(-32000, "Connection closed")),
    "mcp timeout": look("mcp.shared.exceptions.MCPError", error=mcp(-32001, "Request timed out")),
    "mcp timeout, older": look("mcp.shared.exceptions.McpError", error=mcp(408, "Timed out")),
    "anyio closed": look("anyio.ClosedResourceError"),
    "anyio broken": look("anyio._core._exceptions.BrokenResourceError"),
    "pydantic_ai connection": look("pydantic_ai.exceptions.ModelConnectionError", *PYDANTIC_AI),
    "pydantic_ai timeout": look(
        "pydantic_ai.exceptions.ModelTimeoutError",
        "pydantic_ai.exceptions.ModelConnectionError",
        *PYDANTIC_AI,
    ),
    "pydantic_ai deadline": look("pydantic_ai.exceptions.ModelRequestTimeout", *PYDANTIC_AI),
    "pydantic_ai rate": look(
        "pydantic_ai.exceptions._HTTPModelRateLimitError",
        "pydantic_ai.exceptions.ModelHTTPError",
        "pydantic_ai.exceptions.ModelRateLimitError",
        *PYDANTIC_AI,
        status_code=429,
    ),
    "pydantic_ai 503, older": look("pydantic_ai.exceptions.ModelHTTPError", *PYDANTIC_AI, status_code=503),
    "pydantic_ai connection, older": caused(
        look(*PYDANTIC_AI), look("openai.APIConnectionError", "openai.APIError")
    ),
    "agents timeout": look("agents.exceptions.ModelTimeoutError", "agents.exceptions.AgentsException"),
    "a status of no package": look("shop.Sold", status_code=503),
}

LASTING = {
    "mcp refused": look("mcp.shared.exceptions.MCPError", error=mcp(-32602, "Invalid params"), code=-32602),
    "mcp, an error of the server": look("mcp.shared.exceptions.MCPError", error=mcp(-32000, "No such row")),
    "anyio busy": look("anyio.BusyResourceError"),
    "pydantic_ai quota": look(
        "pydantic_ai.exceptions._HTTPModelQuotaExceededError",
        "pydantic_ai.exceptions.ModelHTTPError",
        "pydantic_ai.exceptions.ModelQuotaExceededError",
        *PYDANTIC_AI,
        status_code=429,
    ),
    "pydantic_ai key": look(
        "pydantic_ai.exceptions.ModelAuthenticationError",
        "pydantic_ai.exceptions.ModelRequestRejectedError",
        *PYDANTIC_AI,
    ),
    "pydantic_ai, nothing known": look(*PYDANTIC_AI),
    "agents turns": look("agents.exceptions.MaxTurnsExceeded", "agents.exceptions.AgentsException"),
    "value": ValueError("no"),
    "no such file": FileNotFoundError(errno.ENOENT, "no such file"),
    "disk full": OSError(errno.ENOSPC, "no space left"),
    "certificate": CERTIFICATE,
    "handshake": ssl.SSLError(1, "wrong version number"),
    "urllib certificate": urllib.error.URLError(CERTIFICATE),
    "urllib scheme": urllib.error.URLError("unknown url type: foo"),
    "urllib 404": urllib.error.HTTPError("http://x", 404, "gone", email.message.Message(), io.BytesIO()),
    "http url": http.client.InvalidURL("no host"),
    "httpx scheme": look("httpx.UnsupportedProtocol", "httpx.TransportError"),
    "httpx url": look("httpx.InvalidURL"),
    "httpx certificate": caused(
        look("httpx.ConnectError", "httpx.TransportError"),
        look("httpcore.ConnectError", "httpcore.NetworkError", args=(CERTIFICATE,)),
    ),
    "httpx 401": look("httpx.HTTPStatusError", "httpx.HTTPError", response=response(401)),
    "requests certificate": look(
        "requests.exceptions.SSLError",
        "requests.exceptions.ConnectionError",
        base=OSError,
        args=(look("urllib3.exceptions.MaxRetryError", reason=CERTIFICATE),),
    ),
    "requests url": look(
        "requests.exceptions.InvalidURL", "requests.exceptions.RequestException", base=OSError
    ),
    "aiohttp certificate": look(
        "aiohttp.client_exceptions.ClientConnectorCertificateError", "aiohttp.ClientConnectionError"
    ),
    "aiohttp fingerprint": look(
        "aiohttp.client_exceptions.ServerFingerprintMismatch", "aiohttp.ClientConnectionError"
    ),
    "aiohttp url": look("aiohttp.client_exceptions.InvalidURL", "aiohttp.client_exceptions.ClientError"),
    "openai key": look("openai.AuthenticationError", *OPENAI, status_code=401),
    "openai request": look("openai.BadRequestError", *OPENAI, status_code=400),
    "openai quota": look("openai.RateLimitError", *OPENAI, status_code=429, code="insufficient_quota"),
    "openai certificate": caused(
        look("openai.APIConnectionError", "openai.APIError"), look("httpx2.ConnectError"), CERTIFICATE
    ),
    "openai scheme": caused(
        look("openai.APIConnectionError", "openai.APIError"), look("httpx2.UnsupportedProtocol")
    ),
    "anthropic key": look("anthropic.AuthenticationError", *ANTHROPIC, status_code=401),
    "anthropic spent": look(
        "anthropic.EnforcedSpendLimitReachedError", "anthropic.RateLimitError", *ANTHROPIC, status_code=429
    ),
    "anthropic request in a stream": look(
        *ANTHROPIC, status_code=200, body={"error": {"type": "invalid_request_error"}}
    ),
    "grpc": look("grpc._channel._InactiveRpcError", "grpc.RpcError", code=lambda: Rpc.NOT_FOUND),
    "botocore denied": look(CLOUD, response=cloud("AccessDenied", 403)),
    "botocore certificate": look("botocore.exceptions.SSLError", "botocore.exceptions.ConnectionError"),
    "psycopg password": look("psycopg.errors.InvalidPassword", "psycopg.OperationalError", sqlstate="28P01"),
    "psycopg column": look("psycopg.errors.UndefinedColumn", "psycopg.ProgrammingError", sqlstate="42703"),
    "sqlalchemy": look("sqlalchemy.exc.DBAPIError", orig=ValueError()),
    "redis password": look("redis.exceptions.AuthenticationError", "redis.exceptions.ConnectionError"),
    "a status of no package": look("shop.Sold", status_code=404),
    "a name of another package": look("shop.TransportError"),
    "a code that is not a status": look("shop.Sold", code=5003),
    "exit": SystemExit(503),
}


@pytest.mark.parametrize("error", PASSING.values(), ids=PASSING)
def test_a_failure_that_may_pass_is_recoverable(error: BaseException) -> None:
    assert classify(error) == "recoverable"


@pytest.mark.parametrize("error", LASTING.values(), ids=LASTING)
def test_a_failure_that_stays_is_partial(error: BaseException) -> None:
    assert classify(error) == "partial"


def test_a_locked_sqlite_database_may_be_free_later(tmp_path) -> None:
    one, other = (sqlite3.connect(tmp_path / "x.db", timeout=0, isolation_level=None) for _ in range(2))
    one.execute("begin exclusive")
    with pytest.raises(sqlite3.OperationalError) as locked:
        other.execute("create table t (a)")
    one.execute("rollback")
    with pytest.raises(sqlite3.OperationalError) as wrong:
        other.execute("selec 1")
    one.close()
    other.close()
    assert (classify(locked.value), classify(wrong.value)) == ("recoverable", "partial")


def test_a_node_chooses_the_class_whatever_the_cause() -> None:
    assert classify(caused(Recoverable("later"), ValueError())) == "recoverable"
    assert classify(caused(Fatal("never"), TimeoutError())) == "fatal"


@pytest.mark.parametrize(
    "error", [StateError("no"), CodecError("no", path="x"), caused(StoreFull("no space"), TimeoutError())]
)
def test_what_holdfast_raises_inside_a_node_is_partial(error: BaseException) -> None:
    assert classify(error) == "partial"


def test_a_group_is_recoverable_only_if_all_in_it_are() -> None:
    passing = ExceptionGroup("two", [TimeoutError(), ExceptionGroup("one", [ConnectionError()])])
    assert classify(passing) == "recoverable"
    assert classify(ExceptionGroup("two", [TimeoutError(), ValueError()])) == "partial"


def test_a_group_is_fatal_if_any_in_it_is() -> None:
    assert classify(ExceptionGroup("two", [ValueError(), ExceptionGroup("one", [Fatal("no")])])) == "fatal"


def test_exceptions_that_hold_each_other_are_told_apart_all_the_same() -> None:
    one, other = look("urllib.error.URLError"), look("urllib.error.URLError")
    one.reason, other.reason = other, one
    assert classify(one) == "partial"
    other.args = (TimeoutError(),)
    assert classify(one) == "recoverable"


def test_an_exception_that_raises_when_looked_at_is_partial() -> None:
    class Sour(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError

        status_code = code = reason = args = headers = retry_after = response

        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Sour()).kind == "partial"
    assert retry_after(Sour(), now=NOW) is None


def test_no_client_library_is_imported_to_know_its_exceptions() -> None:
    code = """if True:
        import sys
        from holdfast.runtime.failures import classify
        kind = type("TransportError", (Exception,), {"__module__": "httpx"})
        assert classify(kind()) == "recoverable"
        clients = "httpx requests aiohttp openai anthropic urllib3 grpc botocore psycopg redis sqlite3 pydantic"
        print([name for name in clients.split() if name in sys.modules])
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# --- how long to wait --------------------------------------------------------------------------------

IN_A_MINUTE = email.utils.formatdate(NOW + 60, usegmt=True)
LAST_YEAR = email.utils.formatdate(NOW - 3e7, usegmt=True)


def message_with(**headers: str) -> email.message.Message:
    made = email.message.Message()
    for name, value in headers.items():
        made[name.replace("_", "-")] = value
    return made


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (look("httpx.HTTPStatusError", response=response(429, retry_after="7")), 7.0),
        (look("httpx.HTTPStatusError", response=response(429, Retry_After=" 7.5 ")), 7.5),
        (look("openai.RateLimitError", response=response(429, retry_after_ms="1500", retry_after="2")), 1.5),
        (look("aiohttp.ClientResponseError", status=503, headers={"RETRY-AFTER": IN_A_MINUTE}), 60.0),
        (look("x.Old", headers={"retry-after": LAST_YEAR}), 0.0),
        (urllib.error.HTTPError("http://x", 503, "", message_with(Retry_After="3"), io.BytesIO()), 3.0),
        (look(CLOUD, response={"ResponseMetadata": {"HTTPHeaders": {"retry-after": "4"}}}), 4.0),
        (look("discord.RateLimited", retry_after=2.5), 2.5),
        (look("x.Span", retry_after=timedelta(minutes=1)), 60.0),
        (caused(Recoverable("busy"), look("x.Inner", retry_after=9)), 9.0),
        (ExceptionGroup("two", [look("x.A", retry_after=1), look("x.B", retry_after=5)]), 5.0),
        (TimeoutError(), None),
        (look("x.Odd", retry_after=True), None),
        (look("x.Odd", retry_after="soon"), None),
        (look("x.Odd", retry_after=-1), None),
        (look("x.Odd", retry_after="nan"), None),
        (look("x.Odd", retry_after=10**400), None),
        (look("x.Odd", headers={"retry-after": "Mon, 99 Foo 99999 99:99:99 GMT"}), None),
        (look("x.Odd", headers="retry-after: 5"), None),
    ],
)
def test_what_the_other_side_asks_for_is_understood(error: BaseException, seconds: float | None) -> None:
    assert retry_after(error, now=NOW) == seconds


def delay(retry: Retry, error: BaseException, failures: int = 1) -> float | None:
    return retry_delay(retry, error, classify(error), failures, random.Random(1), now=NOW)


def test_a_retry_waits_at_least_as_long_as_asked_and_never_longer_than_max_delay() -> None:
    asked = look("httpx.HTTPStatusError", response=response(429, retry_after="7"))
    assert delay(Retry(backoff=1), asked) == 7.0
    assert delay(Retry(backoff=20, jitter=0), asked) == 20.0
    assert delay(Retry(backoff=1, max_delay=5), asked) == 5.0
    assert delay(Retry(backoff=1, jitter=0), TimeoutError(), failures=2) == 2.0


def test_asking_for_a_wait_makes_nothing_recoverable() -> None:
    assert delay(Retry(), look("httpx.HTTPStatusError", response=response(404, retry_after="7"))) is None


def test_the_wait_after_very_many_failures_is_the_longest_one() -> None:
    assert delay(Retry(attempts=5000, jitter=0), TimeoutError(), failures=4000) == 60.0
