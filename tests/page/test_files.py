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

PRETTIER = Path(__file__).parents[2] / "node_modules" / "prettier" / "index.mjs"
FORMAT_BOTH = """
import { format } from "%s"; import fs from "node:fs";
for (const kind of ["babel", "css"]) {
  const [source, sent] = await Promise.all(["source", "sent"].map(async (name) => {
    const text = await format(fs.readFileSync(`${kind}.${name}`, "utf8"), { parser: kind, objectWrap: "collapse" });
    return text.replace(/\\n+/g, "\\n").replaceAll(": ", ":");
  }));
  const lines = [source.split("\\n"), sent.split("\\n")];
  const at = lines[0].findIndex((line, index) => line !== lines[1][index]);
  if (source !== sent) throw new Error(`${lines[0][at]} became ${lines[1][at]}`);
}
"""
"""Formats what was written and what is sent the same way, and compares."""
OTHER_USES = """
import babel from "%s/../plugins/babel.mjs"; import fs from "node:fs";
const names = new Set(JSON.parse(fs.readFileSync("names", "utf8")));
const words = (text) => text.match(/[\\w$]+/g)?.filter((word) => names.has(word)) ?? [];
const found = [];
const look = (node, parent, place) => {
  if (Array.isArray(node)) return node.forEach((one) => look(one, parent, place));
  if (!node || typeof node.type !== "string") return;
  const isKey = ["property", "key"].includes(place) && !parent.computed;
  if (node.type === "Identifier" && names.has(node.name) && (isKey || parent.shorthand)) found.push(node.name);
  if (node.type === "TemplateElement") found.push(...words(node.value.raw));
  if (/^(String|RegExp)Literal$/.test(node.type)) found.push(...words(node.value ?? node.pattern));
  for (const [key, child] of Object.entries(node)) if (child && typeof child === "object") look(child, node, key);
};
look((await babel.parsers.babel.parse(fs.readFileSync("source", "utf8"), {})).program, {}, "");
console.log(JSON.stringify(found));
"""
"""Prints the names that are also a property, a key, or a word of a text."""
MODULES = Path(page_files.__file__).parent / page_files.FOLDER
DECLARED = re.compile(
    r"^(?:export )?(?:async )?(?:function\*?|const|let|class) (\w+|\[[^]]+\])", re.MULTILINE
)
SENT_BYTES_MAX = 90 * 1024
"""It was 80 KB before runs of plans were shown: marks on edges, policies and verification, budgets and the ledger need 3 KB."""


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


def test_modules_are_joined_in_the_order_in_which_they_must_run():
    modules = {
        "page.js": 'import { b } from "./parts/b.js";\nimport {\n  a,\n} from "./pure/a.js";\nb(a);\n',
        "parts/b.js": 'import { a } from "../pure/a.js";\nexport function b(c) {}\n',
        "pure/a.js": "export const a = 1;\n",
        "pure/unused.js": "export const unused = 1;\n",
    }
    assert page_script.join(modules, "page.js") == "const a = 1;\n\nfunction b(c) {}\n\nb(a);\n"


def test_modules_are_joined_as_they_compress_best_where_that_leaves_a_choice():
    modules = {
        "page.js": 'import { a } from "./a.js";\nimport { b } from "./b.js";\nimport { c } from "./c.js";\n',
        "a.js": "const a = 1;",
        "b.js": "const b = 1;",
        "c.js": 'import { a } from "./a.js";\nconst c = 1;',
    }
    wanted = ["c.js", "gone.js", "b.js"]
    assert page_script.join(modules, "page.js", wanted) == "const a = 1;\nconst c = 1;\nconst b = 1;\n"


def test_comments_and_needless_spaces_are_not_sent():
    source = (
        "// what it owns\n\n/**\n * @param {string} a\n */\nfunction f(a) {\n"
        "  // why\n  /** @type {X} */\n  const b = /** @type {Y} */ (a); // why\n  return `${b} , //`;\n}\n"
    )
    assert page_script.squeeze_script(source) == "function f(a){const b=(a);return `${b} , //`}"
    assert (
        page_script.squeeze_styles("/* why */\na > b:hover,\nc {\n  margin: 0 auto;\n}\n")
        == "a>b:hover,c{margin:0 auto}"
    )


