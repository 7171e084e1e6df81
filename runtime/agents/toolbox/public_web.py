"""Fetching a page of the public web, and nothing of the machine's own network.

The host's addresses are looked up once, checked, and connected to, so that a name cannot resolve to a public address
when it is checked and to a private one when it is used. Every redirect is checked the same way.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, NamedTuple

from intaglio.errors import one_line
from intaglio.extras import load
from intaglio.runtime.agents.tools.tool import ToolError
from intaglio.version import __version__

MOST_BYTES = 2 << 20  # of a page; the rest is not read
MOST_REDIRECTS = 5
SECONDS = 20.0  # for a page, with its redirects
NAT64 = IPv6Network("64:ff9b::/96")  # an IPv4 address in its last 32 bits (RFC 6052)


class Fetched(NamedTuple):
    """A page as the server sent it."""

    url: str  # after redirects
    content_type: str  # without its parameters, in lower case
    charset: str | None
    data: bytes
    cut: bool  # whether the page is longer than `MOST_BYTES`


async def fetch(url: str, allow_hosts: Collection[str] = ()) -> Fetched:
    """Get `url` over HTTP or HTTPS. Raises `ToolError` with the reason if that is not possible or not allowed.

    `allow_hosts`: names of hosts that may have private and loopback addresses. Proxies of the environment are not used.
    """
    httpx = load("httpx2")
    try:
        async with asyncio.timeout(SECONDS), httpx.AsyncClient(trust_env=False, timeout=SECONDS) as client:
            return await _follow(httpx, client, url, allow_hosts)
    except TimeoutError:
        raise ToolError(f"{url:.200}: no complete answer within {SECONDS:g} seconds.") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError, ValueError) as error:
        raise ToolError(f"{url:.200}: {type(error).__name__} {one_line(error, 200)}") from error


async def _follow(httpx: Any, client: Any, url: str, allow_hosts: Collection[str]) -> Fetched:
    target = httpx.URL(url)
    for _ in range(MOST_REDIRECTS + 1):
        if target.scheme not in ("http", "https") or not target.host:
            raise ToolError(f"{str(target)!r:.200}: expected an address that begins with http:// or https://.")
        if target.userinfo:
            raise ToolError(f"{target.host}: expected an address without a user name and password.")
        response = await _get(httpx, client, target, await _addresses(target, allow_hosts))
        try:
            location = response.headers.get("location")
            if not (response.is_redirect and location):
                return await _read(response, str(target))
            target = target.join(location)
        finally:
            await response.aclose()
    raise ToolError(f"{url:.200}: more than {MOST_REDIRECTS} redirects.")


async def _get(httpx: Any, client: Any, target: Any, addresses: Sequence[str]) -> Any:
    """The response of the first of `addresses` that takes a connection."""
    headers = {
        "Host": target.netloc.decode("ascii"),
        "User-Agent": f"intaglio/{__version__}",
        "Accept": "text/html, text/*;q=0.9, */*;q=0.1",
    }
    for address in addresses:
        request = client.build_request(
            "GET", target.copy_with(host=address), headers=headers, extensions={"sni_hostname": target.host}
        )
        try:
            return await client.send(request, stream=True)
        except httpx.ConnectError:
            if address == addresses[-1]:
                raise
    raise ToolError(f"{target.host}: the name has no address.")


async def _addresses(target: Any, allow_hosts: Collection[str]) -> list[str]:
    """The addresses of a host, all of them public, unless the host is allowed."""
    port = target.port or {"http": 80, "https": 443}[target.scheme]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(target.host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{target.host}: {one_line(error)}. Check the name of the host.") from error
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if target.host not in allow_hosts:
        for address in addresses:
            if not is_public(address):
                raise ToolError(f"{target.host}: {address} is an address of a private network, which is not read.")
    return addresses


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet, also if it wraps an IPv4 address."""
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo or (None, None))[1]
        if parsed in NAT64:
            inner = IPv4Address(int(parsed) & 0xFFFFFFFF)
        if inner is not None:
            parsed = inner
    return parsed.is_global and not parsed.is_multicast


async def _read(response: Any, url: str) -> Fetched:
    if response.status_code >= 400:
        raise ToolError(f"{url:.200}: the server answered {response.status_code} {response.reason_phrase}")
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) > MOST_BYTES:
            break
    content_type = response.headers.get("content-type", "").split(";")[0].strip().lower()
    return Fetched(url, content_type, response.charset_encoding, bytes(data[:MOST_BYTES]), len(data) > MOST_BYTES)
