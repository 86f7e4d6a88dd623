"""Parse the URL of a PostgreSQL store, and build a URL without secrets that may be printed.

This module owns no connection. Invariant: nothing that is printed contains a password. The form of the URL is checked here,
before the driver sees it, because the driver's error messages may quote a misplaced part of the URL, which may be half of a
password. Only options that libpq knows and that contain no secret are printed: an unknown option may be a misspelt `password`.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote

from holdfast.errors import SettingError, did_you_mean

SCHEMA = "holdfast"
_SHAPE = re.compile(
    r"(?i:postgres(?:ql)?)://"
    r"(?:(?P<user>[^:@/?#]*)(?::(?P<password>[^@/?#]*))?@)?"
    r"(?P<hosts>[A-Za-z0-9._,:%\[\]-]*)"
    r"(?:/(?P<database>[^/?#@]*))?"
    r"(?:\?(?P<options>(?:[a-z_]+=[^&?#@]*(?:&|$))*))?"
)
_PORT = re.compile(r":(?![0-9]{0,5}(?:,|$))")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SCHEMA_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
OWN_OPTIONS = ("schema", "unsafe")
SECRET_OPTIONS = frozenset({
    "oauth_client_secret", "password", "scram_client_key", "scram_server_key", "sslpassword",
})  # fmt: skip
SHOWN_OPTIONS = frozenset({
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "fallback_application_name",
    "gssdelegation", "gssencmode", "gsslib", "host", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle",
    "keepalives_interval", "krbsrvname", "load_balance_hosts", "max_protocol_version", "min_protocol_version",
    "oauth_client_id", "oauth_issuer", "oauth_scope", "options", "passfile", "port", "replication", "require_auth",
    "requirepeer", "service", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcertmode",
    "sslcompression", "sslcrl", "sslcrldir", "sslkey", "sslkeylogfile", "sslmode", "sslnegotiation", "sslrootcert", "sslsni",
    "target_session_attrs", "tcp_user_timeout", "user",
})  # fmt: skip
_YES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_CONNECTION = {
    "connect_timeout": "10",
    "tcp_user_timeout": "15000",  # ms: a connection without an answer ends well within the duration of a lease
    "keepalives_idle": "10",
    "client_encoding": "UTF8",
    "fallback_application_name": "holdfast",
}


class Address:
    """The address of a PostgreSQL store. `url` opens it again and contains no secret; `conninfo` is for the driver only."""

    def __init__(self, url: str, *, schema: str | None = None, unsafe: bool | None = None) -> None:
        match = _SHAPE.fullmatch(url)
        if match is None or _ESCAPE.search(url) or _PORT.search(re.sub(r"\[[^]]*\]", "", match["hosts"])):
            raise SettingError(
                "this PostgreSQL URL cannot be read. Write postgresql://user:password@host:5432/database, with every "
                "special character of user and password written as %XX: @ as %40, / as %2F, # as %23, ? as %3F, % as %25."
            )
        options = dict(parse_qsl(match["options"] or "", keep_blank_values=True))
        self.schema = _schema(options.pop("schema", None) if schema is None else schema)
        self.unsafe = _unsafe(options.pop("unsafe", None)) if unsafe is None else unsafe
        self._options = frozenset(options)
        place = f"{match['hosts']}/{match['database'] or ''}"
        shown = {name: value for name, value in options.items() if name in SHOWN_OPTIONS}
        if self.schema != SCHEMA:
            shown["schema"] = self.schema
        if self.unsafe:
            shown["unsafe"] = "1"
        user = f"{match['user']}@" if match["user"] else ""
        self.url = f"postgresql://{user}{place}{_query(shown)}"
        secret = f":{match['password']}" if match["password"] else ""
        owner = f"{match['user'] or ''}{secret}@" if match["user"] or secret else ""
        self.conninfo = f"postgresql://{owner}{place}{_query(_CONNECTION | options)}"

    @property
    def slip(self) -> str:
        """A misspelt option of the URL and the option that was probably meant, for an error message; empty if no option seems
        misspelt. Also empty if the URL has a secret among its options: a part of a secret that contains & would look like an
        option.
        """
        for name in () if self._options & SECRET_OPTIONS else sorted(self._options - SHOWN_OPTIONS):
            if near := did_you_mean(name, [*OWN_OPTIONS, *SHOWN_OPTIONS]):
                return f": {name!r}{near}"
        return ""

    def __repr__(self) -> str:
        return f"Address({self.url!r})"


def _query(options: dict[str, str]) -> str:
    told = "&".join(f"{name}={quote(value, safe='/')}" for name, value in options.items())
    return f"?{told}" if told else ""


def _schema(name: str | None) -> str:
    name = SCHEMA if name is None else name
    if not _SCHEMA_NAME.fullmatch(name):
        raise SettingError(
            f"{name!r} cannot be the schema of a store: use up to 63 lower-case letters, digits and '_', starting with "
            "a letter or '_' and not with 'pg_'"
        )
    return name


def _unsafe(text: str | None) -> bool:
    if text is None:
        return False
    if text.lower() not in _YES:
        raise SettingError("the option `unsafe` of a PostgreSQL URL must be 1 or 0")
    return _YES[text.lower()]
