-- Every query that the checker runs on a SQLite store; all of them only read. The format is `-- name: purpose`, then the query.

-- begin: start a transaction, so that all queries see the store at one moment
begin deferred

-- columns: how many of the columns that run rows of older versions lack exist: what a listing shows, then which run started a run
select count(*) from pragma_table_info('runs') where name in ('asks', 'origin')

-- runs: every run row, with the id of its holder and when its lease expires
select runs.key, run_id, flow, parent, origin, labels, created_at, status, seq, digest, updated_at, fingerprint, state_version,
       active, error, rewinds, due_at, fence, holders.id, coalesce(holders.expires_at, 0.0), asks, active_s, situation
from runs left join holders on holders.key = runs.holder
order by runs.key

-- runs_without_origin: every run row of a store of an older version, whose runs do not start others
select runs.key, run_id, flow, parent, null, labels, created_at, status, seq, digest, updated_at, fingerprint, state_version,
       active, error, rewinds, due_at, fence, holders.id, coalesce(holders.expires_at, 0.0), asks, active_s, situation
from runs left join holders on holders.key = runs.holder
order by runs.key

-- old_runs: every run row of a store of a version that is older still, whose rows do not tell what a listing shows
select runs.key, run_id, flow, parent, null, labels, created_at, status, seq, digest, updated_at, fingerprint, state_version,
       active, error, rewinds, due_at, fence, holders.id, coalesce(holders.expires_at, 0.0), null, null, null
from runs left join holders on holders.key = runs.holder
order by runs.key

-- events: the events of a run after a given seq
select key & 4294967295, at, kind, node, iteration, execution, attempt, salt, body, digest
from events where key > (?1 << 32 | ?2) and key <= (?1 << 32 | 4294967295) order by key

-- upkeep: how many of the two upkeep tables exist; stores of older versions have none
select count(*) from sqlite_schema where name in ('trimmed', 'remains')

-- trimmed: for every compacted log, the seq and the digest of its base
select run, base, base_digest from trimmed where base > 0

-- remains: runs with events that are obsolete but not swept yet
select run from remains

-- rewinds: the RunRewound events of all runs
select key >> 32, key & 4294967295, body from events where kind = 'RunRewound' order by key

-- snapshots: the snapshots of a run
select seq, base, digest, body from snapshots where run = ?1 order by seq

-- strangers: events that belong to no run
select key >> 32, min(key & 4294967295), count(*) from events
where key >> 32 not in (select key from runs) group by key >> 32

-- definitions: the definitions of all flows, by fingerprint
select fingerprint, body from definitions order by fingerprint

-- inbox_columns: how many of the columns that say what became of a request exist; stores of older versions have none
select count(*) from pragma_table_info('inbox') where name in ('digest', 'unmet')

-- inbox: all requests, each with the seq at which it was handled, or 0
select runs.run_id, inbox.id, inbox.verb, inbox.body, inbox.taken, inbox.unmet, inbox.digest is not null
from inbox left join runs on runs.key = inbox.run order by inbox.key

-- old_inbox: the same of a store of an older version, as the requests will be once the store is migrated
select runs.run_id, inbox.id, inbox.verb, inbox.body,
       iif(inbox.taken = 0 and runs.status in ('completed', 'cancelled'), runs.seq, inbox.taken),
       inbox.taken = 0 and runs.status in ('completed', 'cancelled'), 0
from inbox left join runs on runs.key = inbox.run order by inbox.key
