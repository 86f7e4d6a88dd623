"""Opens the resources of an engine: what `ctx.resources` gives to nodes, such as clients and pools of connections.

They are given as a mapping, or as a function that makes one. What such a function opens belongs to the event loop of the engine,
and is closed when nothing uses it any more: after the last node has ended.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any, TypeAlias

from holdfast.errors import SettingError

Made: TypeAlias = Mapping[str, Any]
Resources: TypeAlias = (
    Made
    | Callable[[], Made | Awaitable[Made] | AbstractContextManager[Made] | AbstractAsyncContextManager[Made]]
)
"""A mapping, or a function that returns one; the function may be async, or a context manager."""


async def open_resources(given: Resources | None, until: AsyncExitStack) -> Made:
    """Return the resources as a mapping. What a context manager has opened is closed with the stack. Raises `SettingError` if
    they are no mapping.
    """
    made: Any = given() if callable(given) else given or {}
    if isinstance(made, AbstractAsyncContextManager):
        made = await until.enter_async_context(made)
    elif isinstance(made, AbstractContextManager):
        made = until.enter_context(made)
    elif inspect.isawaitable(made):
        made = await made
    if not isinstance(made, Mapping):
        raise SettingError(
            f"resources={given!r} gives {made!r}, which is not a mapping: give a dict of names and objects, or a function or "
            "context manager that returns one"
        )
    return dict(made)
