-- Every query of the SQLite store: a line `-- name: purpose`, then the query. Values are always bound as parameters.

-- begin: start a transaction that writes; it takes the write lock at once, so that it cannot fail half-way because of a lock
begin immediate

-- begin_reading: start a transaction that reads; all its reads see the database at one moment
begin deferred

-- commit: make everything since `begin` durable and visible
commit

-- rollback: undo everything since `begin`
rollback

-- any_table: whether a database has any table at all
select 1 from sqlite_schema limit 1

-- integrity: SQLite's integrity check: problems with pages and indexes, or "ok"
pragma integrity_check(100)

-- head: the columns of a run row that decide whether an append to the run is accepted
select key, seq, fence, status, asks, (select id from holders where holders.key = runs.holder) from runs where run_id = ?1

-- heads: the columns of `head` for many runs (a JSON list of run ids), in the order of the list
select json_group_array(json_array(runs.key, runs.seq, runs.fence, runs.status, runs.asks,
                                   (select id from holders where holders.key = runs.holder)) order by asked.key)
from json_each(?1) as asked left join runs on runs.run_id = asked.value

-- advance_runs: update many run rows after their appends (a JSON list of rows); times are multiples of 2**-22 seconds
update runs set seq = new.cells ->> 1, digest = unhex(new.cells ->> 2), updated_at = (new.cells ->> 3) / 4194304.0,
                fingerprint = new.cells ->> 4, state_version = new.cells ->> 5, active = new.cells ->> 6,
                error = null, rewinds = new.cells ->> 7, due_at = new.cells ->> 8, active_s = (new.cells ->> 9) / 4194304.0,
                situation = new.cells ->> 10
from (select value as cells from jsonb_each(?1)) as new
where runs.key = new.cells ->> 0

-- write_events: insert many events: a JSON list of rows, their salts and digests (48 bytes a row), and their bodies, concatenated
insert into events (key, at, kind, node, iteration, execution, attempt, salt, body, digest)
select cells ->> 0, (cells ->> 1) / 4194304.0, cells ->> 2, cells ->> 3, cells ->> 4, cells ->> 5, cells ->> 6,
       substr(?2, 48 * number + 1, 16), substr(?3, cells ->> 7, cells ->> 8), substr(?2, 48 * number + 17, 32)
from (select key as number, value as cells from jsonb_each(?1))

-- create_run: insert a run row
insert into runs (run_id, flow, parent, origin, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,
                  state_version, active, error, rewinds, due_at, fence, holder, queue, priority, asks, active_s, situation,
                  ended_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24,
        iif(?8 in ('completed', 'failed', 'cancelled'), ?11, null))

-- create_runs: insert many run rows (a JSON list); times are multiples of 2**-22 seconds
insert into runs (run_id, flow, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,
                  state_version, active, rewinds, due_at, fence, holder, queue, priority, asks, active_s, situation, ended_at)
select cells ->> 0, cells ->> 1, unhex(cells ->> 2), cells ->> 3, (cells ->> 4) / 4194304.0, cells ->> 5, cells ->> 6,
       unhex(cells ->> 7), (cells ->> 8) / 4194304.0, cells ->> 9, cells ->> 10, cells ->> 11, cells ->> 12, cells ->> 13,
       cells ->> 14, cells ->> 15, cells ->> 16, cells ->> 17, cells ->> 18, (cells ->> 19) / 4194304.0, cells ->> 20,
       iif(cells ->> 5 in ('completed', 'failed', 'cancelled'), (cells ->> 8) / 4194304.0, null)
from (select value as cells from jsonb_each(?1))
returning run_id, key

-- label_runs: insert the labels of many new runs (a JSON list of their keys)
insert into labels (run, name, value, created_at)
select runs.key, label.key, label.value, runs.created_at
from json_each(?1) as new cross join runs on runs.key = new.value cross join json_each(runs.labels) as label

-- label_run: insert one label of a new run
insert into labels (run, name, value, created_at) values (?1, ?2, ?3, ?4)

-- advance_run: update a run row after an append; it changes no indexed column
update runs set seq = ?2, digest = ?3, updated_at = ?4, fingerprint = ?5, state_version = ?6,
                active = ?7, error = ?8, rewinds = ?9, due_at = ?10, active_s = ?11, situation = ?12
where key = ?1

-- turn_run: set the status of a run and the number of its questions, if an append changes them; and when it ended
update runs set status = ?2, asks = ?3,
                ended_at = iif(?2 in ('completed', 'failed', 'cancelled'), iif(status = ?2, ended_at, ?4), null)
where key = ?1

