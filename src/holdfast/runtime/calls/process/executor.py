"""The process executor: it makes each call in a separate process, spawned and never forked, and kills the process to stop it.

This module owns the processes: it spawns them, keeps a few warm, kills them, and finds out how one died. `child` is the program
inside; the runner decides what the end of a call means, as for a thread.

- A process leads its own process group: the processes that the node started die with it.
- A process never outlives its engine: it holds the reading end of a pipe that only the engine can write to, and the kernel
  kills it when the pipe closes, even while it holds the GIL.
- One process serves one call at a time. It serves another call only if the last one left no thread running.
- If a process dies on its own, its call ends with `ProcessEnded`; the engine continues.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any

from holdfast.core.definition import BUILT_IN_EXECUTORS
from holdfast.core.events import Changes
from holdfast.core.signatures import returned_field
from holdfast.errors import ContextError, ProcessEnded
from holdfast.runtime import failures
from holdfast.runtime.calls.body import Parked
from holdfast.runtime.calls.call_places import count_cores
from holdfast.runtime.calls.executors import (
    Call,
    Executor,
    Killed,
    Left,
    ThreadExecutor,
    Threads,
)
from holdfast.runtime.calls.process.wire import (
    Answer,
    AskedByNode,
    Order,
    Place,
    Raised,
    Returned,
    Wire,
    encode_frame,
)
from holdfast.runtime.calls.process.work import Answering, told
from holdfast.storage import failpoints

_IDLE_S = 30.0
_CLOSE_S = 10.0
_CRASH_BYTES_MAX = 8_000
_BOOT = (
    "import json, sys; given = json.loads(sys.argv[1]); sys.path[:], sys.argv[:] = given['path'], given['argv']; "
    "from holdfast.runtime.calls.process.child import main; main(*given['handles'])"
)


def build_executors(threads: Threads, *, processes: int | None = None) -> dict[str, Executor]:
    """Return the executors that every engine has, by name. `processes`: how many processes stay warm, at most."""
    return {"thread": ThreadExecutor(threads), "process": ProcessExecutor(warm_max=processes)}


class ProcessExecutor:
    """Calls functions of nodes in processes. An idle process stays warm for a while, unless there are more than `warm_max`
    processes, idle or not.
    """

    traits = BUILT_IN_EXECUTORS["process"]

    def __init__(self, *, warm_max: int | None = None, idle_s: float = _IDLE_S) -> None:
        self._warm_max = count_cores() if warm_max is None else warm_max
        self._idle_s = idle_s
        self._calls: queue.SimpleQueue[_Handle | None] = queue.SimpleQueue()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._handles: set[_Handle] = set()
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, call: Call, left: Left) -> _Handle:
        handle = _Handle(call, left)
        try:
            handle.prepare(call)
        except Exception as raised:  # noqa: BLE001 - reported as the end of the call
            left(None, raised)
            return handle
        with self._lock:
            self._handles.add(handle)
            if self._closed:
                handle.kill()
            if self._idle:
                self._idle -= 1
            else:
                thread = threading.Thread(target=self._work, name="holdfast-process", daemon=True)
                self._threads.add(thread)
                thread.start()
        self._calls.put(handle)
        return handle

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for handle in self._handles:
                handle.kill()
            threads = list(self._threads)
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._calls.put(None)
        for thread in threads:
            thread.join(_CLOSE_S)

    def _work(self) -> None:
        """Runs in a thread that has one process: make calls one after the other, until none has arrived for a while."""
        child: _Child | None = None
        try:
            while True:
                handle = self._next()
                if handle is None:
                    return
                child = handle.perform(child)
                with self._lock:
                    self._handles.discard(handle)
                    stays = child is not None and not self._closed and len(self._threads) <= self._warm_max
                    self._idle += stays
                handle.report()  # only now: it may lead to the next call, which this process can serve
                if not stays:
                    return
        finally:
            if child is not None:
                child.end()
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self) -> _Handle | None:
        while True:
            try:
                return self._calls.get(timeout=self._idle_s)
            except queue.Empty:
                with self._lock:
                    if self._idle:  # otherwise a call is about to arrive in the queue
                        self._idle -= 1
                        return None


class _Handle:
    """One call, from its submission to its end."""

    def __init__(self, call: Call, left: Left) -> None:
        self._left = left
        self._node = call.node.name
        self._returned = call.returned
        self._limit = call.node.options.memory_limit
        self._answering: Answering | None = None
        self._frame = b""
        self._parked: Parked | None = None
        self._child: _Child | None = None
        self._killed = False
        self._end: tuple[Changes | None, BaseException | None] = (None, None)
        self._lock = threading.Lock()

    def prepare(self, call: Call) -> None:
        """Encode the order for the process. Raises `ContextError` if the process could not find the function."""
        if call.work is not None:
            self._answering = Answering(call.work, self._node)
        order = Order(
            node=call.node.name,
            function=place_of(call.node.fn, call.node.name),
            state=place_of(call.flow.state.type, call.node.name),
            plain=call.plain,
            item=call.item,
            items_of="" if call.node.each is None else returned_field(call.node.each),
            is_wired=call.node.wiring is not None,
            told=None if call.work is None else told(call),
            memory_limit=self._limit,
        )
        self._frame = encode_frame(order)

    def kill(self) -> bool:
        with self._lock:
            self._killed = True
            if self._child is not None:
                self._child.kill()
        return True

    def perform(self, child: _Child | None) -> _Child | None:
        """Make the call in this process, or in a new one. Returns the process if it can serve another call."""
        value: Changes | None = None
        error: BaseException | None = None
        usable = False
        try:
            if self._killed:
                raise Killed
            if failpoints.hook is not None:
                failpoints.reach("node.enter")
            child = _reuse(child) or _Child()
            self._hold(child)
            said = self._converse(child)
            usable = not said.spent
            value = self._take_result(said)
            if self._returned is not None:
                self._returned()
            if failpoints.hook is not None:
                failpoints.reach("node.exit")
        except BaseException as raised:  # noqa: BLE001 - reported as the end of the call
            error = raised
        killed = self._let_go()
        if child is not None and (killed or not usable):
            child.end()
            child = None
        self._end = (value, Killed() if killed and error is not None else error)
        return child

    def report(self) -> None:
        """Report how the call has ended."""
        self._left(*self._end)

    def _hold(self, child: _Child) -> None:
        with self._lock:
            self._child = child
            if self._killed:
                raise Killed

    def _let_go(self) -> bool:
        """Detach this call from its process, which may now serve another call. Returns whether the call was killed."""
        with self._lock:
            self._child = None
            return self._killed

    def _converse(self, child: _Child) -> Returned | Raised:
        """Send the order, answer the requests of the node's context, and return how the call ended. Raises `ProcessEnded`."""
        with suppress(OSError):  # the process is gone: `receive` finds that out
            child.wire.send_framed(self._frame)
        while (said := child.wire.receive()) is not None:
            if not isinstance(said, AskedByNode):
                return said
            with suppress(OSError):
                child.wire.send(self._answer(said))
        raise child.describe_end(self._node, self._limit)

    def _answer(self, asked: AskedByNode) -> Answer:
        assert self._answering is not None
        try:
            return Answer(value=self._answering.answer(asked))
        except Parked as waits:
            self._parked = waits
            return Answer(parked=waits.slots)
        except BaseException as raised:  # noqa: BLE001 - raised in the node
            return Answer(refused=failures.message(raised), refused_as=type(raised).__name__)

    def _take_result(self, said: Returned | Raised) -> Changes:
        if isinstance(said, Returned):
            return said.changes
        if said.parked is not None:
            raise self._parked or Parked(said.parked)
        raise failures.rebuild_error(said.failure, said.names, said.retry_after, said.kept)


