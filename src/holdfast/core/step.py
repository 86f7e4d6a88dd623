"""The declaration of a step inside a node: which exceptions are outcomes of it, how often it is tried, how long a try may take.

It is checked when it is made, which is usually when a module is imported: long before the exception is raised that it is about.
"""

from __future__ import annotations

import inspect

import msgspec

from holdfast.core.graph import Retry

_SECONDS_MAX = 10 * 366 * 86_400


class Step(msgspec.Struct, frozen=True):
    """A step of a node, with what is known about its outcomes; `ctx.step` takes it in place of a name.

    `raises` lists the exceptions that are outcomes of the step, like its result: they are recorded, and every later attempt of
    the execution gets the same exception again without a call. Only exactly these classes count, not their subclasses.
    `retry` says how often the step is tried again after another exception; the tries are counted in the log. `timeout` is how
    many seconds one try may take. With `idempotent=False` the step is never called twice without a decision: if its process
    dies while it is called, the run asks.
    """

    name: str
    raises: tuple[type[Exception], ...] = ()
    retry: Retry | int | None = None
    timeout: float | None = None
    idempotent: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"Step({self.name!r}): the name of a step must be text that is not empty")
        msgspec.structs.force_setattr(self, "raises", self._checked_classes())
        if type(self.retry) is int:  # as a node accepts it
            msgspec.structs.force_setattr(self, "retry", Retry(attempts=self.retry))
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise ValueError(
                f"Step({self.name!r}, retry={self.retry!r}): give the number of attempts, or an hf.Retry"
            )
        is_number = isinstance(self.timeout, (int, float)) and not isinstance(self.timeout, bool)
        if self.timeout is not None and not (is_number and 0 < self.timeout <= _SECONDS_MAX):
            raise ValueError(
                f"Step({self.name!r}, timeout={self.timeout!r}): must be a number of seconds, greater than 0"
            )
        if not isinstance(self.idempotent, bool):
            raise ValueError(f"Step({self.name!r}, idempotent={self.idempotent!r}): must be True or False")  # noqa: TRY004 - as Retry does

    def _checked_classes(self) -> tuple[type[Exception], ...]:
        said = f"Step({self.name!r}, raises={self.raises!r})"
        if not isinstance(self.raises, (tuple, list)):
            raise ValueError(  # noqa: TRY004 - as Retry does
                f"{said}: give a tuple of exception classes, such as raises=(CardDeclined,)"
            )
        for kind in self.raises:
            if not isinstance(kind, type) or not issubclass(kind, Exception):
                raise ValueError(  # noqa: TRY004 - as Retry does
                    f"{said}: {kind!r} is not a subclass of Exception, so it cannot be an outcome of a step"
                )
            why = _why_not_rebuilt(kind)
            if why is not None:
                raise ValueError(
                    f"{said}: {kind.__name__} cannot be made again from its arguments, because {why}"
                )
        names = [kind.__name__ for kind in self.raises]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(
                f"{said}: two classes are named {twice!r}, and the log could not tell them apart; rename one"
            )
        return tuple(self.raises)


def _why_not_rebuilt(kind: type[Exception]) -> str | None:
    """Return why exceptions of a class can never be made again from their arguments; None if they perhaps can."""
    if issubclass(kind, BaseExceptionGroup):
        return "a group contains other exceptions, and these are not JSON"
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return None
    needed = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    return (
        f"its argument {needed[0]!r} can only be given by name. Let it be given by position"
        if needed
        else None
    )