-- turn_runs: `turn_run` for many runs: a JSON list of key, status, whether the lease is released, questions, and the time
update runs set status = new.cells ->> 1, holder = iif(new.cells ->> 2, null, holder), asks = new.cells ->> 3,
                ended_at = iif(new.cells ->> 1 in ('completed', 'failed', 'cancelled'),
                               iif(status = new.cells ->> 1, ended_at, (new.cells ->> 4) / 4194304.0), null)
from (select value as cells from jsonb_each(?1)) as new
where runs.key = new.cells ->> 0

-- write_event: insert one event of a log
insert into events (key, at, kind, node, iteration, execution, attempt, salt, body, digest)
values (?1 << 32 | ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)

-- write_snapshot: store a snapshot; a compaction base is replaced only by another compaction base
insert into snapshots (run, seq, base, digest, body) values (?1, ?2, ?3, ?4, ?5)
on conflict (run, seq) do update set base = excluded.base, digest = excluded.digest, body = excluded.body
where excluded.base >= snapshots.base

-- write_definition: store a flow's definition, unless it is stored already
insert into definitions (fingerprint, body) values (?1, ?2) on conflict (fingerprint) do nothing

-- take_request: mark a request as handled; its row and id stay, so that posting it again has no effect
update inbox set taken = ?3, body = '' where run = ?1 and id = ?2 and taken = 0

-- close_inbox: mark the requests that still wait as handled and unmet, because their run is over
update inbox set taken = ?2, unmet = 1, body = '' where run = ?1 and taken = 0

-- close_inboxes: `close_inbox` for many runs: a JSON list of their keys and of the seqs at which they ended
update inbox set taken = ended.cells ->> 1, unmet = 1, body = ''
from (select value as cells from jsonb_each(?1)) as ended
where inbox.run = ended.cells ->> 0 and inbox.taken = 0

-- appended: whether the event at a seq was written by this append; the first salt of an append is its id
select 1 from events
where key = (select key from runs where run_id = ?1) << 32 | ?2 and salt = ?3

-- run_key: a run's numeric key; no row if the store does not have the run
select key from runs where run_id = ?1

-- runs: run rows with their holders; the queries below say which of them
select runs.run_id, runs.flow, runs.status, runs.seq, runs.digest, runs.fingerprint, runs.state_version, runs.created_at,
       runs.updated_at, runs.input_digest, runs.labels, runs.parent, runs.origin, runs.active, runs.error, runs.rewinds, runs.due_at,
       runs.fence, runs.queue, runs.priority, runs.asks, runs.active_s, runs.situation,
       lease_end(holders.expires_at, holders.renewed, holders.ttl_s, holders.boot, holders.pid), holders.id, holders.host,
       holders.boot, holders.pid_namespace, holders.pid, holders.process_started, holders.ttl_s, holders.flows, holders.queues,
       holders.version

-- run_of_id: which: the run with this id
from runs left join holders on holders.key = runs.holder where runs.run_id = ?1

-- page: which: the newest of those that one walk finds between two positions, among the runs of one flow, parent, origin or queue
from (select ? as since, ? as at, ? as id, ? as one) as bound cross join runs not indexed
left join holders on holders.key = runs.holder where runs.key in (

-- page_end: order and length of a page
) order by runs.created_at desc, runs.run_id desc limit ?

-- page_of_statuses: `page` of several walks, one for each status of a JSON list
from (select ? as since, ? as at, ? as id, ? as one) as bound cross join json_each(?) as wanted cross join runs not indexed
left join holders on holders.key = runs.holder where runs.key in (

-- page_of_statuses_end: order and length of a page that several walks find
) order by runs.created_at desc, runs.run_id desc limit ?

-- walk_ids: a walk over the runs with these ids (a JSON list)
select walk.key from json_each(?) as asked cross join runs as walk on walk.run_id = asked.value
where walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_parent: a walk over the runs that were forked from one run
select walk.key from runs as walk indexed by runs_by_parent
where walk.parent = bound.one and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_origin: a walk over the runs that one run started
select walk.key from runs as walk indexed by runs_by_origin
where walk.origin = bound.one and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_label: a walk over the runs with a label
select walk.key from labels cross join runs as walk on walk.key = labels.run
where labels.name = ? and labels.value = ? and labels.created_at between bound.since and bound.at
and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_asking: a walk over the runs that ask a question, or may ask one
select walk.key from runs as walk indexed by runs_asking
where (walk.asks > 0 or (walk.asks is null and walk.status not in ('completed', 'cancelled')))
and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_flow: a walk over the runs of one flow that have a wanted status
select walk.key from runs as walk indexed by runs_by_flow
where walk.flow = bound.one and walk.status = wanted.value
and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_queue: a walk over the runs in one queue
select walk.key from runs as walk indexed by runs_by_queue
where walk.queue = bound.one and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_status: a walk over the runs that have a wanted status
select walk.key from runs as walk indexed by runs_by_status
where walk.status = wanted.value and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_prefix: a walk over the few runs whose ids begin with a text; the condition `with_prefix` follows
select walk.key from runs as walk where +walk.created_at >= bound.since and (+walk.created_at, +walk.run_id) < (bound.at, bound.id)

