"""Problems: every error of Holdfast has a status by whose fault it is, and every problem says what to do."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.server import problems

CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.HoldfastError)
]
SERVER_FAULTS = {
    "StoreError": 503, "StoreBusy": 503, "StoreUnusable": 503, "StoreReadOnly": 503, "StorePoisoned": 503, "StoreFull": 507,
    "IllegalEvent": 500,
}  # fmt: skip


def made(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    error.args = ("what happened",)
    vars(error).update(reason="what happened", path="state.x", field="x", problems=())
    return error


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_only_a_fault_of_the_store_or_ours_is_a_5xx(kind):
    problem = problems.problem_of(made(kind))
    expected = SERVER_FAULTS.get(kind.__name__)
    assert problem.status == expected if expected else 400 <= problem.status < 500
    assert problem.detail
    assert problem.remedy.endswith((".", "FILE.py"))
    assert problem.type.startswith("urn:holdfast:problem:")


def test_a_problem_is_named_for_the_class_of_the_error():
    assert problems.problem_of(errors.RunNotFound("r1")).type == "urn:holdfast:problem:run-not-found"
    assert problems.problem_of(errors.RunOver("r1", "it is over")).type == "urn:holdfast:problem:run-over"
    assert problems.problem_of(errors.BlobMissing("ab", "x")).type == "urn:holdfast:problem:store-corrupt"


def test_the_text_of_a_defect_is_logged_and_not_sent(caplog):
    problem = problems.problem_of(ZeroDivisionError("CANARY"))
    assert problem.status == 500
    assert "CANARY" not in str(problem)
    assert "CANARY" in caplog.text


def test_a_client_of_a_busy_store_is_told_when_to_come_back():
    assert problems.headers_of(errors.StoreBusy("locked")) == {"Retry-After": "1"}
    assert problems.headers_of(errors.StoreFull("full")) == {}


@pytest.mark.parametrize("name", problems.KINDS)
def test_every_problem_of_the_server_has_a_remedy(name):
    refused = problems.refuse(name, "what happened")
    assert refused.problem.remedy
    assert refused.problem.status == problems.KINDS[name].status


def test_a_remedy_names_the_run():
    refused = problems.problem_of(errors.ResumeRefused("order-17", "it is held"))
    assert refused.remedy.startswith("GET /api/v1/runs/order-17 shows the run")
    assert not any("{" in problems.problem_of(made(kind)).remedy for kind in CLASSES)
