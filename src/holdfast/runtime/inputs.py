"""Makes the states that nodes and routers get. A large value that no code has changed is handed on, not copied.

`Inputs` keeps one typed copy of each large field of a run's state, and hands it to one call after another. The log decides:
what a call gets is always what is stored. Two things are compared each time:

- **The stored value is the one that was copied**, or that value with new items after it or other values under some keys, of
  which only the new ones are converted. The stored values are the parts of the run's state, which the engine never changes, only
  replaces.
- **The copy is as it was made, and no other code refers to any part of it** (`Proof`). So no earlier node has changed it, none
  that still runs has it, and nothing that an earlier call has left behind can change it later.

If one of the two does not hold, the call gets a new copy. The outermost list or dict is a new one for each call anyway.
"""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate, islice
from typing import Any, cast

from holdfast.core.codec import Codec
from holdfast.core.events import Values
from holdfast.core.state import StateType
from holdfast.errors import CodecError, StateError
from holdfast.runtime.proofs import MEMBERS_MAX, Proof, Unprovable, is_reliable, same_objects

LARGE = 64
"""How many members a value has, with those of the containers inside it, from which on a proof costs less than a copy."""
_COPIES = 2
"""How many calls get copies of a value before one is kept: a value that every node replaces is never handed on."""
_REFUSED_MAX = 16
"""How many calls in a row get copies because other code refers to the kept one: parallel nodes do so for a while, and what a node
has left behind may do so forever."""
_REPLACED_MAX = 0.25
"""Which part of the values in a dict may be others at once: a new copy of all takes less time then."""


