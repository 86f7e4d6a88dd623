"""Proves that values are what they were, and that only their holder refers to any part of them.

A `Proof` is made of values that the engine alone holds. It remembers, level by level, every container inside the values (dicts,
lists, sets, tuples, objects with fields), and the members of each, by their identity. `holds` compares:

- **Each container still has the same members**: the same objects in the same order, and under the same keys in the same order.
  So not even a member of another type that is equal, or looks the same in JSON, is overlooked.
- **Only the engine refers to each container**: the counts of references add up to those that the parts of the values and this
  proof account for, and there are no weak references. A task, a thread, a closure or a traceback that could still change a part
  has a reference to it.

Both are checked from the outside to the inside, first the references to a level and then its members. So another thread cannot
change a part between the two checks: to reach it, it needs a reference to it or to something around it.

All of it is done by functions that are implemented in C, over whole levels: a walk in Python would cost as much as a copy.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import sys
import weakref
from collections.abc import Iterable
from itertools import chain, islice
from operator import attrgetter
from typing import Any, TypeAlias

from holdfast.core.codec import is_immutable, is_record

MEMBERS_MAX = 512
"""How many values a proof should be about, so that what it touches fits into the caches of a processor."""

_IS_TRAVERSED = 1 << 14
"""Py_TPFLAGS_HAVE_GC: the collector, and so `gc.get_referents`, sees what the objects of a type refer to."""
_CONTAINERS = frozenset({dict, list, set, frozenset, tuple})
_MAY_BE_SHARED = frozenset({frozenset, tuple})
"""Types of which Python has one empty object only. An empty one cannot be changed."""


class _Fence:
    """No value of a state is this class."""


_FENCE = (_Fence,)
"""Stands between two containers whose members are listed together, so that no member can move from one to the other."""


class Unprovable(Exception):
    """Raised if values have a part that could be changed without being noticed."""


class Proof:
    """Proves that these values are the same as when the proof was made, and that nothing else refers to any part of them.

    The caller has exactly one reference to each of the values as long as the proof is used.
    """

    __slots__ = ("_levels", "size")

    def __init__(self, values: list[Any]) -> None:
        """Raises `Unprovable`."""
        self.size = len(values)
        self._levels: list[_Level] = []
        containers = _containers_in(values)
        references = len(containers)
        while containers:
            level = _Level(containers, references)
            self._levels.append(level)
            containers = _containers_in(level.in_dicts) + _containers_in(level.in_others)
            references = 2 * len(containers)  # each is in its own container and in one of the two tuples

    def holds(self) -> bool:
        """Return whether the values are unchanged, and nothing but their holder refers to any part of them."""
        return all(level.is_unshared() and level.is_unchanged() for level in self._levels)

    def is_unchanged(self) -> bool:
        """Return whether the values are unchanged. Code that refers to a part may still change it later."""
        return all(level.is_unchanged() for level in self._levels)


class _Level:
    """Containers that are equally deep inside the values, and their members."""

    __slots__ = (
        "_dicts",
        "_fenced",
        "_keys",
        "_mortal",
        "_nameless",
        "_references",
        "_sizes",
        "in_dicts",
        "in_others",
    )

    def __init__(self, containers: list[Any], references: int) -> None:
        self._dicts = tuple([one for one in containers if type(one) is dict])
        self._keys = tuple(chain.from_iterable(self._dicts))
        self._sizes = tuple(map(len, self._dicts))
        others = [one for one in containers if type(one) is not dict]
        kinds = set(map(type, others)) - _CONTAINERS
        self._mortal = any(kind.__weakrefoffset__ for kind in kinds)
        """True if there may be weak references to one of the containers."""
        self._nameless = _find_nameless(kinds, others)
        fenced = [_FENCE] * (2 * len(others))
        fenced[::2] = others
        self._fenced = tuple(fenced)
        self.in_dicts = tuple(gc.get_referents(*self._dicts))
        self.in_others = tuple(gc.get_referents(*self._fenced))
        self._references = references + (1 + _COUNTED) * len(containers)

    def is_unshared(self) -> bool:
        """Return whether only the values themselves and this proof refer to the containers."""
        others = islice(self._fenced, 0, None, 2)
        counted = sum(map(sys.getrefcount, self._dicts)) + sum(map(sys.getrefcount, others))
        if counted != self._references:
            return False
        return not self._mortal or not any(map(weakref.getweakrefcount, islice(self._fenced, 0, None, 2)))

    def is_unchanged(self) -> bool:
        """Return whether each container has the members that it had, the same objects in the same places."""
        if self._dicts:
            if (
                not same_objects(gc.get_referents(*self._dicts), self.in_dicts)
                or tuple(map(len, self._dicts)) != self._sizes
            ):
                return False
            # The members of a dict are its values, and its keys too unless all of them are exactly `str`. So keys that are
            # other objects now are texts, and no `==` of a user's type is called.
            if tuple(chain.from_iterable(self._dicts)) != self._keys:
                return False
        if not self._fenced:
            return True
        if not same_objects(gc.get_referents(*self._fenced), self.in_others):
            return False
        try:
            return all(
                _addresses_of_fields(kind, self._fenced[::2]) == known
                for kind, known in self._nameless.items()
            )
        except AttributeError:
            return False


def _find_nameless(kinds: Iterable[type], among: Iterable[Any]) -> dict[type, Any]:
    """Return the types whose objects could lose an attribute and get its value as another one unnoticed, because the collector
    sees their attributes without names; and where the values of their fields are. Raises `Unprovable` if a field has no value.
    """
    found: dict[type, Any] = {}
    for kind in kinds:
        if kind.__dictoffset__ and dataclasses.is_dataclass(kind) and (fields := dataclasses.fields(kind)):
            objects = [one for one in among if type(one) is kind]
            have_dicts = len(fields) > 1 and len(gc.get_referents(*objects)) == 2 * len(objects)
            if not have_dicts:  # a dict is a container of its own, whose keys are compared
                try:
                    found[kind] = _addresses_of_fields(kind, objects)
                except AttributeError:
                    raise Unprovable(kind) from None
    return found


def _addresses_of_fields(kind: type, among: Iterable[Any]) -> Any:
    """Return the addresses of the values of all fields of the objects of this type."""
    names = [field.name for field in dataclasses.fields(kind)]
    found = map(attrgetter(*names), (one for one in among if type(one) is kind))
    return _addresses(tuple(found) if len(names) == 1 else tuple(chain.from_iterable(found)))


def _containers_in(values: Iterable[Any]) -> list[Any]:
    """Return the values that have members which can change. Raises `Unprovable`."""
    kinds = {kind for kind in set(map(type, values)) if _is_container(kind)}
    if not kinds:
        return []
    return [one for one in values if type(one) in kinds and (type(one) not in _MAY_BE_SHARED or one)]


@functools.lru_cache(maxsize=1024)
def _is_container(kind: type) -> bool:
    """Return whether the members of objects of this type can change. Raises `Unprovable` if that cannot be noticed."""
    if kind in _CONTAINERS:
        return True
    if is_immutable(kind) or issubclass(kind, type):
        return False
    if is_record(kind) and kind.__flags__ & _IS_TRAVERSED:
        return True
    raise Unprovable(kind)


# --- identity ------------------------------------------------------------------------------------------

_Members: TypeAlias = list[Any] | tuple[Any, ...]
_POINTER = tuple.__itemsize__


def same_objects(one: _Members, other: _Members) -> bool:
    """Return whether two lists or tuples have the same objects in the same order: `is`, and not `==`, for every member."""
    return len(one) == len(other) and _addresses(one) == _addresses(other)


def _read_addresses(members: _Members) -> Any:
    """Return the addresses of the members as bytes. CPython keeps them one after another: at the end of a tuple, and where the
    last field but one of a list points to. Reading them there takes a tenth of the time that calling `id` for each of them takes.
    """
    if type(members) is tuple:
        place = id(members) + tuple.__basicsize__
    else:
        place = ctypes.c_void_p.from_address(id(members) + list.__basicsize__ - 2 * _POINTER).value or 0
    return ctypes.string_at(place, _POINTER * len(members)) if members else b""


def _list_addresses(members: _Members) -> Any:
    return tuple(map(id, members))


def _is_read_right() -> bool:
    """Return whether this Python is one whose tuples and lists `_read_addresses` can read."""
    if sys.implementation.name != "cpython" or list.__basicsize__ != 5 * _POINTER:
        return False
    sample = (_Fence, "", None, _FENCE)
    told = b"".join(id(one).to_bytes(_POINTER, sys.byteorder) for one in sample)
    return bool(_read_addresses(sample) == told == _read_addresses([*sample]))


_addresses = _read_addresses if _is_read_right() else _list_addresses
_COUNTED = sum(map(sys.getrefcount, ([],))) - 1
"""The references to an object that only exist while it is counted."""
is_reliable = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether this Python counts references exactly, and runs only one thread of Python code at a time."""
