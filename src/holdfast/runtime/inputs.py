"""Makes the states that nodes and routers get. A large value that no code has changed is handed on, not copied.

`Inputs` keeps one typed copy of each large field of a run's state, and hands it to one call after another. The log decides:
what a call gets is always what is stored. Two things are compared each time:

- **The stored value is the one that was copied**, or that value and new items after it, of which only the new ones are
  converted. The stored values are the parts of the run's state, which the engine never changes, only replaces.
- **The copy is as it was made, and no other code refers to any part of it** (`Proof`). So no earlier node has changed it, none
  that still runs has it, and nothing that an earlier call has left behind can change it later.

If one of the two does not hold, the call gets a new copy. The outermost list or dict is made anew for each call anyway.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from holdfast.core.codec import Codec
from holdfast.core.events import Values
from holdfast.core.state import StateType
from holdfast.errors import CodecError, StateError
from holdfast.runtime.proofs import MEMBERS_MAX, Proof, Unprovable, is_reliable, same_objects

LARGE = 64
"""How many members a value has, with those of the containers inside it, from which on a proof costs less than a copy."""
_COPIES = 2
"""How many calls get copies of a value before one is kept: a value that every node replaces is never handed on."""


class Inputs:
    """Makes the states that the calls of one run get."""

    hands_on = is_reliable
    """False if every call gets a copy of the whole state. Tests compare the two."""

    def __init__(self, state_type: StateType[Any]) -> None:
        self.type = state_type
        self._kept: dict[str, _Kept] = {}
        self._weighed: dict[str, tuple[Any, int, bool]] = {}
        """Field -> its value, how many members that has, and whether it is large."""
        self._may: dict[str, bool] = {}
        """Field -> whether its values may be handed on. If a change of them could go unnoticed, they are always copied."""

    def load(self, values: Values) -> Any:
        """Return the state with these values, for one call. Raises `StateError` if they do not fit the type."""
        if not (self.hands_on and self.type.is_assembled):
            return self.type.load(values)
        typed: dict[str, Any] = {}
        for field, plain in values.items():
            kind = type(plain)
            if (kind is list or kind is dict) and self._is_large(field, plain):
                value = self._hand_on(field, plain)
                if value is not None:
                    typed[field] = value
        return self.type.assemble(values, typed) if typed else self.type.load(values)

    def unchanged(self, whole: Any, values: Values) -> set[str]:
        """Return the large fields that are in a whole state, which a call was given, what they were then: those of `values`."""
        found = set()
        for field, kept in self._kept.items():
            if field in values and kept.is_same(self.type.value_of(whole, field), values[field]):
                found.add(field)
        return found

    def _is_large(self, field: str, plain: Any) -> bool:
        known = self._weighed.get(field)
        if known is not None and known[0] is plain and known[1] == len(plain):
            return known[2]
        is_large = self._may.get(field, True) and _has_members(plain, LARGE)
        if is_large and field not in self._may:
            is_large = self._may[field] = self.type.converts_members(field)
        self._weighed[field] = (plain, len(plain), is_large)
        return is_large

    def _hand_on(self, field: str, plain: Any) -> Any:
        """Return the value of a large field; None if the call gets a copy."""
        kept = self._kept.get(field)
        if kept is None or not kept.follows(plain):
            self._kept[field] = _Kept(self.type.codec_of(field), plain)
            return None
        try:
            return kept.hand_on(plain)
        except Unprovable:
            self._may[field] = False
            del self._kept[field], self._weighed[field]
        except (
            CodecError,
            StateError,
        ):  # raised again, with the name of the field, where the whole state is loaded
            del self._kept[field]
        return None


class _Kept:
    """The typed copy of a large list or dict, and the stored value of which it is a copy."""

    def __init__(self, codec: Codec[Any], plain: Any) -> None:
        self._codec = codec
        self._plain = plain
        self._keys, self._members = _parts(plain)
        self._typed: Any = None
        self._proofs: list[Proof] = []
        self._uses = 1

    def follows(self, plain: Any) -> bool:
        """Return whether a stored value is the one that was copied, or has new members after those of that one."""
        count = len(self._members)
        if plain is self._plain and type(plain) is list and len(plain) == count:
            return True  # the engine only ever adds items to a list
        keys, members = _parts(plain)
        if len(members) > count:
            keys, members = keys and keys[:count], members[:count]
        return keys == self._keys and same_objects(members, self._members)

    def hand_on(self, plain: Any) -> Any:
        """Return the value for one more call; None if that call gets a copy. Raises `Unprovable`, and `CodecError`."""
        if self._typed is None:
            self._uses += 1
            if self._uses <= _COPIES:
                return None
            self._make(plain)
        elif not all(proof.holds() for proof in self._proofs):
            self._typed, self._proofs = None, []
            return None
        elif len(plain) > len(self._members):
            self._grow(plain)
        else:
            self._plain = plain
        return self._typed.copy()

    def is_same(self, value: Any, plain: Any) -> bool:
        """Return whether a value is what a call was given, unchanged, and the copy of this stored value."""
        if self._typed is None or type(value) is not type(self._typed) or len(plain) != len(self._members):
            return False
        keys, members = _parts(value)
        known_keys, known = _parts(self._typed)
        is_given = same_objects(keys or (), known_keys or ()) and same_objects(members, known)
        return is_given and self.follows(plain) and all(proof.is_unchanged() for proof in self._proofs)

    def _make(self, plain: Any) -> None:
        typed = self._codec.decode(plain)
        if type(typed) is not type(plain) or len(typed) != len(plain):
            raise Unprovable(type(typed))
        self._plain = plain
        self._keys, self._members = _parts(plain)
        self._typed, self._proofs = typed, []
        self._prove(0)

    def _grow(self, plain: Any) -> None:
        """Convert the members that a stored value has gained, and put them after those of the copy."""
        count = len(self._members)
        keys, members = _parts(plain)
        if keys is None:
            self._typed.extend(self._codec.decode([*members[count:]]))
        else:
            self._typed.update(self._codec.decode(dict(zip(keys[count:], members[count:], strict=True))))
        if len(self._typed) != len(plain):
            raise Unprovable(type(plain))
        self._plain, self._keys, self._members = plain, keys, members
        self._prove(count)

    def _prove(self, first: int) -> None:
        """Make the proofs for the members from this one on. Small proofs are joined when there are several of the same size, so
        that a list to which one item is added again and again has few of them.
        """
        proofs, count = self._proofs, len(self._typed)
        size = count - first
        while proofs and proofs[-1].size <= size and proofs[-1].size + size <= MEMBERS_MAX:
            size += proofs.pop().size
        for start in range(count - size, count, MEMBERS_MAX):
            proof = Proof(_members_from(self._typed, start))
            if not proof.holds():  # a validator of the user's type has kept what it has seen
                raise Unprovable(type(self._typed))
            proofs.append(proof)


def _parts(value: Any) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
    """Return the keys of a dict and its values; None and the items of a list."""
    return (None, tuple(value)) if type(value) is list else (tuple(value), tuple(value.values()))


def _members_from(value: Any, start: int) -> list[Any]:
    members = value if type(value) is list else value.values()
    return list(islice(members, start, start + MEMBERS_MAX))


def _has_members(plain: Any, least: int) -> bool:
    """Return whether a value has at least so many members, with those of the containers inside it."""
    count, todo = 0, [plain]
    while todo:
        inner = todo.pop()
        count += len(inner)
        if count >= least:
            return True
        members = inner if type(inner) is list else inner.values()
        todo += [member for member in members if type(member) is list or type(member) is dict]
    return False