-- walk_age: a walk over all runs
select walk.key from runs as walk indexed by runs_by_age
where walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- with_status: condition: runs with one of these statuses (a JSON list)
and walk.status in (select value from json_each(?))

-- with_flow: condition: runs of this flow
and walk.flow = ?

-- with_parent: condition: runs that were forked from this run
and walk.parent = ?

-- with_origin: condition: runs that this run started
and walk.origin = ?

-- with_queue: condition: runs in this queue
and walk.queue = ?

-- without_fingerprint: condition: runs of flows that have another fingerprint
and walk.fingerprint <> ?

-- with_label: condition: runs that have this label; used once for each label
and exists (select 1 from labels as other
            where other.name = ? and other.value = ? and other.created_at = walk.created_at and other.run = walk.key)

-- with_prefix: condition: runs whose ids begin with a text: it is given, and the first text after all that begin with it
and walk.run_id >= ? and walk.run_id < ?

-- with_questions: condition: runs that ask a question, or may ask one
and (walk.asks > 0 or (walk.asks is null and walk.status not in ('completed', 'cancelled')))

-- with_offer: condition: runs that are on offer by their status or time; lost holders are a JSON list of keys
and (walk.holder is null or walk.holder in (select value from json_each(?)))
and (walk.status in ('running', 'interrupted') or (walk.status = 'pending' and walk.due_at is null)
     or (walk.status in ('pending', 'waiting') and walk.due_at <= ?))

-- newest: order and length of a walk
order by walk.created_at desc, walk.run_id desc limit ?

-- newest_of_parent: order and length of `walk_parent`
order by walk.created_at desc, walk.run_id desc limit ?

-- newest_of_origin: order and length of `walk_origin`
order by walk.created_at desc, walk.run_id desc limit ?

-- newest_of_flow: order and length of `walk_flow`
order by walk.created_at desc, walk.run_id desc limit ?

-- newest_of_queue: order and length of `walk_queue`
order by walk.created_at desc, walk.run_id desc limit ?

-- newest_of_status: order and length of `walk_status`
order by walk.created_at desc, walk.run_id desc limit ?

-- newest_of_label: order and length of `walk_label`
order by labels.created_at desc, walk.run_id desc limit ?

-- newest_of_few: order and length of a walk over few runs; the signs keep SQLite from walking over all runs in that order
order by +walk.created_at desc, +walk.run_id desc limit ?

-- count_prefix: how many runs have an id that begins with a text, counted up to a limit
select count(*) from (select 1 from runs where run_id >= ?1 and run_id < ?2 limit ?3)

-- count_label: how many runs have a label, counted up to a limit
select count(*) from (select 1 from labels where name = ?1 and value = ?2 limit ?3)

-- count_statuses: how many runs have each status
select status, runs from counts where runs > 0

-- count_questions: how many questions are open, and how many runs ask one and have not failed
select coalesce(sum(asks), 0), count(*) filter (where asks > 0 and status <> 'failed') from runs indexed by runs_asking
where asks > 0 or (asks is null and status not in ('completed', 'cancelled'))

-- count_offers: how many runs of each flow and queue are on offer by their status or time, how many of them ask and how many wait; lost holders are a JSON list of keys
select flow, queue, count(*), count(*) filter (where asks > 0), count(*) filter (where status = 'waiting')
from runs indexed by runs_offered
where holder is null and status in ('pending', 'running', 'interrupted') and (status <> 'pending' or due_at is null)
group by flow, queue
union all
select flow, queue, count(*), count(*) filter (where asks > 0), count(*) filter (where status = 'waiting')
from runs indexed by runs_due
where holder is null and status in ('pending', 'waiting') and due_at is not null and due_at <= ?2
group by flow, queue
union all
select flow, queue, count(*), count(*) filter (where asks > 0), count(*) filter (where status = 'waiting')
from runs indexed by runs_by_holder
where holder in (select value from json_each(?1))
and (status in ('running', 'interrupted') or (status = 'pending' and due_at is null)
     or (status in ('pending', 'waiting') and due_at <= ?2))
group by flow, queue

