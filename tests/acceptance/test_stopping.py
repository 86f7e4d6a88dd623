"""A service that stops: only a second signal or `stop(grace=0)` takes the grace period away from a node."""

from __future__ import annotations

import signal

from service_process import Start


def test_leaving_an_engine_after_a_stop_waits_for_the_grace_period(start_service: Start) -> None:
    service = start_service("stops_and_leaves")
    service.until("leaves")
    service.let_first_end()
    code, said, _ = service.ended()
    assert (code, said[-1]) == (0, "interrupted")
    assert service.kinds() == ["RunCreated", "NodeStarted", "NodeCompleted", "RunInterrupted"]


def test_an_awaited_stop_returns_when_the_node_has_ended(start_service: Start) -> None:
    service = start_service("awaits_its_stop")
    service.until("stopping")
    service.let_first_end()
    code, said, _ = service.ended()
    assert (code, said[-1]) == (0, "interrupted")
    assert service.kinds() == ["RunCreated", "NodeStarted", "NodeCompleted", "RunInterrupted"]


def test_a_loop_around_work_ends_at_a_signal(start_service: Start) -> None:
    service = start_service("works_in_a_loop")
    service.until("begun")
    service.signal(signal.SIGTERM)
    service.until("stopping")
    service.let_first_end()
    assert service.ended()[0] == 143
    assert service.kinds()[-1] == "RunInterrupted"


def test_a_loop_around_work_ends_with_an_error_if_it_ignores_that_its_engine_has_stopped(
    start_service: Start,
) -> None:
    service = start_service("works_in_a_loop_with_a_handler")
    service.until("begun")
    service.signal(signal.SIGTERM)
    service.until("stopping")
    service.let_first_end()
    code, said, err = service.ended()
    assert (code, said) == (1, ["worked: the handler"])
    assert "SettingError: this engine is stopping (the handler)" in err
