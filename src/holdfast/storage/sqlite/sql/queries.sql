-- Every query of the SQLite store. `-- name: what it is for`, then the query. Values are always bound.

-- begin: every transaction that writes takes the write lock first, so that it never fails half-way for want of it
begin immediate

-- begin_reading: what follows sees one moment of the database
begin deferred

-- commit: everything since the begin, or nothing
commit

-- rollback: nothing since the begin
rollback

-- any_table: whether a database holds anything at all
select 1 from sqlite_schema limit 1

-- integrity: what SQLite finds wrong with pages and indexes, or "ok"
pragma integrity_check(100)

-- head: what an append is judged by
select key, seq, fence, status, (select id from holders where holders.key = runs.holder) from runs where run_id = ?1

-- heads: the same for many runs, a JSON list of ids, in their order
select json_group_array(json_array(runs.key, runs.seq, runs.fence, runs.status,
                                   (select id from holders where holders.key = runs.holder)) order by asked.key)
from json_each(?1) as asked left join runs on runs.run_id = asked.value

-- advance_runs: the view of many logs, a JSON list of rows; times are multiples of 2**-22 seconds
update runs set seq = new.cells ->> 1, digest = unhex(new.cells ->> 2), updated_at = (new.cells ->> 3) / 4194304.0,
                fingerprint = new.cells ->> 4, state_version = new.cells ->> 5, active = new.cells ->> 6,
                error = null, rewinds = new.cells ->> 7, due_at = new.cells ->> 8
from (select value as cells from jsonb_each(?1)) as new
where runs.key = new.cells ->> 0

-- write_events: many rows of logs, a JSON list; their salts and digests (48 bytes a row) and their bodies in one piece each
insert into events (key, at, kind, node, iteration, execution, attempt, salt, body, digest)
select cells ->> 0, (cells ->> 1) / 4194304.0, cells ->> 2, cells ->> 3, cells ->> 4, cells ->> 5, cells ->> 6,
       substr(?2, 48 * number + 1, 16), substr(?3, cells ->> 7, cells ->> 8), substr(?2, 48 * number + 17, 32)
from (select key as number, value as cells from jsonb_each(?1))

-- create_run: a new run row
insert into runs (run_id, flow, parent, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,
                  state_version, active, error, rewinds, due_at, fence, holder, queue, priority)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)

-- create_runs: many new run rows, a JSON list; times are multiples of 2**-22 seconds
insert into runs (run_id, flow, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,
                  state_version, active, rewinds, due_at, fence, holder, queue, priority)
select cells ->> 0, cells ->> 1, unhex(cells ->> 2), cells ->> 3, (cells ->> 4) / 4194304.0, cells ->> 5, cells ->> 6,
       unhex(cells ->> 7), (cells ->> 8) / 4194304.0, cells ->> 9, cells ->> 10, cells ->> 11, cells ->> 12, cells ->> 13,
       cells ->> 14, cells ->> 15, cells ->> 16, cells ->> 17
from (select value as cells from jsonb_each(?1))
returning run_id, key

-- label_runs: the labels of many new runs, a JSON list of their keys
insert into labels (run, name, value)
select runs.key, label.key, label.value
from json_each(?1) as new cross join runs on runs.key = new.value cross join json_each(runs.labels) as label

-- label_run: one label of a new run
insert into labels (run, name, value) values (?1, ?2, ?3)

-- advance_run: the view of the log behind an append; no column of an index is touched
update runs set seq = ?2, digest = ?3, updated_at = ?4, fingerprint = ?5, state_version = ?6,
                active = ?7, error = ?8, rewinds = ?9, due_at = ?10
where key = ?1

-- turn_run: the new status of a run, where an append changes it
update runs set status = ?2 where key = ?1

-- turn_runs: the same for many, a JSON list of key, status, and whether the lease is given back
update runs set status = new.cells ->> 1, holder = iif(new.cells ->> 2, null, holder)
from (select value as cells from jsonb_each(?1)) as new
where runs.key = new.cells ->> 0

-- write_event: one row of a log
insert into events (key, at, kind, node, iteration, execution, attempt, salt, body, digest)
values (?1 << 32 | ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)