class Inputs:
    """Makes the states that the calls of one run get."""

    hands_on = is_reliable
    """False if every call gets a copy of the whole state. Tests compare the two."""

    def __init__(self, state_type: StateType[Any]) -> None:
        self.type = state_type
        self._kept: dict[str, _Kept] = {}
        self._weighed: dict[str, tuple[Any, int, bool]] = {}
        """Field -> its value, how many members that has, and whether it is large and may be handed on."""
        self._may: dict[str, bool] = {}
        """Field -> whether its values may be handed on. If a change of them could go unnoticed, they are always copied."""

    def load(self, values: Values) -> Any:
        """Return the state with these values, for one call. Raises `StateError` if they do not fit the type."""
        if not (self.hands_on and self.type.is_assembled):
            return self.type.load(values)
        typed: dict[str, Any] = {}
        for field, plain in values.items():
            kind = type(plain)
            if (kind is list or kind is dict) and self._may_hand_on(field, plain):
                value = self._hand_on(field, plain)
                if value is not None:
                    typed[field] = value
        return self.type.assemble(values, typed) if typed else self.type.load(values)

    def unchanged(self, whole: Any, values: Values) -> dict[str, int]:
        """Return the large fields of a whole state that begin with all that a call was given there (`values`), unchanged, and how
        many members that is. The call may have added others after them.
        """
        found = {}
        for field, kept in self._kept.items():
            if field in values and kept.begins(self.type.value_of(whole, field), values[field]):
                found[field] = len(values[field])
        return found

    def _may_hand_on(self, field: str, plain: Any) -> bool:
        known = self._weighed.get(field)
        if known is not None and known[0] is plain and known[1] == len(plain):
            return known[2]
        hands_on = self._may.get(field, True) and is_large(plain)
        if hands_on and field not in self._may:
            hands_on = self._may[field] = self.type.converts_members(field)
        self._weighed[field] = (plain, len(plain), hands_on)
        return hands_on

    def _hand_on(self, field: str, plain: Any) -> Any:
        """Return the value of a large field; None if the call gets a copy."""
        kept = self._kept.get(field)
        if kept is None or kept.differences(plain) is None:
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
        self._refused = 0
        """How many calls in a row got copies because other code referred to this one."""

    def differences(self, plain: Any) -> list[int] | None:
        """Return which values of the dict that was copied are others in this stored one; None if the two differ in more than that
        and in new members at the end.
        """
        count = len(self._members)
        if plain is self._plain and type(plain) is list and len(plain) == count:
            return []  # the engine only ever adds items to a list
        keys, members = _parts(plain)
        if (keys and keys[:count]) != self._keys or len(members) < count:
            return None
        if same_objects(members[:count], self._members):
            return []
        if keys is None:
            return None
        pairs = enumerate(zip(members[:count], self._members, strict=True))
        replaced = [position for position, (new, old) in pairs if new is not old]
        return replaced if len(replaced) <= count * _REPLACED_MAX else None

    def hand_on(self, plain: Any) -> Any:
        """Return the value for one more call; None if that call gets a copy. Raises `Unprovable`, and `CodecError`."""
        if self._typed is None:
            self._uses += 1
            if self._uses <= _COPIES:
                return None
            self._make(plain)
        elif not all(proof.holds() for proof in self._proofs):
            self._refused += 1
            if self._refused > _REFUSED_MAX or not all(proof.is_unchanged() for proof in self._proofs):
                self._typed, self._proofs, self._refused = None, [], 0
            return None
        else:
            self._update(plain)
        self._refused = 0
        return self._typed.copy()

    def begins(self, value: Any, plain: Any) -> bool:
        """Return whether a value begins with what a call was given, unchanged, and that is the copy of this stored value."""
        count = len(self._members)
        if self._typed is None or type(value) is not type(self._typed) or len(plain) != count:
            return False
        keys, members = _parts(value)
        known_keys, known = _parts(self._typed)
        is_given = same_objects((keys or ())[:count], known_keys or ()) and same_objects(
            members[:count], known
        )
        return is_given and self.differences(plain) == [] and all(map(Proof.is_unchanged, self._proofs))

    def _make(self, plain: Any) -> None:
        typed = self._codec.decode(plain)
        if type(typed) is not type(plain) or len(typed) != len(plain):
            raise Unprovable(type(typed))
        self._plain = plain
        self._keys, self._members = _parts(plain)
        self._typed, self._proofs = typed, []
        self._prove(0)

    def _update(self, plain: Any) -> None:
        """Convert the members that a stored value has gained, and those that are others now, and put them into the copy."""
        replaced, count = self.differences(plain), len(self._members)
        if replaced or len(plain) > count:
            keys, members = _parts(plain)
            if keys is None:
                self._typed.extend(self._codec.decode([*members[count:]]))
            else:
                new = [*(replaced or ()), *range(count, len(members))]
                self._typed.update(
                    self._codec.decode({keys[position]: members[position] for position in new})
                )
            if len(self._typed) != len(plain):
                raise Unprovable(type(plain))
            self._keys, self._members = keys, members
            if replaced:
                self._prove_again(replaced)
            if len(members) > count:
                self._prove(count)
        self._plain = plain

    def _prove(self, first: int) -> None:
        """Make the proofs for the members from this one on. Small proofs are joined when there are several of the same size, so
        that a list to which one item is added again and again has few of them.
        """
        proofs, count = self._proofs, len(self._typed)
        size = count - first
        while proofs and proofs[-1].size <= size and proofs[-1].size + size <= MEMBERS_MAX:
            size += proofs.pop().size
        for start in range(count - size, count, MEMBERS_MAX):
            proofs.append(self._proof_of(start, min(MEMBERS_MAX, count - start)))

    def _prove_again(self, replaced: list[int]) -> None:
        """Make the proofs again in which these members are."""
        sizes = [proof.size for proof in self._proofs]
        ends = [*accumulate(sizes)]
        for number in {bisect(ends, position) for position in replaced}:
            del self._proofs[number]  # first, because it refers to the members of the new one
            self._proofs.insert(number, self._proof_of(ends[number] - sizes[number], sizes[number]))

    def _proof_of(self, start: int, size: int) -> Proof:
        members = self._typed if type(self._typed) is list else self._typed.values()
        proof = Proof(list(islice(members, start, start + size)))
        if not proof.holds():  # a validator of the user's type has kept what it has seen
            raise Unprovable(type(self._typed))
        return proof


def _parts(value: Any) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
    """Return the keys of a dict and its values; None and the items of a list."""
    return (None, tuple(value)) if type(value) is list else (tuple(value), tuple(value.values()))


def is_large(plain: Any) -> bool:
    """Return whether a value has enough members for a proof to cost less than a copy."""
    if type(plain) is not list and type(plain) is not dict:
        return False
    count, todo = 0, [cast("Any", plain)]
    while todo:
        inner = todo.pop()
        count += len(inner)
        if count >= LARGE:
            return True
        members = inner if type(inner) is list else inner.values()
        todo += [member for member in members if type(member) is list or type(member) is dict]
    return False
