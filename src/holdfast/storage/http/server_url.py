"""Reads the URL of a server, `https://host[:port][/prefix]` or `http://` on loopback, and the token for it.

A URL with a user or a password is refused and not printed: URLs appear in logs, in process lists and in suggested commands.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import SettingError

VARIABLE = "HOLDFAST_TOKEN"
SCHEMES = ("http", "https")
_PORTS = {"http": 80, "https": 443}
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*/?")
_TOKEN = re.compile(r"[\x21-\x7e]{1,1000}")


class ServerUrl(msgspec.Struct, frozen=True):
    """The address of a server."""

    scheme: str
    host: str
    port: int
    prefix: str
    """The path below which the server is mounted, without a slash at its end; usually empty."""

    @classmethod
    def parse(cls, text: str) -> ServerUrl:
        """Read a URL. Raises `SettingError`."""
        try:
            parts = urlsplit(text)
            scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
        except ValueError:
            raise SettingError(_WRONG) from None
        if "@" in parts.netloc:
            raise SettingError(
                f"the URL of the server contains a user or a password. Leave it out, and set {VARIABLE} to the token: "
                f"{VARIABLE}=ID.SECRET holdfast runs --store {scheme}://{host}"
            )
        if "token=" in parts.fragment or "token=" in parts.query:
            raise SettingError(
                f"the URL of the server contains a token, and URLs appear in logs. Leave out everything after the address, and "
                f"set {VARIABLE} to the token."
            )
        wrong = scheme not in SCHEMES or not host or port == 0 or not host.isascii()
        if wrong or parts.query or parts.fragment or not _PREFIX.fullmatch(parts.path):
            raise SettingError(_WRONG)
        if scheme == "http" and not is_loopback(host):
            raise SettingError(
                f"http://{host} would send the token unencrypted. Use https://{host}; http:// is possible only for a server on "
                "this machine (127.0.0.1, localhost)."
            )
        return cls(scheme, host, port or _PORTS[scheme], parts.path.rstrip("/"))

    @property
    def text(self) -> str:
        """The URL, as it may be printed and opened again."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.prefix}"


_WRONG = "this is not the URL of a server. Write https://host, or http://127.0.0.1:PORT for a server on this machine."


def token_from(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token in the environment; None if it is not set. Raises `SettingError`."""
    return check_token(environment.get(VARIABLE) or None, VARIABLE)


def check_token(token: str | None, name: str) -> str | None:
    """Refuse a text that cannot be sent as a token, without printing it. Raises `SettingError`."""
    if token is not None and not _TOKEN.fullmatch(token):
        raise SettingError(f"{name} is not a token: a token has the form ID.SECRET, without spaces")
    return token


def is_loopback(address: str) -> bool:
    """Return whether an IP address, or the name `localhost`, can be reached only from this machine."""
    if address == "localhost":
        return True
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
