"""Runs that a newer version of Holdfast has written, as this version finds them in a store."""

from __future__ import annotations

import msgspec

from holdfast.core.event_encoding import Encoded
from holdfast.storage.contract import Append, Holder, RunStatus, Store, View
from holdfast.storage.rows import seal

VERSION = 99
NEWER = f"the log has version {VERSION} of the event 'RunClaimed'"
"""What this version says of such a run."""


def write_as_newer(store: Store, run_id: str, status: RunStatus = "interrupted") -> None:
    """Append an event of a version that this one does not know, as its writer would have, and release the run."""
    holder = Holder(id="newer", ttl_s=600.0)
    lease = store.claim(run_id, holder)
    row = store.run(run_id)
    event = Encoded("RunClaimed", None, 0, 0, 0, msgspec.json.encode({"v": VERSION}))
    append = Append(
        run_id=run_id,
        expected_seq=row.seq,
        rows=seal(row.digest, run_id, row.seq, row.updated_at, [event], bytes(16)),
        view=View(status=status, fingerprint=row.fingerprint, state_version=row.state_version),
        holder=holder.id,
        fence=lease.fence,
        release=True,
    )
    assert store.append([append]) == [None]
    store.renew(Holder(id="newer", ttl_s=0.0))
