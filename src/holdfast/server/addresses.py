"""Says under which names the server may be called: which values `Host` and `Origin` may have.

A page of another site can make a browser send requests to the server, also under the attacker's own name if that name resolves to
this machine (DNS rebinding). So a request is answered only if its `Host` is a name of the server: the loopback address on which
it arrived, `localhost` with the same port, or the name in one of the public URLs. The same holds for `Origin`.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from holdfast.errors import SettingError
from holdfast.storage.http.server_url import is_loopback

_PORTS = {"http": 80, "https": 443}


class Addresses:
    """The names of the server. `public_urls` are its addresses as others see them, such as those of a reverse proxy."""

    def __init__(self, public_urls: Iterable[str] = ()) -> None:
        given = (public_urls,) if isinstance(public_urls, str) else tuple(public_urls)
        self.public_urls = tuple(_check_url(url) for url in given)
        self._hosts: set[str] = set()
        self._origins: set[str] = set()
        for url in self.public_urls:
            for host in _hosts_of(url):
                self._hosts.add(host)
                self._origins.add(f"{urlsplit(url).scheme}://{host}")

    def is_host(self, host: str, server: tuple[str, int | None] | None) -> bool:
        """Return whether `Host` may have this value, for a request that arrived at the address `server`."""
        return host.lower() in self._hosts or host.lower() in _loopback_hosts(server)

    def is_origin(self, origin: str, server: tuple[str, int | None] | None) -> bool:
        """Return whether `Origin` may have this value, for a request that arrived at the address `server`."""
        scheme, _, host = origin.lower().partition("://")
        return origin.lower() in self._origins or (scheme == "http" and host in _loopback_hosts(server))


def network_of(address: str) -> str:
    """Return what counts as one sender: an IPv4 address, or the /64 network of an IPv6 address, which one machine may own."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


def join_host(address: str, port: int | None) -> str:
    """Return address and port as a URL has them."""
    host = f"[{address}]" if ":" in address else address
    return host if port is None else f"{host}:{port}"


@functools.lru_cache(maxsize=64)
def _loopback_hosts(server: tuple[str, int | None] | None) -> tuple[str, ...]:
    if server is None or server[1] is None or not is_loopback(server[0]):
        return ()
    address, port = server
    hosts = (join_host(address, port), join_host("localhost", port))
    return (*hosts, address, "localhost") if port == _PORTS["http"] else hosts


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, AttributeError):
        parts, port = urlsplit(""), None
    wrong = parts.scheme not in _PORTS or not parts.hostname or port == 0
    if wrong or parts.query or parts.fragment or "@" in parts.netloc:
        raise SettingError(
            f"{url!r} is not a public URL: give the address as browsers show it, as in https://holdfast.example.com"
        )
    return url.rstrip("/")


def _hosts_of(url: str) -> list[str]:
    """Return the host of a URL, without and with its port if that is the usual one."""
    parts = urlsplit(url)
    name, usual = parts.hostname or "", _PORTS[parts.scheme]
    port = parts.port if parts.port is not None else usual
    with_port = join_host(name, port)
    return [join_host(name, None), with_port] if port == usual else [with_port]
