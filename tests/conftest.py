"""Settings that all tests share.

Hypothesis has no deadline (two cores, other processes) and prints the seed of each failure; in CI it draws the same examples
every time. A process that a shell starts in the background ignores SIGINT, and so do its children: a test that sends SIGINT
would wait for ever, so the default handler is restored here. Slow files run first, so that at the end no test worker is still
busy with one while the others are idle.
"""

import gc
import os
import shutil
import signal

import pytest
from hypothesis import HealthCheck, settings

import progress
import selection
import workers

LONG = (
    "execution/test_random_flows.py",
    "acceptance/test_requests_and_processes.py",
    "proof/test_crash_points.py",
    "acceptance/test_inside_a_node.py",
    "cli/test_questions.py",
    "simulation/test_planted_bugs.py",
    "acceptance/test_many_requests.py",
    "acceptance/test_crash_and_resume.py",
    "acceptance/test_kill_everywhere.py",
    "proof/test_power_loss.py",
    "chaos/test_chaos.py",
    "chaos/test_attacks_processes.py",
    "waiting/test_withdrawn_in_a_process.py",
    "acceptance/test_withdrawn_waits.py",
    "acceptance/test_worker_process.py",
    "acceptance/test_examples.py",
    "storage/test_queues.py",
    "storage/test_postgres_cuts.py",
    "storage/test_pgbouncer.py",
    "storage/test_postgres_server.py",
    "server/test_table.py",
    "server/test_openapi.py",
    "server/test_serve.py",
    "simulation/test_simulator.py",
    "acceptance/test_demo.py",
    "acceptance/test_joining.py",
    "execution/test_process_executor.py",
    "proof/test_zombies.py",
    "cli/test_cli.py",
    "upkeep/test_retention.py",
    "core/test_state.py",
    "tests/test_docs.py",
    "tests/test_bench.py",
    "tests/test_progress.py",
)
"""`make test` starts with these files, in this order."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "holdfast",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
# `make check` and `make test` are fast; `make prove` draws more examples.
settings.register_profile("quick", settings.get_profile("holdfast"), max_examples=20)
settings.load_profile("holdfast")


def pytest_addoption(parser):
    selection.add_options(parser)
    workers.add_options(parser)


@pytest.hookimpl(trylast=True)  # the terminal is there by then
def pytest_configure(config):
    config.addinivalue_line("markers", "rotating: a quarter of the cases runs, chosen by --rotation")
    if config.option.workers:
        config.pluginmanager.register(workers.Workers(config.option.workers), "workers")
    progress.begin(config)


def pytest_report_header(config):
    return f"stores: {config.option.stores}; rotation: {selection.draw_seed(config)}"


def pytest_collection_modifyitems(config, items):
    selection.select(config, items)
    first = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: first.get("/".join(item.path.parts[-2:]), len(LONG)))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Give back the memory in which `make test` keeps the stores of tests, unless somebody may want to look at them."""
    if os.environ.get("PYTEST_DEBUG_TEMPROOT") and exitstatus == 0 and not session.config.option.collectonly:
        shutil.rmtree(session.config._tmp_path_factory.getbasetemp(), ignore_errors=True)


def pytest_collection_finish():
    """Thousands of tests and their modules stay until the end: the garbage collector need not visit them again and again, and the
    workers that are forked now share their memory.
    """
    gc.collect()
    gc.freeze()