-- write_snapshot: a stored fold; nothing but a base replaces a base
insert into snapshots (run, seq, base, digest, body) values (?1, ?2, ?3, ?4, ?5)
on conflict (run, seq) do update set base = excluded.base, digest = excluded.digest, body = excluded.body
where excluded.base >= snapshots.base

-- write_definition: a flow's definition, once
insert into definitions (fingerprint, body) values (?1, ?2) on conflict (fingerprint) do nothing

-- take_request: a request leaves the inbox; its id stays
update inbox set taken = ?3, body = '' where run = ?1 and id = ?2

-- appended: whether the row at a seq belongs to an append
select 1 from events
where key = (select key from runs where run_id = ?1) << 32 | ?2 and salt = ?3

-- run_key: whether a run is there
select key from runs where run_id = ?1

-- runs: run rows with their holders; conditions follow
select runs.run_id, runs.flow, runs.status, runs.seq, runs.digest, runs.fingerprint, runs.state_version, runs.created_at,
       runs.updated_at, runs.input_digest, runs.labels, runs.parent, runs.active, runs.error, runs.rewinds, runs.due_at,
       runs.fence, runs.queue, runs.priority, holders.expires_at, holders.id, holders.host, holders.boot,
       holders.pid_namespace, holders.pid, holders.process_started, holders.ttl_s
from runs left join holders on holders.key = runs.holder
where true

-- runs_of_id: condition: this run
and runs.run_id = ?

-- runs_of_status: condition: one of these statuses, bound as a JSON list
and runs.status in (select value from json_each(?))

-- runs_of_flow: condition: of this flow
and runs.flow = ?

-- runs_of_parent: condition: forked from this run
and runs.parent = ?

-- runs_of_queue: condition: of this queue
and runs.queue = ?

-- runs_of_label: condition: carries this label; repeated for each
and runs.key in (select run from labels where name = ? and value = ?)

-- runs_behind: condition: behind this run in the listing
and (runs.created_at, runs.run_id) < (select created_at, run_id from runs where run_id = ?)

-- runs_newest: order and length of a listing
order by runs.created_at desc, runs.run_id desc limit ?

-- events: a piece of a log
select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
from events where key > (select key from runs where run_id = ?1) << 32
                        | max(?2, coalesce((select base from trimmed where run = (select key from runs where run_id = ?1)), 0))
and key <= (select key from runs where run_id = ?1) << 32 | ?3
order by key limit ?4

-- events_of: a piece of a log, of some kinds (a JSON list, or null) or one node (or null)
select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
from events where key > (select key from runs where run_id = ?1) << 32
                        | max(?2, coalesce((select base from trimmed where run = (select key from runs where run_id = ?1)), 0))
and key <= (select key from runs where run_id = ?1) << 32 | ?3
and (?5 is null or kind in (select value from json_each(?5))) and (?6 is null or node = ?6)
order by key limit ?4

-- snapshot: the latest stored fold within a range
select seq, body, base, digest
from snapshots where run = (select key from runs where run_id = ?1) and seq between ?2 and ?3
order by seq desc limit 1

-- definition: a flow's definition
select body from definitions where fingerprint = ?1

-- lease: what a claim is judged by
select runs.key, runs.seq, runs.fence, holders.key, holders.expires_at, holders.id, holders.host, holders.boot,
       holders.pid_namespace, holders.pid, holders.process_started, holders.ttl_s
from runs left join holders on holders.key = runs.holder
where runs.run_id = ?1

-- take_lease: a run gets a holder and a new fence
update runs set holder = ?2, fence = ?3 where key = ?1

-- release_lease: a run has no holder any more, if it was this one with this fence
update runs set holder = null
where run_id = ?1 and fence = ?3 and holder = (select key from holders where id = ?2)

