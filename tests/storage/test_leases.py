"""Whether the process behind a lease lives: only death is certain knowledge."""

import os
import subprocess
import sys

import msgspec
import pytest

from holdfast.storage.contract import Holder
from holdfast.storage.leases import alive, is_held, this_process
from holdfast.testing.appends import dead_process

replace = msgspec.structs.replace
pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="only Linux tells about processes in /proc"
)


def test_this_process_lives():
    me = this_process(12.0, "engine")
    assert (me.id, me.pid, me.ttl_s) == ("engine", os.getpid(), 12.0)
    assert alive(me) is True


def test_every_engine_has_an_id_of_its_own():
    assert this_process().id != this_process().id


def test_a_process_that_ended_is_dead():
    assert alive(dead_process()) is False


def test_a_pid_that_is_used_again_is_another_process():
    assert alive(replace(this_process(), process_started="1")) is False


def test_a_zombie_is_dead():
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    with open(f"/proc/{child.pid}/stat") as file:
        started = file.read().rpartition(")")[2].split()[19]
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet buried
    assert alive(replace(this_process(), pid=child.pid, process_started=started)) is False
    child.communicate()


def test_a_process_from_before_the_last_start_of_this_host_is_dead():
    assert alive(replace(this_process(), boot="an earlier boot")) is False


@pytest.mark.parametrize(
    "unknown",
    [
        {"host": "elsewhere"},
        {"host": "elsewhere", "boot": "another"},
        {"host": "localhost", "boot": "another"},
        {"pid_namespace": "pid:[1]"},
        {"boot": ""},
        {"pid_namespace": ""},
        {"pid": 0},
        {"process_started": ""},
    ],
)
def test_what_cannot_be_told_from_here_is_unknown(unknown):
    assert alive(replace(this_process(), **unknown)) is None


@pytest.mark.parametrize(
    ("lives", "expires_at", "held"),
    [(True, 11.0, True), (None, 11.0, True), (False, 11.0, False), (True, 10.0, False), (None, 9.0, False)],
)
def test_a_lease_is_held_until_its_time_runs_out_or_its_holder_is_known_to_be_dead(lives, expires_at, held):
    assert is_held(Holder(id="x"), expires_at, 10.0, lambda holder: lives) is held
    assert not is_held(None, expires_at, 10.0, lambda holder: lives)