-- count_ends: how many runs ended in each minute since a time, by status
select cast(ended_at / 60 as integer), status, count(*) from runs where ended_at is not null and ended_at >= ?1 group by 1, 2

-- events: the events of a log between two seqs
select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
from events where key > (select key from runs where run_id = ?1) << 32
                        | max(?2, coalesce((select base from trimmed where run = (select key from runs where run_id = ?1)), 0))
and key <= (select key from runs where run_id = ?1) << 32 | ?3
order by key limit ?4

-- events_of: the events of a log between two seqs, of some kinds (a JSON list, or null) and of one node (or null)
select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
from events where key > (select key from runs where run_id = ?1) << 32
                        | max(?2, coalesce((select base from trimmed where run = (select key from runs where run_id = ?1)), 0))
and key <= (select key from runs where run_id = ?1) << 32 | ?3
and (?5 is null or kind in (select value from json_each(?5))) and (?6 is null or node = ?6)
order by key limit ?4

-- feed: the ends of many logs (JSON: run id -> seq), each with some events after it; `cross` keeps the order of the joins
select runs.run_id, runs.seq, runs.status, lease_end(holders.expires_at, holders.renewed, holders.ttl_s, holders.boot, holders.pid),
       holders.id, holders.host, holders.boot, holders.pid_namespace, holders.pid, holders.process_started, holders.ttl_s,
       holders.flows, holders.queues, holders.version,
       events.seq, events.at, events.kind, events.node, events.iteration, events.execution, events.attempt, events.salt,
       events.body, events.digest
from json_each(?1) as wanted
cross join runs on runs.run_id = wanted.key
left join holders on holders.key = runs.holder
left join trimmed on trimmed.run = runs.key
left join events on events.key > runs.key << 32 | max(wanted.value, coalesce(trimmed.base, 0))
                and events.key <= runs.key << 32 | min(max(wanted.value, coalesce(trimmed.base, 0)) + ?2, runs.seq)
order by wanted.id, events.key

-- snapshot: the latest snapshot within a range of seqs
select seq, body, base, digest
from snapshots where run = (select key from runs where run_id = ?1) and seq between ?2 and ?3
order by seq desc limit 1

-- definition: a flow's definition
select body from definitions where fingerprint = ?1

-- lease: the columns that decide whether a claim of a run succeeds
select runs.key, runs.seq, runs.fence, holders.key,
       lease_end(holders.expires_at, holders.renewed, holders.ttl_s, holders.boot, holders.pid),
       holders.id, holders.host, holders.boot, holders.pid_namespace, holders.pid, holders.process_started, holders.ttl_s,
       holders.flows, holders.queues, holders.version
from runs left join holders on holders.key = runs.holder
where runs.run_id = ?1

-- take_lease: give a run a holder and a new fence
update runs set holder = ?2, fence = ?3 where key = ?1

-- release_lease: clear the holder of a run, if it is this holder with this fence
update runs set holder = null
where run_id = ?1 and fence = ?3 and holder = (select key from holders where id = ?2)

-- renew_holder: insert or update the row of a holder, which now expires later
insert into holders (id, host, boot, pid_namespace, pid, process_started, ttl_s, expires_at, flows, queues, version, registered_at,
                     renewed, calls)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?8 - ?7, ?13, ?12)
on conflict (id) do update set expires_at = excluded.expires_at, ttl_s = excluded.ttl_s,
    flows = excluded.flows, queues = excluded.queues, version = excluded.version, renewed = excluded.renewed, calls = excluded.calls
returning key

-- renew_alone: `renew_holder` as a transaction of its own; does nothing if the schema is newer than this Holdfast knows
insert into holders (id, host, boot, pid_namespace, pid, process_started, ttl_s, expires_at, flows, queues, version, registered_at,
                     renewed, calls)
select ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?8 - ?7, ?13, ?12 from pragma_user_version where user_version <= ?14
on conflict (id) do update set expires_at = excluded.expires_at, ttl_s = excluded.ttl_s,
    flows = excluded.flows, queues = excluded.queues, version = excluded.version, renewed = excluded.renewed, calls = excluded.calls
returning key

-- holder_key: the numeric key of a holder
select key from holders where id = ?1

-- release_all: release all leases of a holder
update runs set holder = null where holder = (select key from holders where id = ?1)

-- drop_holder: delete a holder, which has ended
delete from holders where id = ?1

-- drop_idle_holder: delete a dead holder that holds no run
delete from holders where key = ?1 and not exists (select 1 from runs where holder = ?1)

-- drop_old_holders: delete holders that expired long ago and hold no run
delete from holders where lease_end(expires_at, renewed, ttl_s, boot, pid) < ?1
and not exists (select 1 from runs where runs.holder = holders.key)