-- renew_holder: a holder's row, alive until a new time
insert into holders (id, host, boot, pid_namespace, pid, process_started, ttl_s, expires_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
on conflict (id) do update set expires_at = excluded.expires_at, ttl_s = excluded.ttl_s
returning key

-- renew_alone: the same in a transaction of its own, unless the schema is newer than is known
insert into holders (id, host, boot, pid_namespace, pid, process_started, ttl_s, expires_at)
select ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 from pragma_user_version where user_version <= ?9
on conflict (id) do update set expires_at = excluded.expires_at, ttl_s = excluded.ttl_s
returning key

-- holder_key: the row of a holder
select key from holders where id = ?1

-- release_all: nothing is held by this holder any more
update runs set holder = null where holder = (select key from holders where id = ?1)

-- drop_holder: a holder that is gone for good
delete from holders where id = ?1

-- drop_idle_holder: a dead holder, once it holds nothing
delete from holders where key = ?1 and not exists (select 1 from runs where holder = ?1)

-- drop_old_holders: holders that ran out long ago and hold nothing
delete from holders where expires_at < ?1 and not exists (select 1 from runs where runs.holder = holders.key)

-- post: leave a request; nothing where it was left before
insert into inbox (run, id, verb, body, "by", reason, at, taken) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)
on conflict (run, id) do nothing returning key

-- posted: a request that was left, whether or not it has been taken since
select key from inbox where run = (select key from runs where run_id = ?1) and id = ?2

-- inbox: what waits for the runs of a holder; starts from the requests, of which there are mostly none
select inbox.id, inbox.verb, inbox.body, inbox."by", inbox.reason, runs.run_id, inbox.at
from inbox cross join runs on runs.key = inbox.run cross join holders on holders.key = runs.holder
where inbox.taken = 0 and holders.id = ?1
order by inbox.key

-- trimmed: what was taken from a log
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

-- drop_snapshot: a stored fold that is only there for speed
delete from snapshots where run = ?1 and seq = ?2 and base = 0

-- retire: checkpoints before a place are no resume points any more
insert into trimmed (run, retired, retired_at, base, base_at, base_digest, place) values (?1, ?2, ?3, 0, 0, x'', '')
on conflict (run) do update set retired = excluded.retired, retired_at = excluded.retired_at
where excluded.retired > trimmed.retired

-- compactable: what a compaction is judged by
select runs.key, runs.seq, runs.fence, (select id from holders where holders.key = runs.holder),
       coalesce((select nullif(base, 0) from trimmed where run = runs.key),
                (select events.seq - 1 from events where events.key > runs.key << 32 order by events.key limit 1))
from runs where run_id = ?1

-- drop_snapshots_upto: every stored fold up to a place, also a base
delete from snapshots where run = ?1 and seq <= ?2

-- rebase: a log begins behind another place
insert into trimmed (run, retired, retired_at, base, base_at, base_digest, place) values (?1, 0, 0, ?2, ?3, ?4, ?5)
on conflict (run) do update set base = excluded.base, base_at = excluded.base_at, base_digest = excluded.base_digest,
                                place = excluded.place

-- adopt: what was taken from a log before its run was archived
insert into trimmed (run, retired, retired_at, base, base_at, base_digest, place)
select key, ?2, ?3, ?4, ?5, ?6, ?7 from runs where run_id = ?1
on conflict (run) do update set retired = excluded.retired, retired_at = excluded.retired_at, base = excluded.base,
                                base_at = excluded.base_at, base_digest = excluded.base_digest, place = excluded.place

-- adopt_fence: no lower fence than were given out before its run was archived
update runs set fence = ?2 where run_id = ?1 and fence < ?2 and holder is null

-- leave: events up to a place are nobody's any more
insert into remains (run, upto) values (?1, ?2) on conflict (run) do update set upto = max(upto, excluded.upto)

-- remains: a log of which something is left
select run, upto from remains order by run limit 1

-- remains_above: logs of which something is left and whose number is higher than this
select run from remains where run > ?1

-- sweep_events: the first of those events go
delete from events where key in (
    select key from events where key > ?1 << 32 and key <= ?1 << 32 | ?2 order by key limit ?3)
returning key

-- swept: nothing of this log is left
delete from remains where run = ?1

-- unswept: how many logs there are of which something is left
select count(*) from remains

-- child_of: a run that names this one as its parent
select run_id from runs where parent = ?1 order by run_id limit 1

-- asked_of: what waits in the inbox of a run that can still be carried on
select inbox.verb from inbox join runs on runs.key = inbox.run
where inbox.run = ?1 and inbox.taken = 0 and runs.status not in ('completed', 'cancelled') order by inbox.key limit 1

