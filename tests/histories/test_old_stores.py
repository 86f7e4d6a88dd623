"""A SQLite file and a PostgreSQL schema that Holdfast wrote at commit f01fb3e, with runs in every status: they are listed, read,
verified, resumed, forked and archived as they were by the version that wrote them.

`record_old_stores.py` wrote `old_stores/`. A test that fails here says that stores of users would be read differently, or not at
all: change the code or add a migration; never the files. Only public names and commands are used, so that the package behind
them may change.
"""

from __future__ import annotations

import asyncio
import lzma
import re
import shutil
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import old_store_flows
import old_store_runs as runs
import pytest

import holdfast as hf
from command_line import Cli, caller, furnish
from postgres_server import execute, schema_for, shared_url

STATUSES = {"pending", "running", "waiting", "paused", "interrupted", "completed", "failed", "cancelled"}
FLOWS_FILE = "old_store_flows.py"
KNOWN = runs.expected()
ONE_OF_EACH = (
    "pending", "running", "price", "paused", "interrupted", "completed", "failed", "cancelled",
    "steps", "streaming", "layered", "rewound", "forked", "large", "compacted", "trimmed", "asked-to-skip",
)  # fmt: skip
"""For commands, which open the store anew for every run: each status, and everything that a run can have."""


class OldStore:
    """Makes stores with what the old one holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = 0

    def copy(self) -> str:
        """The URL of one that nobody has changed."""
        self._made += 1
        return self._copy(self._made)

    def _copy(self, number: int) -> str:
        raise NotImplementedError

    def empty_beside(self, url: str) -> str:
        """The URL of a store of the same kind that is not there yet."""
        raise NotImplementedError

    def remove(self) -> None:
        """Leave nothing behind."""


class OldFile(OldStore):
    def _copy(self, number: int) -> str:
        place = self.folder / str(number)
        with tarfile.open(runs.FOLDER / "sqlite.tar.xz") as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11 has it from 3.11.4
            tar.extractall(place)
        return str(place / "runs.db")

    def empty_beside(self, url: str) -> str:
        return f"{url}-empty"


class OldSchema(OldStore):
    """In databases of their own: the schema has the name it had."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._name = schema_for(folder)
        execute(shared_url(), f"create database {self._name}")
        execute(
            self._url(self._name), lzma.decompress((runs.FOLDER / "postgres.sql.xz").read_bytes()).decode()
        )

    def _copy(self, number: int) -> str:
        execute(shared_url(), f"create database {self._name}_{number} template {self._name}")
        return self._url(f"{self._name}_{number}")

    def _url(self, database: str) -> str:
        return re.sub(r"^(\w+://[^/?]*)/?[^?]*", rf"\g<1>/{database}", shared_url())

    def empty_beside(self, url: str) -> str:
        return f"{url}{'&' if '?' in url else '?'}schema=emptied"

    def remove(self) -> None:
        copies = [f"{self._name}_{number}" for number in range(1, self._made + 1)]
        execute(shared_url(), *(f"drop database {name} with (force)" for name in (*copies, self._name)))


@pytest.fixture(scope="module", params=[OldFile, OldSchema], ids=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldStore]:
    made = request.param(tmp_path_factory.mktemp("old"))
    yield made
    made.remove()


@pytest.fixture(scope="module")
def kept(old: OldStore) -> str:
    """A store that tests only read."""
    return old.copy()


@pytest.fixture(scope="module")
def readings(kept: str) -> dict[str, Any]:
    return with_each_run(runs.reading(kept), runs.read)


@pytest.fixture(scope="module")
def ended(old: OldStore) -> str:
    """A store in which every run is brought to its end."""
    return old.copy()


@pytest.fixture(scope="module")
def ends(ended: str) -> dict[str, Any]:
    return with_each_run(runs.with_flows(ended), runs.bring_to_its_end)


@pytest.fixture(scope="module")
def forks(old: OldStore) -> dict[str, Any]:
    return with_each_run(runs.with_flows(old.copy()), runs.fork_in_the_middle)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    furnish(tmp_path, monkeypatch)
    shutil.copy(old_store_flows.__file__, tmp_path / FLOWS_FILE)
    monkeypatch.setenv("HOLDFAST_PARK_AFTER", "0")
    return caller(capsys)