class _Child:
    """A process that serves calls."""

    def __init__(self) -> None:
        self._crash = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`; opened first: it is the only one that closes itself
        ours, theirs = socket.socketpair()
        watched, self._life = os.pipe()
        handles = (theirs.fileno(), watched, self._crash.fileno())
        given = {"path": [path or os.getcwd() for path in sys.path], "argv": sys.argv, "handles": handles}
        self._lock = threading.Lock()
        self._code: int | None = None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", _BOOT, json.dumps(given)],
                stdin=subprocess.DEVNULL,
                stdout=_handle_of(sys.stdout),
                stderr=_handle_of(sys.stderr),
                pass_fds=handles,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            self._give_back()
            raise
        finally:
            theirs.close()
            os.close(watched)
        self.wire: Wire[AskedByNode | Returned | Raised] = Wire(
            ours, AskedByNode | Returned | Raised, is_over=self.is_dead
        )

    def kill(self) -> None:
        """Kill the process, and the processes that it started."""
        with self._lock:
            if self._code is None:  # until it is waited for, the system does not reuse its pid
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process if it is alive, and release its resources."""
        self._reap()
        self.wire.close()
        self._give_back()

    def describe_end(self, node: str, limit: int | None) -> ProcessEnded:
        """Return the error for a process that died during a call, with its exit code and the traceback of the crash."""
        code = self._reap()
        self._crash.seek(0)
        trace = self._crash.read(_CRASH_BYTES_MAX).decode("utf-8", "replace").replace("\0", "\\0")
        return ProcessEnded(node, code, trace=trace, memory_limit=limit)

    def _reap(self) -> int:
        """Return the exit code, as `Popen` reports it. The process group is killed first, before the system may reuse its
        number.
        """
        if self._code is None:
            self.kill()
            code = self._process.wait()
            with self._lock:
                self._code = code
        return self._code

    def is_dead(self) -> bool:
        """Return whether the process has died. (The socket does not show it: a process that it started may still hold its end
        open.)
        """
        if not hasattr(os, "waitid"):
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def _give_back(self) -> None:
        os.close(self._life)
        self._crash.close()


def _reuse(child: _Child | None) -> _Child | None:
    """Return an idle process that may serve another call, or None if it has died in the meantime."""
    if child is not None and child.is_dead():
        child.end()
        return None
    return child


def _handle_of(stream: Any) -> int | None:
    """Return the file descriptor of a stream of this process; None if the stream has none: then the child inherits the original
    one.
    """
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def place_of(found: Any, node: str) -> Place:
    """Return where another process finds a function or class. Raises `ContextError` if another process could not find it."""
    module = sys.modules.get(found.__module__)
    named: Any = module
    for part in found.__qualname__.split("."):
        named = getattr(named, part, None)
    if module is None or named is not found:
        raise ContextError(
            f"node {node!r} has executor='process', but another process could not find its function (or state type): in "
            f"module {found.__module__!r}, the name {found.__qualname__!r} is missing or belongs to another object. Define the "
            "function (or type) at the top level of a module, under a name of its own."
        )
    file = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None) if found.__module__ == "__main__" else None
    return Place(
        module=found.__module__,
        file=os.path.abspath(file) if file else None,
        name=found.__qualname__,
        loaded_as=None if spec is None else spec.name,
    )