-- highest_run: the highest number in use
select coalesce(max(key), 0) from runs

-- delete_labels: what a run was found by
delete from labels where (name, value, run) in (
    select label.key, label.value, runs.key from runs, json_each(runs.labels) as label where runs.key = ?1)

-- delete_inbox: what was wanted of a run
delete from inbox where run = ?1

-- delete_snapshots: the stored folds of a run
delete from snapshots where run = ?1

-- delete_trimmed: what was known of its trimming
delete from trimmed where run = ?1

-- delete_run: the row of a run
delete from runs where key = ?1

-- fingerprints: of every definition
select fingerprint from definitions order by fingerprint

-- drop_definitions: definitions (a JSON list of fingerprints) that the row of no run names
delete from definitions
where fingerprint in (select value from json_each(?1)) and fingerprint not in (select fingerprint from runs)
returning key

-- offers: what may be taken; lanes (flow, queue, priority) are found by jumps, and no more than runs are wanted: in each is one
with recursive
ready_queues (flow, queue) as (
    select value, (select min(runs.queue) from runs
                   where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                   and runs.flow = value)
    from json_each(?1)
    union all
    select flow, (select min(runs.queue) from runs
                  where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                  and runs.flow = ready_queues.flow and runs.queue > ready_queues.queue)
    from ready_queues where queue is not null
),
ready_lanes (flow, queue, priority, n) as (
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                         and runs.flow = ready_queues.flow and runs.queue = ready_queues.queue), 1
    from ready_queues
    where queue is not null and (?2 is null or queue in (select value from json_each(?2)))
    union all
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                         and runs.flow = ready_lanes.flow and runs.queue = ready_lanes.queue
                         and runs.priority < ready_lanes.priority), n + 1
    from ready_lanes where priority is not null and n < ?5
),
due_queues (flow, queue) as (
    select value, (select min(runs.queue) from runs
                   where runs.holder is null and runs.status = 'waiting' and runs.due_at is not null
                   and runs.flow = value)
    from json_each(?1)
    union all
    select flow, (select min(runs.queue) from runs
                  where runs.holder is null and runs.status = 'waiting' and runs.due_at is not null
                  and runs.flow = due_queues.flow and runs.queue > due_queues.queue)
    from due_queues where queue is not null
),
due_lanes (flow, queue, priority) as (
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status = 'waiting' and runs.due_at is not null
                         and runs.flow = due_queues.flow and runs.queue = due_queues.queue)
    from due_queues
    where queue is not null and (?2 is null or queue in (select value from json_each(?2)))
    union all
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status = 'waiting' and runs.due_at is not null
                         and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue
                         and runs.priority < due_lanes.priority)
    from due_lanes where priority is not null
),
lost (key) as (select value from json_each(?3))
select key, run_id, flow, queue, priority, seq, fence, why, since
from (
    select *, row_number() over (partition by queue order by priority desc, since, run_id) as n
    from (
        select runs.*, runs.status as why, runs.created_at as since
        from ready_lanes as lane cross join runs on runs.key in (
        select runs.key from runs where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
        and runs.flow = lane.flow and runs.queue = lane.queue and runs.priority = lane.priority
        order by runs.created_at, runs.run_id limit ?5)
        union all
        select runs.*, 'due', runs.due_at
        from due_lanes as lane cross join runs on runs.key in (
        select runs.key from runs where runs.holder is null and runs.status = 'waiting' and runs.due_at is not null
        and runs.flow = lane.flow and runs.queue = lane.queue and runs.priority = lane.priority and runs.due_at <= ?4
        order by runs.due_at, runs.run_id limit ?5)
        union all
        select runs.*, case runs.status when 'waiting' then 'due' else runs.status end,
               case runs.status when 'waiting' then runs.due_at else runs.created_at end
        from lost cross join runs on runs.holder = lost.key
        where runs.flow in (select value from json_each(?1)) and (?2 is null or runs.queue in (select value from json_each(?2)))
        and (runs.status in ('pending', 'running', 'interrupted') or (runs.status = 'waiting' and runs.due_at <= ?4))
        union all
        select runs.*, 'asked', min(inbox.at)
        from inbox cross join runs on runs.key = inbox.run
        where inbox.taken = 0 and (runs.holder is null or runs.holder in (select key from lost))
        and runs.flow in (select value from json_each(?1)) and (?2 is null or runs.queue in (select value from json_each(?2)))
        and (runs.status in ('paused', 'failed') or (runs.status = 'waiting' and coalesce(runs.due_at > ?4, true)))
        group by runs.key
    )
)
where n <= ?5 order by priority desc, since, run_id

