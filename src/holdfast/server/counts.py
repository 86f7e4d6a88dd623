"""Counts the answers of the server, for its metrics."""

from __future__ import annotations

from collections import Counter


class Counts:
    """Counts the answers of the server, by method, path in the table and status. Raw paths are never kept."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self.seconds: Counter[tuple[str, str]] = Counter()

    def add(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answer, and the time that it took."""
        self.answers[method, path, status] += 1
        self.seconds[method, path] += seconds  # type: ignore[assignment]