def use(engine: hf.Engine, verb: Callable[[hf.Engine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with engine:
            return await verb(engine)

    return asyncio.run(main())


def with_each_run(engine: hf.Engine, verb: Callable[[hf.Engine, str], Awaitable[Any]]) -> dict[str, Any]:
    """What came of it for each run. A run that raises does not keep the others from being looked at."""

    async def each(engine: hf.Engine) -> dict[str, Any]:
        came: dict[str, Any] = {}
        for run_id in KNOWN:
            try:
                came[run_id] = await verb(engine, run_id)
            except Exception as fault:
                came[run_id] = fault
        return came

    return use(engine, each)


def known(part: str) -> dict[str, Any]:
    return {run_id: run[part] for run_id, run in KNOWN.items()}


def as_read(run_id: str) -> dict[str, Any]:
    """What was read of a run when its store was written. A visit that had not begun was read as iteration 0 then; it is 1."""
    found = {name: part for name, part in KNOWN[run_id].items() if name not in {"fork", "end", "worked"}}
    return found | {"nodes": {name: at.replace(", 0.1.0", ", 1.1.0") for name, at in found["nodes"].items()}}


def id_of(row: Any) -> str:
    return getattr(row, "id", None) or row.run_id


every_run = pytest.mark.parametrize("run_id", KNOWN)


# --- read -------------------------------------------------------------------------------------------------


def test_there_are_runs_in_every_status() -> None:
    assert set(known("status").values()) == STATUSES
    assert list(KNOWN) == list(runs.WAYS_ON)
    assert {KNOWN[run_id]["status"] for run_id in ONE_OF_EACH} == STATUSES


def test_every_run_is_listed_with_its_status(kept: str) -> None:
    rows = hf.runs(store=kept)
    assert {id_of(row): row.status for row in rows} == known("status")
    for status in STATUSES:
        of_status = {run_id for run_id, found in known("status").items() if found == status}
        assert {id_of(row) for row in hf.runs(status=status, store=kept)} == of_status


def test_runs_are_found_by_flow_label_and_parent(kept: str) -> None:
    for flow in set(known("flow").values()):
        of_flow = {run_id for run_id, name in known("flow").items() if name == flow}
        assert {id_of(row) for row in hf.runs(flow=flow, store=kept)} == of_flow
    assert [id_of(row) for row in hf.runs(labels={"city": "Köln"}, store=kept)] == ["queued"]
    assert [id_of(row) for row in hf.runs(parent="completed", store=kept)] == ["forked"]


@every_run
def test_a_run_is_read_as_it_was(readings: dict[str, Any], run_id: str) -> None:
    """What it is, its events, the state at every checkpoint, and what it asks."""
    assert readings[run_id] == as_read(run_id)


def test_every_question_is_listed(kept: str) -> None:
    asked = {(asked.run_id, asked.question.key) for asked in hf.questions(store=kept)}
    assert asked == {
        (run_id, question["key"]) for run_id, found in known("questions").items() for question in found
    }


def test_the_states_fit_the_types_of_their_flows(kept: str) -> None:
    run = hf.get("failed", store=kept, flows=old_store_flows.FLOWS)
    assert run.state == old_store_flows.Report(**KNOWN["failed"]["state"])


def test_the_commands_that_look_tell_of_runs_in_every_status(kept: str, cli: Cli) -> None:
    listed = cli("runs", "--limit", "100", "--json", "--store", kept)
    assert listed.code == 0
    assert {run_id for run_id in KNOWN if f'"{run_id}"' in listed.out} == set(KNOWN)
    for run_id in ONE_OF_EACH:
        shown = cli("show", run_id, "--json", "--store", kept)
        assert (shown.code, shown.json["status"]) == (0, KNOWN[run_id]["status"]), run_id


def test_the_store_verifies(kept: str, cli: Cli) -> None:
    done = cli("verify", "--store", kept)
    assert done.code == 0, done.out + done.err


def test_the_doctor_names_runs_that_cannot_go_on_and_nothing_wrong_with_the_store(
    kept: str, cli: Cli
) -> None:
    done = cli("doctor", FLOWS_FILE, "--json", "--store", kept)
    assert done.code == 10
    stuck = {run_id for run_id in KNOWN if f'"{run_id}"' in done.out}
    assert stuck == {
        run_id for run_id, status in known("status").items() if status not in {"completed", "cancelled"}
    }


def test_a_queue_keeps_its_limit_and_its_run(kept: str, cli: Cli) -> None:
    queues = {queue["name"]: queue for queue in cli("queue", "--json", "--store", kept).json}
    assert (queues["slow"]["limit"], queues["slow"]["offered"]) == (3, 1)


# --- resumed ----------------------------------------------------------------------------------------------


@every_run
def test_a_run_is_brought_to_its_end(ends: dict[str, Any], run_id: str) -> None:
    """Nothing that completed runs again, what was kept is used, and requests that were left for it are carried out, before the
    resume that came after them.
    """
    assert ends[run_id] == KNOWN[run_id]["end"]


def test_a_worker_executes_what_is_on_offer_and_what_was_asked_for(old: OldStore) -> None:
    assert use(runs.with_flows(old.copy()), runs.let_a_worker_work) == known("worked")


@pytest.mark.usefixtures("ends")
def test_what_was_brought_to_its_end_verifies(ended: str, cli: Cli) -> None:
    done = cli("verify", "--store", ended)
    assert done.code == 0, done.out + done.err


def test_the_command_line_resumes_with_the_exit_code_of_the_outcome(old: OldStore, cli: Cli) -> None:
    store = old.copy()
    codes = {
        "running": 0, "fan-out": 0, "timer": 0, "completed": 0, "paused": 7, "publish-cut": 7,
        "fatal": 4, "cancelled": 4, "asked-to-pause": 0, "asked-to-cancel": 8,
    }  # fmt: skip
    done = {run_id: cli("resume", run_id, FLOWS_FILE, "--store", store).code for run_id in codes}
    assert done == codes


# --- forked and archived ----------------------------------------------------------------------------------


@every_run
def test_a_fork_of_a_run_begins_with_its_state_there_and_goes_on(forks: dict[str, Any], run_id: str) -> None:
    assert forks[run_id] == KNOWN[run_id]["fork"]


def test_the_command_line_forks_at_every_checkpoint(old: OldStore, cli: Cli) -> None:
    store = old.copy()
    for seq, state in KNOWN["rewound"]["states"].items():
        done = cli("fork", f"rewound@{seq}", "--run-id", f"fork-{seq}", "--store", store)
        assert (done.code, hf.state(f"fork-{seq}", store=store)) == (0, state)


def test_an_archived_run_is_the_same_in_another_store(old: OldStore, cli: Cli, tmp_path: Path) -> None:
    store = old.copy()
    other = old.empty_beside(store)
    for run_id in ONE_OF_EACH:
        file = str(tmp_path / f"{run_id}.archive")
        archived = cli("archive", run_id, "--to", file, "--store", store)
        assert archived.code == 0, archived.err
        put_back = cli("unarchive", file, "--store", other)
        assert put_back.code == 0, put_back.err
    assert cli("verify", "--store", other).code == 0

    async def read_all(engine: hf.Engine) -> dict[str, Any]:
        return {run_id: await runs.read(engine, run_id) for run_id in ONE_OF_EACH}

    assert use(runs.reading(other), read_all) == {run_id: as_read(run_id) for run_id in ONE_OF_EACH}


# --- damage is noticed ------------------------------------------------------------------------------------


def test_a_byte_that_was_changed_is_found(tmp_path: Path, cli: Cli) -> None:
    file = Path(OldFile(tmp_path).copy())
    data = file.read_bytes()
    assert data.count(b"sea otters") >= 1
    file.write_bytes(data.replace(b"sea otters", b"sea_otters"))
    assert cli("verify", "--store", str(file)).code == 9