-- drop_old_refusals: delete refusals of holders that expired before a time, and of runs that have moved since or were deleted
delete from refusals
where holder in (select key from holders where lease_end(expires_at, renewed, ttl_s, boot, pid) < ?1)
or not exists (select 1 from runs where runs.key = refusals.run and runs.seq = refusals.seq)

-- refuse: record that a holder refuses a run as it is at a seq; does nothing if the run has moved, or the holder is not registered
insert into refusals (holder, run, seq, fingerprint, too_new, reason, at)
select holders.key, runs.key, ?3, ?4, ?5, ?6, ?7 from runs, holders where runs.run_id = ?1 and runs.seq = ?3 and holders.id = ?2
on conflict (holder, run) do update set seq = excluded.seq, fingerprint = excluded.fingerprint, too_new = excluded.too_new,
    reason = excluded.reason, at = excluded.at

-- refusals_of: the refusals of these runs (a JSON list of ids), if the runs have not moved since
select holders.key, runs.run_id, holders.id, refusals.seq, refusals.fingerprint, refusals.too_new, refusals.reason, refusals.at
from json_each(?1) as asked cross join runs on runs.run_id = asked.value
cross join refusals on refusals.run = runs.key and refusals.seq = runs.seq cross join holders on holders.key = refusals.holder
order by refusals.at, holders.id

-- refusals: the first refusals of runs that have not moved since
select holders.key, runs.run_id, holders.id, refusals.seq, refusals.fingerprint, refusals.too_new, refusals.reason, refusals.at
from refusals cross join runs on runs.key = refusals.run and runs.seq = refusals.seq
cross join holders on holders.key = refusals.holder
order by refusals.holder desc, refusals.run desc limit ?1

-- delete_refusals: delete the refusals of a run
delete from refusals where run = ?1

-- posted: the columns that decide whether a request is put into the inbox of a run: those of the run, and of a request of that id
select runs.key, runs.status, inbox.verb, inbox.digest
from runs left join inbox on inbox.run = runs.key and inbox.id = ?2 where runs.run_id = ?1

-- post: put a request into the inbox of a run
insert into inbox (run, id, verb, body, "by", reason, at, taken, digest, run_id, flow, queue, priority)
select key, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, run_id, flow, queue, priority from runs where key = ?1

-- post_along: put a request into the inbox of a run unless it is there already, or the run does not exist or is over
insert into inbox (run, id, verb, body, by, reason, at, taken, digest, run_id, flow, queue, priority)
select key, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, run_id, flow, queue, priority
from runs where run_id = ?1 and status not in ('completed', 'cancelled')
on conflict (run, id) do nothing

-- inbox: requests that wait for the runs of a holder; begins with the inbox, which is mostly empty
select inbox.id, inbox.verb, inbox.body, inbox."by", inbox.reason, runs.run_id, inbox.at, inbox.taken, inbox.unmet
from inbox cross join runs on runs.key = inbox.run cross join holders on holders.key = runs.holder
where inbox.taken = 0 and holders.id = ?1
order by inbox.key

-- inbox_of_held: requests that wait for one run, if this holder holds it
select inbox.id, inbox.verb, inbox.body, inbox."by", inbox.reason, runs.run_id, inbox.at, inbox.taken, inbox.unmet
from runs cross join holders on holders.key = runs.holder cross join inbox on inbox.run = runs.key
where runs.run_id = ?2 and holders.id = ?1 and inbox.taken = 0
order by inbox.key

-- inbox_of_many: requests that wait for one of these runs
select inbox.id, inbox.verb, inbox.body, inbox."by", inbox.reason, runs.run_id, inbox.at, inbox.taken, inbox.unmet
from json_each(?1) as asked cross join runs on runs.run_id = asked.value cross join inbox on inbox.run = runs.key
where inbox.taken = 0
order by inbox.key

-- inbox_of: all requests that a run ever got
select inbox.id, inbox.verb, inbox.body, inbox."by", inbox.reason, runs.run_id, inbox.at, inbox.taken, inbox.unmet
from runs cross join inbox on inbox.run = runs.key
where runs.run_id = ?1
order by inbox.key

-- trimmed: what upkeep has removed from the log of a run
select retired, retired_at, base, base_at, base_digest, place
from trimmed where run = (select key from runs where run_id = ?1)

-- snapshot_heads: the snapshots of a run without their bodies
select seq, base, length(body) from snapshots where run = (select key from runs where run_id = ?1) order by seq

