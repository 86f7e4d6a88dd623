"""A process is killed by SIGKILL inside a step that pays. An operator states by the command line what the bank says, and the
payment happens once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forked
from postgres_server import shared_url

FLOW = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
import holdfast as hf

@dataclass
class Receipt:
    number: int
    bank: str

graph = hf.Graph("shop", dict)

def charge() -> Receipt:
    with Path("payments").open("a") as payments:
        payments.write("paid\\n")
    os.kill(os.getpid(), signal.SIGKILL)

@graph.node
def pay(state, ctx):
    receipt = ctx.step(hf.Step("charge", idempotent=False), charge)
    return {"receipt": receipt.number, "bank": receipt.bank}

@graph.node
def mail(state):
    return {"mailed": state["receipt"]}

flow = graph.chain(hf.START, "pay", "mail", hf.END).compile()
"""
PATIENCE_S = 60


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: Any, tmp_path: Path) -> Any:
    (tmp_path / "shop.py").write_text(FLOW)
    url = str(tmp_path / "runs.db") if request.param == "sqlite" else shared_url()
    environment = {**os.environ, "HOLDFAST_STORE": url, "USER": "ann", "LOGNAME": "ann"}
    run_id = f"order-{tmp_path.name}"

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return forked.run(
            [sys.executable, "-m", "holdfast.cli", *(word.replace("RUN", run_id) for word in words)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip

    return call


def test_a_payment_that_was_cut_by_sigkill_is_stated_and_happens_once(shop: Any, tmp_path: Path) -> None:
    killed = shop("run", "shop.py", "--run-id", "RUN")
    assert killed.returncode == -signal.SIGKILL
    asks = shop("resume", "RUN", "shop.py")
    assert "pay happened --result" in " ".join((asks.stdout + asks.stderr).split())

    (asked,) = json.loads(shop("questions", "RUN", "--json").stdout)
    (stated,) = [one for one in asked["remedies"] if one["arguments"].get("value") == "happened"]
    assert '--result \'{"number": NUMBER, "bank": "TEXT"}\' --reason \'HOW YOU KNOW\'' in stated["command"]
    result = '{"number": 7, "bank": "north"}'

    wrong = shop(
        "answer",
        "RUN",
        "pay",
        "happened",
        "--result",
        '{"number": "7", "bank": "north"}',
        "--reason",
        "a guess",
    )
    assert wrong.returncode != 0
    assert "'7' is not a whole number" in wrong.stderr
    without = shop("answer", "RUN", "pay", "happened", "--result", result)
    assert without.returncode != 0
    assert "--reason" in without.stderr
    answered = shop(
        "answer", "RUN", "pay", "happened", "--result", result, "--reason", "the bank shows receipt 7"
    )
    assert answered.returncode == 0, answered.stderr

    done = shop("resume", "RUN", "shop.py")
    assert done.returncode == 0, done.stderr
    run = json.loads(shop("show", "RUN", "--json").stdout)
    assert (run["status"], run["state"]) == ("completed", {"receipt": 7, "bank": "north", "mailed": 7})
    assert (tmp_path / "payments").read_text() == "paid\n"
    ledger = shop("ledger", "RUN").stdout
    assert "the step 'charge' has happened" in " ".join(ledger.split())
    assert shop("verify", "RUN").returncode == 0
