"""Real processes that are stopped inside each verb of a store, and continue after their runs were taken over."""

import os
import signal
import subprocess
import sys
import time

import pytest

import forked
from holdfast.errors import StoreBusy
from holdfast.storage.contract import Holder
from holdfast.storage.urls import open_store
from holdfast.testing.appends import Log
from postgres_server import drop_schema, schema_for, shared_url

TTL_S = 30.0
PATIENCE_S = 60
RIVAL = Holder(id="rival", ttl_s=TTL_S)

ZOMBIE = """
import os, signal, sys
from holdfast.errors import HoldfastError
from holdfast.storage import failpoints
from holdfast.storage.contract import Holder
from holdfast.storage.urls import open_store
from holdfast.testing.appends import Log

url, place, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
me = Holder(id="zombie", ttl_s=30.0)
store = open_store(url)

def stop(reached):
    if reached == place:
        failpoints.install(None)
        os.kill(os.getpid(), signal.SIGSTOP)

def said(verdict):
    print(type(verdict).__name__, flush=True)

store.renew(me)
logs = [Log(f"r{n}", holder=me.id, fence=1) for n in range(batch)]
for log in logs:
    first = log.create()
    assert store.append([first]) == [None]
    log.wrote(first)
failpoints.install(stop)
try:
    store.renew(me)
    lease = store.claim("r0", me)
    logs[0].fence = lease.fence
    appends = [log.next() for log in logs]
    verdict = store.append(appends)[0]
    said(verdict)
    if verdict is None:
        logs[0].wrote(appends[0])
    store.release("r0", me.id, lease.fence)
    said(store.append([logs[0].next()])[0])
except HoldfastError as fault:
    said(fault)
store.close()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/runs.db"
        return
    schema = schema_for(tmp_path)
    yield f"{shared_url()}&schema={schema}"
    drop_schema(shared_url(), schema)


class Zombie:
    """A process that stops itself at a failpoint."""

    def __init__(self, url, place, batch):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        words = [sys.executable, "-c", ZOMBIE, url, place, str(batch)]
        self._process = forked.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def go_on(self):
        """What it was told of its writes."""
        os.kill(self._process.pid, signal.SIGCONT)
        said, _ = self._process.communicate(timeout=PATIENCE_S)
        return said.split()

    def kill(self):
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()


@pytest.fixture
def stopped(url):
    """Makes a process that stands at a failpoint. It is gone before its store is."""
    made = []

    def make(place, batch):
        made.append(Zombie(url, place, batch))
        return made[-1]

    yield make
    for zombie in made:
        zombie.kill()


def an_hour_later(url):
    """The same store for somebody by whose clock every lease has run out."""
    return open_store(url, clock=lambda: time.time() + 3600.0)


def claimed(store):
    """The lease, when the store can be had: the server ends a transaction that stands still."""
    ends_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            return store.claim("r0", RIVAL)
        except StoreBusy:
            assert time.monotonic() < ends_at


def carried_on(store, lease):
    """The log of the run in the hands of whoever took it over, with a further append."""
    row = store.run("r0")
    log = Log("r0", holder=RIVAL.id, fence=lease.fence, seq=row.seq, digest=row.digest)
    for _ in range(2):
        append = log.next()
        assert store.append([append]) == [None]
        log.wrote(append)
    return log


PLACES = [
    f"{verb}.{when}" for verb in ("renew", "claim", "append", "release") for when in ("before", "committed")
]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("place", PLACES)
def test_whoever_is_stopped_in_a_verb_and_taken_over_writes_nothing_more(url, stopped, place, batch):
    zombie = stopped(place, batch)
    rival = an_hour_later(url)
    log = carried_on(rival, rival.claim("r0", RIVAL))
    before = rival.events("r0")
    assert zombie.go_on()[-1] in {"FenceLost", "RunHeld"}
    assert rival.events("r0") == before
    assert rival.append([log.next()]) == [None]
    rival.close()


def test_whoever_is_stopped_within_a_transaction_keeps_others_waiting_and_never_for_good(url, stopped):
    """A file has one writer: others are told that it is busy, until that process goes on or is gone. A server ends it."""
    zombie = stopped("append.written", 2)
    rival = an_hour_later(url)
    if url.startswith("sqlite"):
        with pytest.raises(StoreBusy):
            rival.claim("r0", RIVAL)
        assert len(rival.events("r0")) == 1  # who reads waits for nobody
        assert zombie.go_on() == ["NoneType", "FenceLost"]
        rival.claim("r0", RIVAL)
    else:
        lease = claimed(rival)
        assert zombie.go_on() == ["StoreBusy"]
        carried_on(rival, lease)
    rival.close()


def test_a_process_that_dies_within_a_transaction_keeps_nobody_out(url, stopped):
    zombie = stopped("append.written", 2)
    zombie.kill()
    rival = an_hour_later(url)
    carried_on(rival, claimed(rival))
    rival.close()