-- referring: events whose bodies may refer to blobs: those that begin with {"$blobs":, and those that are compressed
select seq, body
from events where key > (select key from runs where run_id = ?1) << 32
                        | max(?2, coalesce((select base from trimmed where run = (select key from runs where run_id = ?1)), 0))
and key <= (select key from runs where run_id = ?1) << 32 | 4294967295
and (substr(body, 1, 10) = x'7b2224626c6f6273223a' or substr(body, 1, 4) = x'28b52ffd')
order by key limit ?3

-- drop_snapshot: delete a snapshot that only makes reading faster
delete from snapshots where run = ?1 and seq = ?2 and base = 0

-- retire: record that the run can no longer go back to checkpoints before a seq
insert into trimmed (run, retired, retired_at, base, base_at, base_digest, place) values (?1, ?2, ?3, 0, 0, x'', '')
on conflict (run) do update set retired = excluded.retired, retired_at = excluded.retired_at
where excluded.retired > trimmed.retired

-- compactable: the columns that decide whether a run may be compacted
select runs.key, runs.seq, runs.fence, (select id from holders where holders.key = runs.holder),
       coalesce((select nullif(base, 0) from trimmed where run = runs.key),
                (select events.seq - 1 from events where events.key > runs.key << 32 order by events.key limit 1))
from runs where run_id = ?1

-- drop_snapshots_upto: delete all snapshots of a run up to a seq, including a compaction base
delete from snapshots where run = ?1 and seq <= ?2

-- rebase: record that the log of a run now begins after a compaction base
insert into trimmed (run, retired, retired_at, base, base_at, base_digest, place) values (?1, 0, 0, ?2, ?3, ?4, ?5)
on conflict (run) do update set base = excluded.base, base_at = excluded.base_at, base_digest = excluded.base_digest,
                                place = excluded.place

-- adopt: for a run from an archive: record what upkeep had removed from its log before it was archived
insert into trimmed (run, retired, retired_at, base, base_at, base_digest, place)
select key, ?2, ?3, ?4, ?5, ?6, ?7 from runs where run_id = ?1
on conflict (run) do update set retired = excluded.retired, retired_at = excluded.retired_at, base = excluded.base,
                                base_at = excluded.base_at, base_digest = excluded.base_digest, place = excluded.place

-- adopt_fence: for a run from an archive: raise its fence to the highest that was given out before it was archived
update runs set fence = ?2 where run_id = ?1 and fence < ?2 and holder is null

-- leave: mark the events of a run up to a seq as leftovers, to be swept later
insert into remains (run, upto) values (?1, ?2) on conflict (run) do update set upto = max(upto, excluded.upto)

-- remains: a run that has leftover events
select run, upto from remains order by run limit 1

-- remains_above: runs that have leftover events, with a key higher than this
select run from remains where run > ?1

-- sweep_events: delete the first leftover events of a run
delete from events where key in (
    select key from events where key > ?1 << 32 and key <= ?1 << 32 | ?2 order by key limit ?3)
returning key

-- swept: delete the mark that a run has leftover events
delete from remains where run = ?1

-- unswept: how many runs have leftover events
select count(*) from remains

-- fork_of: a run that was forked from this run
select run_id from runs where parent = ?1 order by run_id limit 1

-- caller_of: the run that started this run, and its status, if it may still need this run
select caller.run_id, caller.status from runs join runs as caller on caller.run_id = runs.origin
where runs.key = ?1 and caller.status not in ('completed', 'cancelled')

-- asked_of: a request that waits in the inbox of a run
select verb from inbox where run = ?1 and taken = 0 order by key limit 1

-- highest_run: the highest key of any run
select coalesce(max(key), 0) from runs

-- delete_labels: delete the labels of a run
delete from labels where (name, value, created_at, run) in (
    select label.key, label.value, runs.created_at, runs.key from runs, json_each(runs.labels) as label where runs.key = ?1)

-- delete_inbox: delete the inbox of a run
delete from inbox where run = ?1

-- delete_snapshots: delete the snapshots of a run
delete from snapshots where run = ?1

-- delete_trimmed: delete the record of what upkeep removed from the log of a run
delete from trimmed where run = ?1

-- delete_run: delete the run row
delete from runs where key = ?1

-- fingerprints: the fingerprints of all stored definitions
select fingerprint from definitions order by fingerprint

-- drop_definitions: delete the definitions with these fingerprints (a JSON list), except those that a run row or a refusal refers to
delete from definitions
where fingerprint in (select value from json_each(?1)) and fingerprint not in (select fingerprint from runs)
and fingerprint not in (select fingerprint from refusals)
returning key

-- offers: runs that a worker may take; lanes (flow, queue, priority) are found by index jumps, at most one for each run wanted
with recursive
ready_queues (flow, queue) as (
    select value, (select min(runs.queue) from runs
                   where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                   and (runs.status <> 'pending' or runs.due_at is null)
                   and runs.flow = value)
    from json_each(?1)
    union all
    select flow, (select min(runs.queue) from runs
                  where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                  and (runs.status <> 'pending' or runs.due_at is null)
                  and runs.flow = ready_queues.flow and runs.queue > ready_queues.queue)
    from ready_queues where queue is not null
),
ready_lanes (flow, queue, priority, n) as (
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                         and (runs.status <> 'pending' or runs.due_at is null)
                         and runs.flow = ready_queues.flow and runs.queue = ready_queues.queue), 1
    from ready_queues
    where queue is not null and (?2 is null or queue in (select value from json_each(?2)))
    union all
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                         and (runs.status <> 'pending' or runs.due_at is null)
                         and runs.flow = ready_lanes.flow and runs.queue = ready_lanes.queue
                         and runs.priority < ready_lanes.priority), n + 1
    from ready_lanes where priority is not null and n < ?5
),
due_queues (flow, queue) as (
    select value, (select min(runs.queue) from runs
                   where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                   and runs.flow = value)
    from json_each(?1)
    union all
    select flow, (select min(runs.queue) from runs
                  where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                  and runs.flow = due_queues.flow and runs.queue > due_queues.queue)
    from due_queues where queue is not null
),
due_lanes (flow, queue, priority) as (
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                         and runs.flow = due_queues.flow and runs.queue = due_queues.queue)
    from due_queues
    where queue is not null and (?2 is null or queue in (select value from json_each(?2)))
    union all
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                         and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue
                         and runs.priority < due_lanes.priority)
    from due_lanes where priority is not null
),
asked_queues (flow, queue) as (
    select value, (select min(inbox.queue) from inbox where inbox.taken = 0 and inbox.flow = value) from json_each(?1)
    union all
    select flow, (select min(inbox.queue) from inbox
                  where inbox.taken = 0 and inbox.flow = asked_queues.flow and inbox.queue > asked_queues.queue)
    from asked_queues where queue is not null
),
asked_lanes (flow, queue, priority) as (
    select flow, queue, (select max(inbox.priority) from inbox
                         where inbox.taken = 0 and inbox.flow = asked_queues.flow and inbox.queue = asked_queues.queue)
    from asked_queues
    where queue is not null and (?2 is null or queue in (select value from json_each(?2)))
    union all
    select flow, queue, (select max(inbox.priority) from inbox
                         where inbox.taken = 0 and inbox.flow = asked_lanes.flow and inbox.queue = asked_lanes.queue
                         and inbox.priority < asked_lanes.priority)
    from asked_lanes where priority is not null
),
lost (key) as (select value from json_each(?3))
select key, run_id, flow, queue, priority, seq, fence, why, since
from (
    select *, row_number() over (partition by queue order by priority desc, since, run_id) as n
    from (
        select runs.*, runs.status as why, runs.created_at as since
        from ready_lanes as lane cross join runs on runs.key in (
        select runs.key from runs where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
        and (runs.status <> 'pending' or runs.due_at is null)
        and runs.flow = lane.flow and runs.queue = lane.queue and runs.priority = lane.priority
        order by runs.created_at, runs.run_id limit ?5)
        union all
        select runs.*, case runs.status when 'waiting' then 'due' else runs.status end, runs.due_at
        from due_lanes as lane cross join runs on runs.key in (
        select runs.key from runs where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
        and runs.flow = lane.flow and runs.queue = lane.queue and runs.priority = lane.priority and runs.due_at <= ?4
        order by runs.due_at, runs.run_id limit ?5)
        union all
        select runs.*, case runs.status when 'waiting' then 'due' else runs.status end,
               case when runs.status in ('pending', 'waiting') then coalesce(runs.due_at, runs.created_at)
                    else runs.created_at end
        from lost cross join runs on runs.holder = lost.key
        where runs.flow in (select value from json_each(?1)) and (?2 is null or runs.queue in (select value from json_each(?2)))
        and (runs.status in ('running', 'interrupted') or (runs.status = 'pending' and runs.due_at is null)
             or (runs.status in ('pending', 'waiting') and runs.due_at <= ?4))
        union all
        select runs.*, 'asked', inbox.at
        from asked_lanes as lane cross join inbox on inbox.key in (
        select inbox.key from inbox cross join runs on runs.key = inbox.run
        where inbox.taken = 0 and inbox.flow = lane.flow and inbox.queue = lane.queue and inbox.priority = lane.priority
        and inbox.key = (select oldest.key from inbox as oldest where oldest.run = inbox.run and oldest.taken = 0
                         order by oldest.at, oldest.key limit 1)
        and (runs.holder is null or runs.holder in (select key from lost))
        and (runs.status in ('paused', 'failed') or (runs.status = 'waiting' and runs.due_at is null)
             or (runs.status in ('pending', 'waiting') and runs.due_at > ?4))
        order by inbox.at, inbox.run_id limit ?5)
        cross join runs on runs.key = inbox.run
    )
)
where n <= ?5 order by priority desc, since, run_id