-- next_due: when the first of some runs falls due, but for some queues and some ids, and whether any queue has a limit
with recursive
due_queues (flow, queue) as (
    select value, (select min(runs.queue) from runs
                   where runs.holder is null and runs.status = 'waiting' and runs.due_at is not null
                   and runs.flow = value)
    from json_each(?1)
    union all
    select flow, (select min(runs.queue) from runs
                  where runs.holder is null and runs.status = 'waiting' and runs.due_at is not null
                  and runs.flow = due_queues.flow and runs.queue > due_queues.queue)
    from due_queues where queue is not null
),
due_lanes (flow, queue, priority) as (
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status = 'waiting' and runs.due_at is not null
                         and runs.flow = due_queues.flow and runs.queue = due_queues.queue)
    from due_queues
    where queue is not null and (?2 is null or queue in (select value from json_each(?2)))
    union all
    select flow, queue, (select max(runs.priority) from runs
                         where runs.holder is null and runs.status = 'waiting' and runs.due_at is not null
                         and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue
                         and runs.priority < due_lanes.priority)
    from due_lanes where priority is not null
)
select min(due_at), exists (select 1 from queues) from (
    select (select min(runs.due_at) from runs
            where runs.holder is null and runs.status = 'waiting' and runs.due_at is not null
            and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue and runs.priority = due_lanes.priority
            and runs.run_id not in (select value from json_each(?5))) as due_at
    from due_lanes where due_lanes.queue not in (select value from json_each(?4))
    union all
    select runs.due_at from json_each(?3) as lost cross join runs on runs.holder = lost.value
    where runs.status = 'waiting' and runs.flow in (select value from json_each(?1))
    and (?2 is null or runs.queue in (select value from json_each(?2)))
    and runs.queue not in (select value from json_each(?4)) and runs.run_id not in (select value from json_each(?5))
)

-- holders: everyone who holds runs, or lately did
select key, expires_at, id, host, boot, pid_namespace, pid, process_started, ttl_s from holders

-- release_dead: nothing is held by this holder any more
update runs set holder = null where holder = ?1

-- held_by: the leases in a holder's name
select run_id, fence, seq from runs where holder = (select key from holders where id = ?1) order by run_id

-- held_runs: how many runs of each queue each holder has
select queue, holder, count(*) from runs where holder is not null group by holder, queue

-- limits: the queues that have a limit
select name, held_max from queues

-- set_limit: the limit of a queue
insert into queues (name, held_max) values (?1, ?2) on conflict (name) do update set held_max = excluded.held_max

-- drop_limit: a queue without a limit
delete from queues where name = ?1

-- queue_names: queues with a limit, or with a run that has not ended
select name from queues
union select queue from runs
where status in ('pending', 'running', 'waiting', 'paused', 'interrupted', 'failed') order by 1

-- offered_runs: how many runs of each queue are on offer; lost holders are a JSON list of keys
select queue, count(*) from runs
where (holder is null or holder in (select value from json_each(?1)))
and (status in ('pending', 'running', 'interrupted') or (status = 'waiting' and due_at <= ?2)
     or (status in ('waiting', 'paused', 'failed')
         and exists (select 1 from inbox where inbox.run = runs.key and inbox.taken = 0)))
group by queue

-- generation: which store this is
select value from meta where name = 'generation'

-- new_generation: no longer the store that a copy was made of
update meta set value = ?1 where name = 'generation'

-- renew_fences: nobody holds anything, and no fence of before is good
update runs set holder = null, fence = fence + ?1

-- drop_holders: everyone who holds runs is forgotten
delete from holders

-- data_version: grows when another connection has written
pragma data_version
