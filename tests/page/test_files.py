"""The files of the page: served at exact paths without a token, under a strict policy, small, and asking no other site."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from app_client import HOST, Caller, Reply
from served_flows import opened

from holdfast.server import page_files, page_script
from holdfast.server.table import ROUTES

PRETTIER = Path(__file__).parents[2] / "node_modules" / "prettier" / "plugins"
COMPARE = """
import babel from "%s/babel.mjs"; import postcss from "%s/postcss.mjs"; import fs from "node:fs";
const PLACES = /^(loc|range|start|end|__contentEnd|inputs?|sourceIndex|extra|comments|tokens|raws|errors|.*Comments)$/;
const keep = (key, value) => {
  while (value?.type === "ParenthesizedExpression") value = value.expression; // of a cast
  if (PLACES.test(key) || (key === "source" && !value?.type)) return undefined;
  return Array.isArray(value) ? value.filter((one) => one?.type !== "css-comment") : value;
};
for (const [name, source, sent] of JSON.parse(fs.readFileSync(0, "utf8"))) {
  const parser = name.endsWith(".css") ? postcss.parsers.css : babel.parsers.babel;
  const trees = await Promise.all([source, sent].map((text) => parser.parse(text, {})));
  const [written, stripped] = trees.map((one) => JSON.stringify(one.program ?? one.nodes, keep));
  const at = [...written].findIndex((one, index) => one !== stripped[index]);
  if (written !== stripped) throw new Error(`${name}: ${written.slice(at - 200, at + 50)} became ${stripped.slice(at, at + 50)}`);
}
"""
"""Compares the syntax trees of what was written and of what is sent, without comments."""
needs_prettier = pytest.mark.skipif(
    shutil.which("node") is None or not PRETTIER.exists(),
    reason="NO PRETTIER: on Debian: apt install nodejs npm; npm install",
)
SENT_BYTES_MAX = 130 * 1024


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


@pytest.mark.parametrize("name", page_files.NAMES)
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


@pytest.mark.parametrize(
    "path", ["/page", "/page/", "/page/x.js", "/page/../page/page.js", "/page/pure", "/page/shapes.d.ts", "/page/pure/words.js",
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


MODULES = {
    "page.js": """// The start.
import { say } from "./parts/say.js";
import {
  COUNT,
  FIRST as opening,
} from "./pure/words.js";
say(opening, COUNT);
void import("./later.js").then(({ more }) => more());
""",
    "later.js": """import { COUNT } from "./pure/words.js";
import { last } from "./parts/last.js";
/** Says more. */
export const more = () => last(COUNT);
""",
    "parts/last.js": 'import { say } from "./say.js";\nexport function last(number) {\n  say("last", number);\n}\n',
    "parts/say.js": """const COUNT = 1; // its own
/** @param {string} word @param {number} number */
export function say(word, number) {
  console.log(`${word} // ${/** @type {any} */ (number)}`, COUNT, /[/*]/.test("/*"));
}
""",
    "pure/words.js": 'const WORDS = ["a", "b"];\nexport const [FIRST] = WORDS;\nexport const COUNT = WORDS.length;\n',
    "pure/unused.js": "export const unused = 1;\n",
}
"""Modules with an alias, and with a name that two of them declare."""


def test_a_module_comes_after_those_that_it_imports():
    assert page_script.order(MODULES, "page.js") == ["parts/say.js", "pure/words.js", "page.js"]


def test_modules_that_import_each_other_are_refused():
    modules = {
        "page.js": 'import { a } from "./a.js";\n',
        "a.js": 'import { b } from "./b.js";\n',
        "b.js": 'import { a } from "./a.js";\n',
    }
    with pytest.raises(ValueError, match=re.escape("each other: page.js -> a.js -> b.js -> a.js")):
        page_script.order(modules, "page.js")


@pytest.mark.parametrize("line", ['import * as all from "./a.js";', "export default 1;", "export let a = 1;"])
def test_a_form_of_import_or_export_that_cannot_be_joined_is_refused(line):
    with pytest.raises(
        ValueError, match=re.escape(f"page.js: this line cannot be sent in a script with others: {line}")
    ):
        page_script.wrap("page.js", line + "\n")


def test_comments_are_not_sent_and_everything_else_is_as_it_was_written():
    assert (
        page_script.wrap("parts/say.js", MODULES["parts/say.js"])
        == """$modules["parts/say.js"] = (() => {
const COUNT = 1;
function say(word, number) {
  console.log(`${word} // ${/** @type {any} */ (number)}`, COUNT, /[/*]/.test("/*"));
}
return { say };
})();
"""
    )
    assert page_script.strip_comments("/* why */\na > b:hover,\n\nc {\n  margin: 0; /* so */\n}\n") == (
        "a > b:hover,\nc {\n  margin: 0; \n}\n"
    )


@pytest.mark.skipif(shutil.which("node") is None, reason="NO NODE: on Debian: apt install nodejs npm")
def test_scripts_do_what_their_modules_do_and_the_second_shares_those_of_the_first(tmp_path):
    for folder in ("parts", "pure"):
        (tmp_path / "plain" / folder).mkdir(parents=True)
    for name, text in MODULES.items():
        (tmp_path / "plain" / name).write_text(text)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "page.js").write_text(page_script.make_script(MODULES, "page.js"))
    later = page_script.make_script(MODULES, "later.js", first="page.js")
    (tmp_path / "later.js").write_text(later)
    said = [
        subprocess.run(["node", name], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for name in ("plain/page.js", "page.js")
    ]
    assert said == ["a // 2 1 true\nlast // 2 1 true\n"] * 2
    assert [name for name in MODULES if f'$modules["{name}"] = ' in later] == ["later.js", "parts/last.js"]


@needs_prettier
def test_what_is_sent_is_what_was_written():
    sources = page_files.modules()
    sources[page_files.STYLES] = (
        Path(page_files.__file__).parent / page_files.FOLDER / page_files.STYLES
    ).read_text("utf-8")
    pairs = [(name, text, page_script.strip_comments(text)) for name, text in sources.items()]
    compared = subprocess.run(
        ["node", "--input-type=module", "--eval", COMPARE % (PRETTIER, PRETTIER)],
        input=json.dumps(pairs), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr


def test_each_module_is_sent_once():
    scripts = [page_files.read(name).plain.decode() for name in (page_files.SCRIPT, page_files.LATER)]
    sent = re.findall(r'^\$modules\["(.+)"] = ', "".join(scripts), re.MULTILINE)
    assert sorted(sent) == sorted(page_files.modules())


def test_scripts_and_styles_are_small_as_they_are_sent():
    names = (page_files.SCRIPT, page_files.LATER, page_files.STYLES)
    sent = sum(len(page_files.read(name).packed) for name in names)
    assert sent <= SENT_BYTES_MAX, f"{sent / 1024:.1f} KB"