-- next_due: when the first matching run is due, leaving out some queues and run ids; and whether any queue has a limit
with recursive
due_queues (flow, queue) as (
    select value, (select min(runs.queue) from runs
                   where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                   and runs.flow = value)
    from json_each(?1)
    union all
    select flow, (select min(runs.queue) from runs
                  where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                  and runs.flow = due_queues.flow and runs.queue > due_queues.queue)
    from due_queues where queue is not null
),
due_lanes (flow, queue, priority) as (
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                         and runs.flow = due_queues.flow and runs.queue = due_queues.queue)
    from due_queues
    where queue is not null and (?2 is null or queue in (select value from json_each(?2)))
    union all
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                         and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue
                         and runs.priority < due_lanes.priority)
    from due_lanes where priority is not null
)
select min(due_at), exists (select 1 from queues) from (
    select (select min(runs.due_at) from runs
            where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
            and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue and runs.priority = due_lanes.priority
            and runs.run_id not in (select value from json_each(?5))) as due_at
    from due_lanes where due_lanes.queue not in (select value from json_each(?4))
    union all
    select runs.due_at from json_each(?3) as lost cross join runs on runs.holder = lost.value
    where runs.status in ('pending', 'waiting') and runs.flow in (select value from json_each(?1))
    and (?2 is null or runs.queue in (select value from json_each(?2)))
    and runs.queue not in (select value from json_each(?4)) and runs.run_id not in (select value from json_each(?5))
)

