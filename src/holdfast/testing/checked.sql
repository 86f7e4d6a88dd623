-- Every query of the checker, on a SQLite store that it only reads. `-- name: what it is for`, then the query.

-- begin: everything that follows sees one moment of the store
begin deferred

-- runs: every run row, with the holder's name
select runs.key, run_id, flow, parent, labels, created_at, status, seq, digest, updated_at, fingerprint, state_version,
       active, error, rewinds, due_at, fence, holders.id, coalesce(holders.expires_at, 0.0)
from runs left join holders on holders.key = runs.holder
order by runs.key

-- events: the log of a run behind a place
select key & 4294967295, at, kind, node, iteration, execution, attempt, salt, body, digest
from events where key > (?1 << 32 | ?2) and key <= (?1 << 32 | 4294967295) order by key

-- upkeep: whether the store knows logs that were trimmed; older ones do not
select count(*) from sqlite_schema where name in ('trimmed', 'remains')

-- trimmed: where logs begin that were compacted, and the digest of the base that stands there
select run, base, base_digest from trimmed where base > 0

-- remains: logs of which something is still to be swept
select run from remains

-- rewinds: where the runs went back, all of them at once
select key >> 32, key & 4294967295, body from events where kind = 'RunRewound' order by key

-- snapshots: the stored folds of a run
select seq, base, digest, body from snapshots where run = ?1 order by seq

-- strangers: events of runs that are not there
select key >> 32, min(key & 4294967295), count(*) from events
where key >> 32 not in (select key from runs) group by key >> 32

-- definitions: flows, by fingerprint
select fingerprint, body from definitions order by fingerprint

-- inbox: what was asked of runs, and the seq that answered it
select runs.run_id, inbox.id, inbox.verb, inbox.body, inbox.taken
from inbox left join runs on runs.key = inbox.run order by inbox.key
