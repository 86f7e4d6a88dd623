"""The files of the page: served at exact paths without a token, under a strict policy, small, and asking no other site."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import shutil
import subprocess

import pytest
from app_client import HOST, Caller, Reply
from served_flows import opened

from holdfast.server import page_files
from holdfast.server.table import ROUTES

NAMES = page_files.names()
SCRIPTS = [name for name in NAMES if name.endswith(".js")]
PARSE_ALL = (
    "import vm from 'node:vm'; import fs from 'node:fs';"
    "for (const file of fs.readdirSync('.')) new vm.SourceTextModule(fs.readFileSync(file, 'utf8'), {identifier: file});"
)
SENT_BYTES_MAX = 80 * 1024


@pytest.fixture(scope="module")
def ask():
    """Sends requests to an application, all in one event loop."""
    loop = asyncio.new_event_loop()
    opening = opened()
    _, caller = loop.run_until_complete(opening.__aenter__())

    def send(path: str, method: str = "GET", *, prefix: str = "", **options: object) -> Reply:
        sender = Caller(caller.app, prefix=prefix)
        return loop.run_until_complete(sender.send(method, path, **{"token": None, **options}))

    yield send
    loop.run_until_complete(opening.__aexit__(None, None, None))
    loop.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_served_without_a_token_under_the_policy(ask, name):
    reply = ask(page_files.path_of(name))
    assert reply.status == 200
    assert reply.body == page_files.read(name).plain
    assert reply.headers["content-type"] == page_files.TYPES["." + name.rpartition(".")[2]]
    assert reply.headers["content-security-policy"] == page_files.POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-cache"


def test_the_policy_is_the_strict_one():
    assert page_files.POLICY.split("; ") == [
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
        "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'",
        "require-trusted-types-for 'script'", "trusted-types 'none'",
    ]  # fmt: skip


def test_a_browser_gets_a_compressed_file_once(ask):
    packed = ask("/page/page.css", headers={"accept-encoding": "gzip, br"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == page_files.read("page.css").plain
    assert packed.headers["vary"] == "Accept-Encoding"
    tag = packed.headers["etag"]
    again = ask("/page/page.css", headers={"accept-encoding": "gzip", "if-none-match": f'"x", {tag}'})
    assert (again.status, again.body) == (304, b"")
    plain = ask("/page/page.css", headers={"if-none-match": tag})
    assert (plain.status, "content-encoding" in plain.headers) == (200, False)


def test_the_page_works_below_a_prefix(ask):
    index = ask("/", prefix="/holdfast").body.decode()
    linked = re.findall(r'(?:href|src)="([^"]+)"', index)
    assert linked
    for path in linked:
        assert not path.startswith(("/", "http"))
        assert ask(f"/{path}", prefix="/holdfast").status == 200


def test_the_index_preloads_every_module_so_that_they_load_at_once(ask):
    index = ask("/").body.decode()
    preloaded = re.findall(r'<link rel="modulepreload" href="page/([^"]+)">', index)
    assert preloaded == SCRIPTS


@pytest.mark.parametrize(
    "path", ["/page", "/page/", "/page/x.js", "/page/../page/page.js", "/page/pure", "/page/shapes.d.ts",
             "/page/%70age.js", "/page//page.js", "/index.html", "/page/index.html"],
)  # fmt: skip
def test_any_other_path_is_not_a_file(ask, path):
    assert ask(path).status == 401
    assert ask(path, token="").status == 404


def test_a_file_takes_no_other_method_host_or_origin(ask):
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask("/", method, token="").status == 405
        assert ask("/", method).status == 401
    assert ask("/", "HEAD").status == 200
    assert ask("/", host="evil.example").status == 421
    assert ask("/", headers={"origin": "https://evil.example"}).status == 403
    assert ask("/", headers={"origin": f"http://{HOST}"}).status == 200


def test_the_description_of_the_api_has_no_file(ask):
    document = ask("/api/v1/openapi.json", token="").json
    assert set(document["paths"]) == {route.path for route in ROUTES}


def test_comments_are_not_sent_and_lines_keep_their_numbers():
    source = (
        "// what it owns\n\n/**\n * @param {string} a\n */\nfunction f(a) {\n"
        "  // why\n  /** @type {X} */\n  const b = /** @type {Y} */ (a);\n  return `${b}//`;\n}\n"
    )
    sent = "\n\n\n\n\nfunction f(a) {\n\n\nconst b = (a);\nreturn `${b}//`;\n}\n"
    assert page_files.strip_comments(source) == sent


@pytest.mark.skipif(shutil.which("node") is None, reason="NO NODE: on Debian: apt install nodejs")
def test_what_is_sent_is_still_a_program(tmp_path):
    for name in SCRIPTS:
        file = tmp_path / name.replace("/", "_").replace(".js", ".mjs")
        file.write_bytes(page_files.read(name).plain)
    checked = subprocess.run(
        ["node", "--input-type=module", "--eval", PARSE_ALL],
        cwd=tmp_path, env={**os.environ, "NODE_OPTIONS": "--experimental-vm-modules --no-warnings"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    assert all(b"/**" not in page_files.read(name).plain for name in SCRIPTS)


def test_scripts_and_styles_are_small_as_they_are_sent():
    sent = sum(len(page_files.read(name).packed) for name in NAMES)
    assert sent <= SENT_BYTES_MAX, f"{sent / 1024:.1f} KB"


@pytest.mark.parametrize("name", [*SCRIPTS, "page.css", page_files.INDEX])
def test_a_file_asks_no_other_site_and_makes_no_markup_from_text(name):
    text = page_files.read(name).plain.decode()
    found = re.findall(r"https?://(?!www\.w3\.org/)\S+", text)
    assert found == []
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\sstyle=", text
    )
