"""The tools `read_page` and `read_file`, against a real HTTP server and hostile pages and paths."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from intaglio.errors import UsageError
from intaglio.runtime.agents.toolbox import html_text as html_module
from intaglio.runtime.agents.toolbox import public_web
from intaglio.runtime.agents.toolbox.html_text import PageText, html_text
from intaglio.runtime.agents.toolbox.page import WINDOW, file_tool, page_tool
from intaglio.runtime.agents.toolbox.public_web import MOST_BYTES, is_public
from intaglio.runtime.agents.tools.tool import ToolError

HTML = "text/html; charset=utf-8"


class Site(BaseHTTPRequestHandler):
    """The pages of the tests."""

    pages: dict[str, tuple[int, dict[str, str], bytes]] = {  # noqa: RUF012
        "/": (200, {"Content-Type": HTML}, b"<title>Alps</title><h1>Mont Blanc</h1><p>It is <b>high</b>.</p>"),
        "/long": (200, {"Content-Type": "text/plain"}, bytes(range(65, 91)) * 400),
        "/huge": (200, {"Content-Type": "text/plain"}, b"x " * MOST_BYTES),
        "/latin": (200, {"Content-Type": "text/html"}, b"<meta charset=iso-8859-1><p>caf\xe9"),
        "/links": (200, {"Content-Type": HTML}, b'<a href="/next#x">Next</a> <a href="#top">top</a> <a>none</a>'),
        "/pdf": (200, {"Content-Type": "application/pdf"}, b"%PDF"),
        "/json": (200, {"Content-Type": "application/json"}, b'{"a": 1}'),
        "/moved": (302, {"Location": "/"}, b""),
        "/circle": (302, {"Location": "/circle"}, b""),
        "/to-file": (302, {"Location": "file:///etc/passwd"}, b""),
        "/missing": (404, {}, b""),
    }

    def do_GET(self) -> None:
        if self.path == "/slow":
            time.sleep(3)
        if self.path == "/host":
            status, headers, body = 200, {"Content-Type": "text/plain"}, self.headers["Host"].encode()
        elif self.path == "/to-private":
            port = self.server.server_address[1]
            status, headers, body = 302, {"Location": f"http://127.0.0.1:{port}/"}, b""
        else:
            status, headers, body = self.pages.get(self.path, (200, {}, b""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://localhost:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def read(url: str, allow: bool = True, **arguments: Any) -> str:
    tool = page_tool(["localhost"] if allow else [])
    return asyncio.run(asyncio.wait_for(tool.function(url=url, **arguments), 15))


def test_page_returns_title_and_text(site: str) -> None:
    assert read(f"{site}/") == "Alps\n\n# Mont Blanc\n\nIt is high."


def test_long_page_continues_at_the_offset(site: str) -> None:
    first = read(f"{site}/long")
    assert first.endswith(f"\n\n[characters 0 to {WINDOW} of 10400; continue with offset {WINDOW}]")
    rest, offset = first.split("\n\n")[0], WINDOW
    while offset < 10400:
        rest += read(f"{site}/long", offset=offset).split("\n\n")[0]
        offset += WINDOW
    assert rest == "ABCDEFGHIJKLMNOPQRSTUVWXYZ" * 400
    with pytest.raises(ToolError, match="offset 10400: expected 0 to 10399"):
        read(f"{site}/long", offset=10400)


def test_huge_page_is_truncated_at_the_limit(site: str) -> None:
    assert read(f"{site}/huge", offset=MOST_BYTES - 10).endswith(
        "[the page is longer than 2 MiB; the rest was not read]"
    )


def test_page_charset_is_used(site: str) -> None:
    assert read(f"{site}/latin") == "café"


def test_links_are_shown_on_request(site: str) -> None:
    assert read(f"{site}/links") == "Next top none"
    assert read(f"{site}/links", links=True) == f"Next ({site}/next#x) top none"


def test_plain_text_is_unchanged_and_other_types_are_rejected(site: str) -> None:
    assert read(f"{site}/json") == '{"a": 1}'
    with pytest.raises(ToolError, match="application/pdf, expected a page of text"):
        read(f"{site}/pdf")
    assert read(f"{site}/empty") == "(no text)"


def test_redirects_are_followed_up_to_a_limit(site: str) -> None:
    assert read(f"{site}/moved").startswith("Alps")
    with pytest.raises(ToolError, match="more than 5 redirects"):
        read(f"{site}/circle")
    with pytest.raises(ToolError, match="expected an address that begins with http"):
        read(f"{site}/to-file")


def test_server_receives_the_host_name(site: str) -> None:
    assert read(f"{site}/host") == site.removeprefix("http://")


def test_server_errors_are_named(site: str) -> None:
    with pytest.raises(ToolError, match="/missing: the server answered 404 Not Found"):
        read(f"{site}/missing")


def test_unresponsive_server_times_out(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_web, "SECONDS", 0.5)
    with pytest.raises(ToolError, match=r"no complete answer within 0\.5 seconds|ReadTimeout"):
        read(f"{site}/slow")


def test_port_without_server_raises() -> None:
    with pytest.raises(ToolError, match="ConnectError"):
        read("http://localhost:1/")


def test_private_addresses_are_refused_even_after_a_redirect(site: str) -> None:
    with pytest.raises(ToolError, match=r"localhost: .* is an address of a private network"):
        read(f"{site}/", allow=False)
    with pytest.raises(ToolError, match=r"127\.0\.0\.1: .* private network"):
        read(f"{site}/to-private")


def test_dns_rebinding_is_prevented(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[Any] = []
    lookup = socket.getaddrinfo

    def recorded(host: Any, *arguments: Any, **keywords: Any) -> Any:
        looked_up.append(host)
        return lookup("127.0.0.1" if host == "rebinding.test" else host, *arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", recorded)
    url = site.replace("localhost", "rebinding.test")
    assert asyncio.run(page_tool(["rebinding.test"]).function(url=f"{url}/")).startswith("Alps")
    assert looked_up.count("rebinding.test") == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0.0.0.0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
    ],
)
def test_other_spellings_of_private_addresses_are_refused(url: str) -> None:
    with pytest.raises(ToolError, match="private network"):
        read(url, allow=False)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("localhost", False),
    ],
)
def test_only_public_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) == public


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://localhost/", "/etc/passwd", "", "http://", "http://[", "http://a b", "http://\0"],
)
def test_other_schemes_and_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(ToolError) as raised:
        read(url)
    assert len(str(raised.value).splitlines()) == 1


def test_passwords_in_urls_are_refused(site: str) -> None:
    with pytest.raises(ToolError, match="without a user name"):
        read(site.replace("http://", "http://me:secret@"))


def test_html_becomes_readable_text() -> None:
    html = """<html><head><title>A &amp; B</title><style>p {}</style><script>if (a < b) {}</script></head>
    <body><h2>Rivers</h2><p>The\n  Rhine<br>The Rhone</p><ul><li>one<li>two</ul>
    <table><tr><th>Name</th><td>Rhine</td></tr></table><pre>a\n  b</pre><noscript>hidden</noscript></body>"""
    assert html_text(html) == PageText(
        "A & B", "## Rivers\n\nThe Rhine\nThe Rhone\n\n- one\n- two\n\n| Name | Rhine\n\na\n  b"
    )


@pytest.mark.parametrize(
    "piece", ["<!--x>", "<a", "<!", "<a b='", "</", "<![CDATA[", "&#", "<?", "<script>", "<svg>", "<b>"]
)
def test_broken_page_is_parsed_within_the_time_limit(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_module, "PARSE_SECONDS", 0.2)
    began = time.perf_counter()
    try:
        html_text(piece * (MOST_BYTES // len(piece)))
    except ToolError as error:
        assert "HTML is broken" in str(error)
    assert time.perf_counter() - began < 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "a.txt").write_text("hello")
    (tmp_path / "docs" / "deep" / "b.html").write_text("<title>B</title><p>text of b")
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path / "docs"


def test_files_of_the_folder_are_read(folder: Path) -> None:
    tool = file_tool(folder)
    assert tool.function(path="a.txt") == "hello"
    assert tool.function(path="deep/../deep/b.html") == "B\n\ntext of b"


def test_paths_cannot_leave_the_folder(folder: Path) -> None:
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "up").symlink_to(folder.parent)
    read_file = file_tool(folder).function
    for path in ("../secret.txt", str(folder.parent / "secret.txt"), "link.txt", "up/secret.txt", "/etc/passwd"):
        with pytest.raises(ToolError, match="is outside of the folder docs"):
            read_file(path=path)


def test_other_files_are_refused_with_a_reason(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "binary").write_bytes(b"\0\1")
    (folder / "circle").symlink_to(folder / "circle")
    read_file = file_tool(folder).function
    reasons = {
        "nothing.txt": r"no file 'nothing.txt'. The folder docs has a.txt, binary, circle, deep/, pipe\.",
        "deep": r"is not a file. The folder deep has b.html\.",
        "pipe": "is not a file",
        "binary": "is not text",
        "circle": "circle",
        "\0": "null",
        "a" * 5000: "File name too long",
    }
    for path, reason in reasons.items():
        with pytest.raises(ToolError, match=reason):
            read_file(path=path)


def test_missing_folder_is_rejected(folder: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        file_tool(folder / "a.txt")


def test_certificate_is_checked_against_the_host_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    trusting = functools.partial(httpx2.AsyncClient, verify=ssl.create_default_context(cafile=str(certificate)))
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        port = server.server_address[1]
        try:
            with pytest.raises(ToolError, match="CERTIFICATE_VERIFY_FAILED"):  # self-signed
                read(f"https://localhost:{port}/")
            monkeypatch.setattr(httpx2, "AsyncClient", trusting)
            assert read(f"https://localhost:{port}/").startswith("Alps")
            with pytest.raises(ToolError, match="CERTIFICATE_VERIFY_FAILED"):  # of another name
                asyncio.run(page_tool(["127.0.0.1"]).function(url=f"https://127.0.0.1:{port}/"))
        finally:
            server.shutdown()
            thread.join()


def test_ipv6_host_is_fetched() -> None:
    class Sixth(ThreadingHTTPServer):
        address_family = socket.AF_INET6

    try:
        server = Sixth(("::1", 0), Site)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        url = f"http://[::1]:{server.server_address[1]}"
        try:
            assert asyncio.run(page_tool(["::1"]).function(url=f"{url}/host")) == url.removeprefix("http://")
        finally:
            server.shutdown()
            thread.join()
