"""What the server accepts as a query and as a body: nothing is ignored, and no input makes it fail."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import UNSET, Meta, UnsetType

from holdfast.server.json_body import DEPTH_MAX, decode, depth
from holdfast.server.parameters import read_query
from holdfast.server.problems import Refused


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=10)] = 5
    flow: str | UnsetType = UNSET
    label: tuple[str, ...] = ()
    again: bool = False
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0


class Body(msgspec.Struct, forbid_unknown_fields=True):
    flow: str
    input: Any = None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"", Wanted()),
        (b"limit=3&flow=a%20b", Wanted(limit=3, flow="a b")),
        (b"flow=null", Wanted(flow="null")),
        (b"flow=", Wanted(flow="")),
        (b"label=a&label=b", Wanted(label=("a", "b"))),
        (b"again=true", Wanted(again=True)),
        (b"wait=1.5", Wanted(wait=1.5)),
        (b"flow=%F0%9F%90%99", Wanted(flow="🐙")),
    ],
)
def test_a_query_is_read_into_its_struct(query, expected):
    assert read_query(query, Wanted) == expected


@pytest.mark.parametrize(
    "query",
    [
        b"limit=0",
        b"limit=11",
        b"limit=-1",
        b"limit=1000000000000000000",
        b"limit=x",
        b"limit=",
        b"limit",
        b"limit=1&limit=2",
        b"flow=a&flow=a",
        b"flwo=a",
        b"Limit=1",
        b"limit%5B%5D=1",
        b"again=yes",
        b"wait=nan",
        b"wait=inf",
        b"wait=-1",
        b"flow=%00",
        b"flow=a%0d%0ab",
        b"flow=%ff",
        b"flow=%ED%A0%80",
        b"=",
        b"x",
        b"&".join([b"label=a"] * 201),
        b"flow=\xff",
        b"limit=1;flow=a",
        b"x') OR 1=1 --=1",
        b"$.a=1",
    ],
)
def test_a_query_that_does_not_fit_is_refused(query):
    with pytest.raises(Refused) as raised:
        read_query(query, Wanted)
    assert raised.value.problem.status == 400


def test_the_error_about_a_parameter_names_it():
    with pytest.raises(
        Refused, match=r"There is no parameter 'flwo'; did you mean 'flow'\? The parameters are"
    ) as raised:
        read_query(b"flwo=a", Wanted)
    assert "limit" in raised.value.problem.detail
    with pytest.raises(Refused) as raised:
        read_query(b"limit=99", Wanted)
    assert raised.value.problem.errors[0].path == "limit"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"nul", 400),
        (b'{"flow": NaN}', 400),
        (b'{"flow": "\\ud800"}', 400),
        (b'{"flow": "\xff"}', 400),
        (b"\xff\xfe{\x00}\x00", 400),
        (b'{"flow": "a", "flow": "b"}', 400),
        (b'{"flow": "a", "fl\\u006fw": "b"}', 400),
        (b'{"flow": "a", "input": {"x": {"y": 1, "y": 1}}}', 400),
        (b'{"flow": "a"} {}', 400),
        (b"[" * 100_000, 400),
        (b'{"flow":"a","input":' + b'{"a":' * 200 + b"1" + b"}" * 201, 400),
        (b"[]", 422),
        (b"null", 422),
        (b'{"flow": 1}', 422),
        (b"{}", 422),
        (b'{"flow": "a", "other": 1}', 422),
        (b'{"flow": "a", "input": ' + b"9" * 5000 + b"}", 422),
        (b'{"flow": "a", "input": 1e999}', 422),
        (b'"' + b'\\"' * 100_000, 400),
        (b'{"a":' * 50_000, 400),
    ],
)
def test_a_body_that_does_not_fit_is_refused(body, status):
    with pytest.raises(Refused) as raised:
        decode(body, Body)
    assert raised.value.problem.status == status


def test_a_body_is_read_into_its_struct():
    found = decode(b'{"flow": "a", "input": {"n": [1, 2.5, null, true, "\\"[[{\\\\"]}}', Body)
    assert found == Body("a", {"n": [1, 2.5, None, True, '"[[{\\']})
    assert decode(b'{"flow":"a","input":{"py/object":"os.system","lc":1}}', Body).input == {
        "py/object": "os.system", "lc": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        (b"", 0),
        (b"1", 0),
        (b"[]", 1),
        (b'["[[["]', 1),
        (b'["\\"[["]', 1),
        (b'{"a":[{}]}', 3),
        (b'"[[', 0),
        (b"]]", 0),
        (b'["\\', 1),
    ],
)
def test_depth_is_counted_without_the_brackets_in_texts(text, deep):
    assert depth(text) == deep


def test_the_error_about_an_unknown_field_names_the_fields_of_the_body():
    with pytest.raises(Refused, match=r"unknown field `flwo`\. Its fields are: flow, "):
        decode(b'{"flwo": "a"}', Body)


def test_the_deepest_body_that_is_accepted_is_decoded():
    text = b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1)
    assert decode(b'{"flow":"a","input":' + text + b"}", Body).flow == "a"


@pytest.mark.parametrize("text", [b'"\\', b'"', b'\\"', b'"a"', b"[", b'{"a":1,'])
def test_no_body_takes_more_time_than_its_size(text):
    began = time.process_time()
    with pytest.raises(Refused):
        decode(text * (1_000_000 // len(text)), Body)
    assert time.process_time() - began < 2