@pytest.mark.skipif(
    shutil.which("node") is None or not PRETTIER.exists(),
    reason="NO PRETTIER: on Debian: apt install nodejs npm; npm install",
)
def test_what_is_sent_is_what_was_written(tmp_path):
    sources = page_script.join(page_files.modules(), page_files.SCRIPT, page_files.order())
    renamed = page_script.rename(sources, page_script.short_names(sources))
    (tmp_path / "babel.source").write_text(page_script.strip_comments(page_script.loosen(renamed)))
    (tmp_path / "babel.sent").write_bytes(page_files.read(page_files.SCRIPT).plain)
    styles = (MODULES / page_files.STYLES).read_text("utf-8")
    (tmp_path / "css.source").write_text(page_script.rename_properties(page_script.strip_comments(styles)))
    (tmp_path / "css.sent").write_bytes(page_files.read(page_files.STYLES).plain)
    compared = subprocess.run(
        ["node", "--input-type=module", "--eval", FORMAT_BOTH % PRETTIER],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr


def test_a_variable_is_sent_short_unless_it_is_also_a_property_a_key_or_a_word_of_a_text():
    source = """
function createTable(rowHeight) {
  const isOpen = rowHeight > 1;
  const inKey = 1;
  const { ofEvent } = rowHeight;
  const inText = "inText";
  const inTemplate = `inTemplate ${isOpen}`;
  return [isOpen, { inKey, ofEvent }, rowHeight.isProperty, ba];
}
const isProperty = createTable;
const ofEvent = 2;
"""
    assert page_script.short_names(source) == {"createTable": "aa", "isOpen": "ca"}
    assert page_script.rename("createTable(createTables)", {"createTable": "aa"}) == "aa(createTables)"


def test_only_declarations_of_constants_become_those_of_variables():
    source = 'const a = schema.const; const { b } = { const: "const x" };'
    assert page_script.loosen(source) == 'let a = schema.const; let { b } = { const: "const x" };'


@pytest.mark.skipif(
    shutil.which("node") is None or not PRETTIER.exists(),
    reason="NO PRETTIER: on Debian: apt install nodejs npm; npm install",
)
def test_only_what_is_nothing_but_a_variable_gets_a_short_name(tmp_path):
    sources = page_script.join(page_files.modules(), page_files.SCRIPT, page_files.order())
    names = page_script.short_names(sources)
    assert len(set(names.values())) == len(names) > 500
    (tmp_path / "source").write_text(sources)
    (tmp_path / "names").write_text(json.dumps(list(names)))
    looked = subprocess.run(
        ["node", "--input-type=module", "--eval", OTHER_USES % PRETTIER],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert looked.stdout.strip() == "[]", looked.stderr


def test_no_two_modules_declare_the_same_name_so_that_they_can_be_joined():
    found: dict[str, list[str]] = {}
    for name, text in page_files.modules().items():
        for declared in DECLARED.findall(text):
            for one in declared.strip("[]").split(", "):
                found.setdefault(one, []).append(name)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


@pytest.mark.parametrize(("name", "text"), page_files.modules().items(), ids=page_files.modules())
def test_a_module_imports_names_without_an_alias_and_exports_what_it_declares(name, text):
    rest = page_script.IMPORT.sub("", text)
    assert re.findall(r"^import\b.*|\bimport\((?!\")", rest, re.MULTILINE) == []
    assert [found[0] for found in page_script.IMPORT.finditer(text) if " as " in found[0]] == []
    exports = re.findall(r"^export .*", text, re.MULTILINE)
    assert [line for line in exports if not DECLARED.match(line)] == []


def test_scripts_and_styles_are_small_as_they_are_sent():
    sent = sum(len(page_files.read(name).packed) for name in (page_files.SCRIPT, page_files.STYLES))
    assert sent <= SENT_BYTES_MAX, f"{sent / 1024:.1f} KB"