-- holders: every engine that holds runs, or recently did
select key, ends_at, ends_at - ttl_s, registered_at, id, host, boot, pid_namespace, pid, process_started, ttl_s, flows, queues,
       version, calls
from (select *, lease_end(expires_at, renewed, ttl_s, boot, pid) as ends_at from holders)

-- release_dead: release all leases of a holder that is dead or has expired
update runs set holder = null where holder = ?1

-- held_by: the leases of a holder
select run_id, fence, seq from runs where holder = (select key from holders where id = ?1) order by run_id

-- held_runs: how many runs of each queue each holder holds
select queue, holder, count(*) from runs where holder is not null group by holder, queue

-- limits: the queues that have a limit
select name, held_max from queues

-- set_limit: set the limit of a queue
insert into queues (name, held_max) values (?1, ?2) on conflict (name) do update set held_max = excluded.held_max

-- drop_limit: remove the limit of a queue
delete from queues where name = ?1

-- queue_names: queues that have a limit, or a run that is not completed or cancelled
select name from queues
union select queue from runs
where status in ('pending', 'running', 'waiting', 'paused', 'interrupted', 'failed') order by 1

-- offered_runs: how many runs of each queue are on offer; lost holders are a JSON list of keys
select queue, count(*) from runs
where (holder is null or holder in (select value from json_each(?1)))
and (status in ('running', 'interrupted') or (status = 'pending' and due_at is null)
     or (status in ('pending', 'waiting') and due_at <= ?2)
     or (status in ('pending', 'waiting', 'paused', 'failed')
         and exists (select 1 from inbox where inbox.run = runs.key and inbox.taken = 0)))
group by queue

-- generation: the id of this store, which a restored copy of it does not share
select value from meta where name = 'generation'

-- new_generation: give a restored copy a new id
update meta set value = ?1 where name = 'generation'

-- renew_fences: release all leases, and make every fence that was given out invalid
update runs set holder = null, fence = fence + ?1

-- drop_holders: delete all holders
delete from holders

-- data_version: a number that changes when another connection has written
pragma data_version

-- add_token: store a new token; selects nothing if there is a token with this id
insert into tokens (id, name, role, kind, digest, created_at, created_by, expires_at, revoked_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
on conflict (id) do nothing returning id

-- token: the token with this id
select id, name, role, kind, digest, created_at, created_by, expires_at, revoked_at from tokens where id = ?1

-- tokens: all tokens, oldest first
select id, name, role, kind, digest, created_at, created_by, expires_at, revoked_at from tokens order by created_at, id

-- revoke_token: revoke a token; selects nothing if there is none, or if it was revoked before
update tokens set revoked_at = ?2 where id = ?1 and revoked_at is null returning id
