-- Every query of the PostgreSQL store: a line `-- name: purpose`, then the query. Values are always bound as parameters. The
-- schema is called `holdfast` here; for a store in another schema, that name is replaced.

-- begin: start a transaction with the isolation level we rely on; a server that was made read-only stays read-only
begin isolation level read committed

-- commit: make everything since `begin` durable and visible
commit

-- rollback: undo everything since `begin`
rollback

-- server: the facts of a server that are checked before anything is written to it; the id of its backend process, and its time
select current_setting('server_version_num')::bigint, pg_is_in_recovery(), current_setting('fsync'),
       current_setting('synchronous_commit'), current_setting('server_encoding'), pg_backend_pid(),
       extract(epoch from clock_timestamp())::float8

-- guard: set the timeouts of this transaction, and return whether its commit will be durable
select set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true),
       current_setting('fsync'), current_setting('synchronous_commit'), extract(epoch from clock_timestamp())::float8

-- end_stuck: end transactions that lock runs and have waited long for their client to send the rest of a pipeline
select pg_terminate_backend(pid)
from pg_stat_activity
where datname = current_database() and usename = current_user and state = 'active' and wait_event = 'ClientRead'
and pid <> pg_backend_pid() and greatest(xact_start, state_change) < clock_timestamp() - $1::text::interval
and exists (select from pg_locks where pg_locks.pid = pg_stat_activity.pid and relation = 'holdfast.runs'::regclass)

-- time: the database's clock
select extract(epoch from clock_timestamp())::float8

-- meta_table: whether a schema contains a store
select to_regclass('holdfast.meta')::text

-- version: how many migrations were applied to a schema
select value::bigint from holdfast.meta where name = 'schema_version'

-- set_version: record how many migrations were applied to a schema
insert into holdfast.meta (name, value) values ('schema_version', $1)
on conflict (name) do update set value = excluded.value

-- lock_schema: lock a schema, so that only one process at a time creates or migrates it
select pg_advisory_xact_lock(hashtextextended($1::text, 0))

-- schema_holds: whether a schema exists, and the name of one relation in it, if any
select to_regnamespace('holdfast')::text, (select relname::text from pg_class where relnamespace = to_regnamespace('holdfast') limit 1)

-- create_schema: create the schema for the tables
create schema holdfast

-- faults: indexes that a failed build left unusable, and pages with wrong checksums
select 'index ' || indexrelid::regclass || ' is not valid; run: reindex index ' || indexrelid::regclass
from pg_index join pg_class on pg_class.oid = indrelid
where relnamespace = to_regnamespace('holdfast') and not (indisvalid and indisready)
union all
select checksum_failures || ' pages of this database were found damaged; put a copy back'
from pg_stat_database where datname = current_database() and checksum_failures > 0
union all
select 'full_page_writes is off: a power loss may damage pages; switch it on' where current_setting('full_page_writes') = 'off'

-- head: the columns that decide whether appends are accepted; locked in the order of run ids, so that batches cannot deadlock
select run_id, key, seq, fence, holder from holdfast.runs where run_id = any($1::text[]) order by run_id for update

-- known_holders: which of these holders the store has; their rows cannot be deleted until the transaction ends
select id from holdfast.holders where id = any($1::text[]) order by id for key share

-- append_one: a whole append in one statement and transaction; null if it is refused. Parameters have types, as casts cost time
select holdfast.append_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
                           $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42,
                           $43, $44, $45, $46, $47)

-- create_runs: insert new run rows, except those whose run id is taken
insert into holdfast.runs (run_id, flow, parent, origin, input_digest, labels, created_at, status, seq, digest, updated_at,
                           fingerprint, state_version, active, error, rewinds, due_at, fence, holder, queue, priority, asks,
                           active_s, situation, ended_at)
select new.*, case when new.status in ('completed', 'failed', 'cancelled') then new.updated_at end
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::float8[], $8::text[], $9::bigint[],
            $10::bytea[], $11::float8[], $12::text[], $13::bigint[], $14::text[], $15::text[], $16::text[], $17::float8[],
            $18::bigint[], $19::text[], $20::text[], $21::bigint[], $22::bigint[], $23::float8[], $24::text[])
     as new(run_id, flow, parent, origin, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,
            state_version, active, error, rewinds, due_at, fence, holder, queue, priority, asks, active_s, situation)
on conflict (run_id) do nothing
returning run_id, key

-- label_runs: insert the labels of new runs
insert into holdfast.labels (run, name, value, created_at)
select * from unnest($1::bigint[], $2::text[], $3::text[], $4::float8[])

-- advance_runs: update run rows after a batch of appends; an index is written only if an indexed column changes
update holdfast.runs set
    seq = new.seq, digest = new.digest, updated_at = new.at, status = new.status, fingerprint = new.fingerprint,
    state_version = new.state_version, active = new.active, error = new.error, rewinds = new.rewinds, due_at = new.due_at,
    holder = new.holder, asks = new.asks, active_s = new.active_s, situation = new.situation,
    ended_at = case when new.status not in ('completed', 'failed', 'cancelled') then null
                    when runs.status = new.status then runs.ended_at else new.at end
from unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::float8[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::text[],
            $10::text[], $11::float8[], $12::text[], $13::bigint[], $14::float8[], $15::text[])
     as new(key, seq, digest, at, status, fingerprint, state_version, active, error, rewinds, due_at, holder, asks, active_s,
            situation)
where runs.key = new.key

-- write_events: insert the events of logs
insert into holdfast.events (run, seq, at, kind, node, iteration, execution, attempt, salt, body, digest)
select * from unnest($1::bigint[], $2::bigint[], $3::float8[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
                     $9::bytea[], $10::bytea[], $11::bytea[])

-- write_snapshot: store a snapshot; a compaction base is replaced only by another compaction base
insert into holdfast.snapshots (run, seq, base, digest, body) values ($1, $2, $3, $4, $5)
on conflict (run, seq) do update set base = excluded.base, digest = excluded.digest, body = excluded.body
where excluded.base >= snapshots.base

-- write_definition: store a flow's definition, unless it is stored already
insert into holdfast.definitions (fingerprint, body) values ($1, $2) on conflict (fingerprint) do nothing

-- take_requests: mark requests as handled; their rows and ids stay, so that posting them again has no effect
update holdfast.inbox set taken = $3, body = '' where run = $1 and id = any($2::text[]) and taken = 0

-- close_inboxes: mark the requests that still wait as handled and unmet, because their runs are over
select holdfast.close_inbox(run, seq) from unnest($1::bigint[], $2::bigint[]) as ended(run, seq)

-- appended: whether the event at a seq was written by this append; the first salt of an append is its id
select 1 from holdfast.events
where run = (select key from holdfast.runs where run_id = $1) and seq = $2::bigint and salt = $3

-- run_key: a run's numeric key; no row if the store does not have the run
select key from holdfast.runs where run_id = $1

-- lock_run: lock a run, so that it cannot be deleted, completed or cancelled until the transaction ends
select key from holdfast.runs where run_id = $1 for key share

-- runs: run rows with their holders; the queries below say which of them. Parameters are numbered when the parts are joined
select runs.run_id, runs.flow, runs.status, runs.seq, runs.digest, runs.fingerprint, runs.state_version, runs.created_at,
       runs.updated_at, runs.input_digest, runs.labels, runs.parent, runs.origin, runs.active, runs.error, runs.rewinds, runs.due_at,
       runs.fence, runs.queue, runs.priority, runs.asks, runs.active_s, runs.situation,
       extract(epoch from clock_timestamp())::float8, holders.expires_at, holders.id, holders.host, holders.boot,
       holders.pid_namespace, holders.pid, holders.process_started, holders.ttl_s, holders.flows, holders.queues, holders.version

-- run_of_id: which: the run with this id
from holdfast.runs left join holdfast.holders on holders.id = runs.holder where runs.run_id = ?

-- page: which: the newest of those that one walk finds between two positions, among the runs of one flow, parent, origin or queue
from (select found.key from (select ?::float8 as since, ?::float8 as at, ?::text as id, ?::text as one) as bound
      cross join lateral (

-- page_end: order and length of a page
) as found order by found.created_at desc, found.run_id desc limit ?::bigint) as found
join holdfast.runs on runs.key = found.key left join holdfast.holders on holders.id = runs.holder
order by runs.created_at desc, runs.run_id desc

-- page_of_statuses: `page` of several walks, one for each status of a list
from (select found.key from (select ?::float8 as since, ?::float8 as at, ?::text as id, ?::text as one) as bound
      cross join unnest(?::text[]) as wanted(value) cross join lateral (

-- page_of_statuses_end: order and length of a page that several walks find
) as found order by found.created_at desc, found.run_id desc limit ?::bigint) as found
join holdfast.runs on runs.key = found.key left join holdfast.holders on holders.id = runs.holder
order by runs.created_at desc, runs.run_id desc

-- walk_ids: a walk over the runs with these ids
select walk.key, walk.created_at, walk.run_id from holdfast.runs as walk
where walk.run_id = any(?::text[])
and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_parent: a walk over the runs that were forked from one run
select walk.key, walk.created_at, walk.run_id from holdfast.runs as walk
where walk.parent = any(array[bound.one])
and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_origin: a walk over the runs that one run started
select walk.key, walk.created_at, walk.run_id from holdfast.runs as walk
where walk.origin = any(array[bound.one])
and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_label: a walk over the runs with a label
select walk.key, walk.created_at, walk.run_id
from (select ?::text collate "C" as name, ?::text collate "C" as value) as label
join holdfast.labels on hashtextextended(labels.name, 0) = hashtextextended(label.name, 0)
                    and hashtextextended(labels.value, 0) = hashtextextended(label.value, 0)
                    and labels.name = label.name and labels.value = label.value
join holdfast.runs as walk on walk.key = labels.run
where labels.created_at between bound.since and bound.at and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_asking: a walk over the runs that ask a question, or may ask one
select walk.key, walk.created_at, walk.run_id from holdfast.runs as walk
where (walk.asks > 0 or (walk.asks is null and walk.status not in ('completed', 'cancelled')))
and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_flow: a walk over the runs of one flow that have a wanted status
select walk.key, walk.created_at, walk.run_id from holdfast.runs as walk
where walk.flow = any(array[bound.one]) and walk.status = wanted.value
and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_queue: a walk over the runs in one queue
select walk.key, walk.created_at, walk.run_id from holdfast.runs as walk
where walk.queue = any(array[bound.one])
and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_status: a walk over the runs that have a wanted status
select walk.key, walk.created_at, walk.run_id from holdfast.runs as walk
where walk.status = any(array[wanted.value])
and walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- walk_prefix: a walk over the few runs whose ids begin with a text; the condition `with_prefix` follows
select walk.key, walk.created_at, walk.run_id from holdfast.runs as walk
where walk.created_at + 0 >= bound.since and (walk.created_at + 0, walk.run_id) < (bound.at, bound.id)

-- walk_age: a walk over all runs
select walk.key, walk.created_at, walk.run_id from holdfast.runs as walk
where walk.created_at >= bound.since and (walk.created_at, walk.run_id) < (bound.at, bound.id)

-- with_status: condition: runs with one of these statuses
and walk.status = any(?::text[])

-- with_flow: condition: runs of this flow
and walk.flow = ?::text

-- with_parent: condition: runs that were forked from this run
and walk.parent = ?::text

-- with_origin: condition: runs that this run started
and walk.origin = ?::text

-- with_queue: condition: runs in this queue
and walk.queue = ?::text

-- without_fingerprint: condition: runs of flows that have another fingerprint
and walk.fingerprint <> ?::text

-- with_label: condition: runs that have this label; used once for each label
and (walk.labels::jsonb -> ?::text) = to_jsonb(?::text)

-- with_prefix: condition: runs whose ids begin with a text: it is given, and the first text after all that begin with it
and walk.run_id >= ?::text and walk.run_id < ?::text

-- with_questions: condition: runs that ask a question, or may ask one
and (walk.asks > 0 or (walk.asks is null and walk.status not in ('completed', 'cancelled')))

-- with_offer: condition: runs that are on offer by their status or time, also those of lost holders
and (walk.holder is null or walk.holder = any(?::text[]))
and (walk.status in ('running', 'interrupted') or (walk.status = 'pending' and walk.due_at is null)
     or (walk.status in ('pending', 'waiting')
         and walk.due_at <= coalesce(?::float8, extract(epoch from clock_timestamp())::float8)))

-- newest: order and length of a walk
order by walk.created_at desc, walk.run_id desc limit ?::bigint

-- newest_of_parent: order and length of `walk_parent`
order by walk.parent desc, walk.created_at desc, walk.run_id desc limit ?::bigint

-- newest_of_origin: order and length of `walk_origin`
order by walk.origin desc, walk.created_at desc, walk.run_id desc limit ?::bigint

-- newest_of_flow: order and length of `walk_flow`
order by walk.flow desc, walk.status desc, walk.created_at desc, walk.run_id desc limit ?::bigint

-- newest_of_queue: order and length of `walk_queue`
order by walk.queue desc, walk.created_at desc, walk.run_id desc limit ?::bigint

-- newest_of_status: order and length of `walk_status`
order by walk.status desc, walk.created_at desc, walk.run_id desc limit ?::bigint

-- newest_of_label: order and length of `walk_label`
order by labels.created_at desc, walk.run_id desc limit ?::bigint

-- newest_of_few: order and length of a walk over few runs; the sums keep PostgreSQL from walking over all runs in that order
order by walk.created_at + 0 desc, walk.run_id || '' desc limit ?::bigint

-- count_prefix: how many runs have an id that begins with a text, counted up to a limit
select count(*) from (select from holdfast.runs where run_id >= $1::text and run_id < $2::text limit $3::bigint) as few

-- count_label: how many runs have a label, counted up to a limit
select count(*) from (select from holdfast.labels
                      where hashtextextended(name, 0) = hashtextextended($1::text collate "C", 0)
                        and hashtextextended(value, 0) = hashtextextended($2::text collate "C", 0) limit $3::bigint) as few

-- count_statuses: how many runs have each status
select status, count(*) from holdfast.runs group by status

-- count_questions: how many questions are open, and how many runs ask one and have not failed
select coalesce(sum(asks), 0)::bigint, count(*) filter (where asks > 0 and status <> 'failed') from holdfast.runs
where asks > 0 or (asks is null and status not in ('completed', 'cancelled'))

-- count_offers: how many runs of each flow and queue are on offer by their status or time, how many of them ask and how many wait
select flow, queue, count(*), count(*) filter (where asks > 0), count(*) filter (where status = 'waiting')
from holdfast.runs
where holder is null and status in ('pending', 'running', 'interrupted') and (status <> 'pending' or due_at is null)
group by flow, queue
union all
select flow, queue, count(*), count(*) filter (where asks > 0), count(*) filter (where status = 'waiting')
from holdfast.runs
where holder is null and status in ('pending', 'waiting') and due_at is not null
and due_at <= coalesce($2::float8, extract(epoch from clock_timestamp())::float8)
group by flow, queue
union all
select flow, queue, count(*), count(*) filter (where asks > 0), count(*) filter (where status = 'waiting')
from holdfast.runs
where holder = any($1::text[])
and (status in ('running', 'interrupted') or (status = 'pending' and due_at is null)
     or (status in ('pending', 'waiting') and due_at <= coalesce($2::float8, extract(epoch from clock_timestamp())::float8)))
group by flow, queue

-- count_ends: the time, and how many runs ended in each of the last minutes, by status
with now (at) as (select coalesce($1::float8, extract(epoch from clock_timestamp())::float8))
select now.at, ends.minute, ends.status, ends.count
from now left join lateral (
    select floor(ended_at / 60)::bigint as minute, status, count(*) as count from holdfast.runs
    where ended_at is not null and ended_at >= (floor(now.at / 60) - $2::bigint) * 60 group by 1, 2) as ends on true

-- events: the events of a log between two seqs
select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
from holdfast.events
where run = (select key from holdfast.runs where run_id = $1) and seq <= $3::bigint
  and seq > greatest($2::bigint, (select base from holdfast.trimmed
                                  where trimmed.run = (select key from holdfast.runs where run_id = $1)))
order by seq limit $4::bigint

-- events_of: the events of a log between two seqs, of some kinds (or null) and of one node (or null)
select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
from holdfast.events
where run = (select key from holdfast.runs where run_id = $1) and seq <= $3::bigint
  and seq > greatest($2::bigint, (select base from holdfast.trimmed
                                  where trimmed.run = (select key from holdfast.runs where run_id = $1)))
  and ($5::text[] is null or kind = any($5)) and ($6::text is null or node = $6)
order by seq limit $4::bigint

-- feed: the ends of many logs, each with its holder and with some events after a seq
select runs.run_id, runs.seq, runs.status, extract(epoch from clock_timestamp())::float8, holders.expires_at, holders.id,
       holders.host, holders.boot, holders.pid_namespace, holders.pid, holders.process_started, holders.ttl_s,
       holders.flows, holders.queues, holders.version,
       news.seq, news.at, news.kind, news.node, news.iteration, news.execution, news.attempt, news.salt, news.body, news.digest
from unnest($1::text[], $2::bigint[]) as wanted(run_id, after)
join holdfast.runs on runs.run_id = wanted.run_id collate "C"
left join holdfast.holders on holders.id = runs.holder
left join lateral (
    select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
    from holdfast.events
    where runs.seq > wanted.after and events.run = runs.key
      and seq > greatest(wanted.after, (select base from holdfast.trimmed where trimmed.run = runs.key))
    order by seq limit $3::bigint) as news on true
order by runs.run_id, news.seq

-- snapshot: the latest snapshot within some ranges of seqs
select snapshots.seq, snapshots.body, snapshots.base, snapshots.digest
from holdfast.snapshots
join unnest($2::bigint[], $3::bigint[]) as span(first, last) on snapshots.seq between span.first and span.last
where run = (select key from holdfast.runs where run_id = $1)
order by snapshots.seq desc limit 1

-- definition: a flow's definition
select body from holdfast.definitions where fingerprint = $1

-- lease: the columns that decide whether a claim of a run succeeds; locked, so that two claims never overlap
select runs.key, runs.seq, runs.fence, coalesce($2::float8, extract(epoch from clock_timestamp())::float8), runs.holder
from holdfast.runs where runs.run_id = $1 for update

-- claim_holders: lock the current holder and the claimant, so that neither renews; always in the order of ids, to avoid deadlocks
select expires_at, id, host, boot, pid_namespace, pid, process_started, ttl_s, flows, queues, version
from holdfast.holders where id = any($1::text[])
order by id for no key update

-- take_lease: give a run a holder and a new fence
update holdfast.runs set holder = $2, fence = $3 where key = $1

-- release_lease: clear the holder of a run, if it is this holder with this fence
with left_alone as (
    update holdfast.runs set holder = null where run_id = $1 and holder = $2 and fence = $3 returning key)
select holdfast.tell(array_agg(key)) from left_alone

-- renew_holder: insert or update the row of a holder, which now expires later
insert into holdfast.holders (id, host, boot, pid_namespace, pid, process_started, ttl_s, expires_at, flows, queues, version,
                              registered_at, calls)
values ($1, $2, $3, $4, $5, $6, $7::float8, coalesce($8::float8, extract(epoch from clock_timestamp())::float8) + $7::float8,
        $9, $10, $11, coalesce($8::float8, extract(epoch from clock_timestamp())::float8), $12)
on conflict (id) do update set expires_at = excluded.expires_at, ttl_s = excluded.ttl_s,
    flows = excluded.flows, queues = excluded.queues, version = excluded.version, calls = excluded.calls

-- renew_alone: `renew_holder` as its own transaction; does nothing if the schema is too new or the commit would not be durable
with found as (
    select coalesce((select value::bigint from holdfast.meta where name = 'schema_version'), 0) as version,
           current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit,
           set_config('lock_timeout', $13, true) as lock_wait
), renewed as (
    insert into holdfast.holders (id, host, boot, pid_namespace, pid, process_started, ttl_s, expires_at, flows, queues, version,
                                  registered_at, calls)
    select $1::text, $2::text, $3::text, $4::text, $5::bigint, $6::text, $7::float8,
           coalesce($8::float8, extract(epoch from clock_timestamp())::float8) + $7::float8, $9::text, $10::text, $11::text,
           coalesce($8::float8, extract(epoch from clock_timestamp())::float8), $12::text
    from found
    where lock_wait is not null and found.version <= $14::bigint and ($15::boolean or 'off' not in (fsync, synchronous_commit))
    on conflict (id) do update set expires_at = excluded.expires_at, ttl_s = excluded.ttl_s,
    flows = excluded.flows, queues = excluded.queues, version = excluded.version, calls = excluded.calls
)
select version, fsync, synchronous_commit, extract(epoch from clock_timestamp())::float8 from found

-- release_all: release all leases of a holder
update holdfast.runs set holder = null
where key in (select key from holdfast.runs where holder = $1 order by run_id for update)

-- drop_holder: delete a holder, which has ended
delete from holdfast.holders where id = $1

-- drop_idle_holder: delete a dead holder that holds no run
delete from holdfast.holders where id = $1 and not exists (select from holdfast.runs where holder = $1)

-- drop_old_holders: delete holders that expired long ago and hold no run
delete from holdfast.holders
where expires_at < coalesce($1::float8, extract(epoch from clock_timestamp())::float8) - $2::float8
  and not exists (select from holdfast.runs where runs.holder = holders.id)

-- drop_old_refusals: delete refusals of holders that expired long ago, and of runs that have moved since or were deleted
delete from holdfast.refusals
where exists (select from holdfast.holders where holders.id = refusals.holder
              and expires_at < coalesce($1::float8, extract(epoch from clock_timestamp())::float8) - $2::float8)
   or not exists (select from holdfast.runs where runs.key = refusals.run and runs.seq = refusals.seq)

-- refuse: record that a holder refuses a run as it is at a seq; does nothing if the run has moved, or the holder is not registered
insert into holdfast.refusals (holder, run, seq, fingerprint, too_new, reason, at)
select $2, runs.key, $3::bigint, $4, $5::boolean, $6, coalesce($7::float8, extract(epoch from clock_timestamp())::float8)
from holdfast.runs, holdfast.holders where runs.run_id = $1 and runs.seq = $3::bigint and holders.id = $2
for key share of holders
on conflict (holder, run) do update set seq = excluded.seq, fingerprint = excluded.fingerprint, too_new = excluded.too_new,
    reason = excluded.reason, at = excluded.at

-- refusals_of: the refusals of these runs, if the runs have not moved since
select refusals.holder, runs.run_id, refusals.holder, refusals.seq, refusals.fingerprint, refusals.too_new, refusals.reason,
       refusals.at
from holdfast.runs join holdfast.refusals on refusals.run = runs.key and refusals.seq = runs.seq
where runs.run_id = any($1::text[]) order by refusals.at, refusals.holder

-- refusals: the first refusals of runs that have not moved since
select refusals.holder, runs.run_id, refusals.holder, refusals.seq, refusals.fingerprint, refusals.too_new, refusals.reason,
       refusals.at
from holdfast.refusals join holdfast.runs on runs.key = refusals.run and runs.seq = refusals.seq
order by refusals.holder desc, refusals.run desc limit $1::bigint

-- delete_refusals: delete the refusals of a run
delete from holdfast.refusals where run = $1

-- posted: the columns that decide whether a request is put into the inbox of a run: those of the run, and of a request of that id
select runs.key, runs.status, inbox.verb, inbox.digest
from holdfast.runs left join holdfast.inbox on inbox.run = runs.key and inbox.id = $2 where runs.run_id = $1

-- post: put a request into the inbox of a run; no row is returned if the request is there already
insert into holdfast.inbox (run, id, verb, body, "by", reason, at, taken, digest, run_id, flow, queue, priority)
select key, $2, $3, $4, $5, $6, coalesce($7::float8, extract(epoch from clock_timestamp())::float8), 0, $8,
       run_id, flow, queue, priority
from holdfast.runs where key = $1
on conflict (run, id) do nothing returning key

-- lock_runs: lock runs in the order of their ids, so that none can be deleted, completed or cancelled until the transaction ends
select run_id, key, status from holdfast.runs where run_id = any($1::text[]) order by run_id for key share

-- posted_all: which of these requests are in the inboxes of these runs
select inbox.run, inbox.id, inbox.verb, inbox.digest
from unnest($1::bigint[], $2::text[]) as given(run, id) join holdfast.inbox on inbox.run = given.run and inbox.id = given.id

-- post_all: put requests into the inboxes of many runs; no row is returned for a request that is there already
insert into holdfast.inbox (run, id, verb, body, "by", reason, at, taken, digest, run_id, flow, queue, priority)
select given.run, given.id, given.verb, given.body, given."by", given.reason,
       coalesce(given.at, extract(epoch from clock_timestamp())::float8), 0, given.digest,
       runs.run_id, runs.flow, runs.queue, runs.priority
from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::float8[], $8::bytea[])
     as given(run, id, verb, body, "by", reason, at, digest)
join holdfast.runs on runs.key = given.run
on conflict (run, id) do nothing returning run, id

-- post_along: put requests into inboxes, except those that are there already or whose run is over or does not exist; locks no run
insert into holdfast.inbox (run, id, verb, body, "by", reason, at, taken, digest, run_id, flow, queue, priority)
select runs.key, given.id, given.verb, given.body, given."by", given.reason, given.at, 0, given.digest,
       runs.run_id, runs.flow, runs.queue, runs.priority
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::float8[], $8::bytea[])
     as given(run_id, id, verb, body, "by", reason, at, digest)
join holdfast.runs on runs.run_id = given.run_id and runs.status not in ('completed', 'cancelled')
order by runs.run_id, given.id
on conflict (run, id) do nothing

-- close_strays: mark requests as unmet that an append posted while their runs ended, and delete those whose runs were deleted
with strays as (
    select inbox.key, runs.key as run, runs.seq
    from holdfast.inbox left join holdfast.runs on runs.key = inbox.run
    where inbox.taken = 0 and (runs.key is null or runs.status in ('completed', 'cancelled'))
    for update of inbox skip locked
), deleted as (
    delete from holdfast.inbox using strays where inbox.key = strays.key and strays.run is null
)
update holdfast.inbox set taken = strays.seq, unmet = true, body = ''
from strays where inbox.key = strays.key and strays.run is not null

-- inbox: requests that wait for the runs of a holder
select inbox.id, inbox.verb, inbox.body, inbox."by", inbox.reason, runs.run_id, inbox.at, inbox.taken, inbox.unmet
from holdfast.inbox join holdfast.runs on runs.key = inbox.run
where inbox.taken = 0 and runs.holder = $1 and runs.status not in ('completed', 'cancelled')
order by inbox.key

-- inbox_of_held: requests that wait for one run, if this holder holds it
select inbox.id, inbox.verb, inbox.body, inbox."by", inbox.reason, runs.run_id, inbox.at, inbox.taken, inbox.unmet
from holdfast.inbox join holdfast.runs on runs.key = inbox.run
where runs.run_id = $2 and inbox.taken = 0 and runs.holder = $1 and runs.status not in ('completed', 'cancelled')
order by inbox.key

-- inbox_of_many: requests that wait for one of these runs
select inbox.id, inbox.verb, inbox.body, inbox."by", inbox.reason, runs.run_id, inbox.at, inbox.taken, inbox.unmet
from holdfast.inbox join holdfast.runs on runs.key = inbox.run
where runs.run_id = any($1::text[]) and inbox.taken = 0 and runs.status not in ('completed', 'cancelled')
order by inbox.key

-- inbox_of: all requests that a run ever got; one that waits for a run that is over came while it ended, and is unmet
select inbox.id, inbox.verb, case when inbox.taken = 0 and runs.status in ('completed', 'cancelled') then '{}' else inbox.body end,
       inbox."by", inbox.reason, runs.run_id, inbox.at,
       case when inbox.taken = 0 and runs.status in ('completed', 'cancelled') then runs.seq else inbox.taken end,
       inbox.unmet or (inbox.taken = 0 and runs.status in ('completed', 'cancelled'))
from holdfast.inbox join holdfast.runs on runs.key = inbox.run
where runs.run_id = $1
order by inbox.key

-- keep_blob: renew the time at which a blob was last put; no row is returned if the blob is missing or damaged
update holdfast.blobs set put_at = extract(epoch from clock_timestamp())
where digest = $1 and sha256(body) = $2 returning digest

-- put_blob: store a blob, replacing a damaged one
insert into holdfast.blobs (digest, put_at, body) values ($1, extract(epoch from clock_timestamp()), $2)
on conflict (digest) do update set put_at = excluded.put_at, body = excluded.body

-- get_blob: the stored bytes of a blob
select body from holdfast.blobs where digest = $1

-- digests: the digests of the next blobs after a digest, in order
select digest from holdfast.blobs where digest > $1 order by digest limit 1000

-- delete_blob: delete a blob
delete from holdfast.blobs where digest = $1

-- expire_blob: delete a blob if it was last put before a time
delete from holdfast.blobs where digest = $1 and put_at < $2::float8 returning digest

-- spilling: the runs that have partial streams
select distinct run_id from holdfast.spills order by run_id

-- spill: store a piece of a partial stream
insert into holdfast.spills (run_id, stream, data) values ($1, $2, $3)

-- spilled: the partial streams of a run
select stream, string_agg(data, ''::bytea order by key) from holdfast.spills where run_id = $1 group by stream

-- spilled_after: the partial streams of some runs, those with a mark from there on
select spills.run_id, spills.stream, max(spills.key),
       string_agg(spills.data, ''::bytea order by spills.key) filter (where spills.key > coalesce(known.mark, 0)),
       bool_or(spills.key <= known.mark)
from holdfast.spills
left join unnest($2::text[], $3::bytea[], $4::bigint[]) as known(run_id, stream, mark)
  on known.run_id collate "C" = spills.run_id and known.stream = spills.stream
where spills.run_id = any($1::text[])
group by spills.run_id, spills.stream

-- unspill: delete partial streams of a run
delete from holdfast.spills where run_id = $1 and stream = any($2::bytea[])

-- trimmed: what upkeep has removed from the log of a run
select retired, retired_at, base, base_at, base_digest, place
from holdfast.trimmed where run = (select key from holdfast.runs where run_id = $1)

-- snapshot_heads: the snapshots of a run without their bodies
select seq, base, octet_length(body)
from holdfast.snapshots where run = (select key from holdfast.runs where run_id = $1) order by seq

-- referring: events whose bodies may refer to blobs: those that begin with {"$blobs":, and those that are compressed
select seq, body
from holdfast.events
where run = (select key from holdfast.runs where run_id = $1)
  and seq > greatest($2::bigint, (select base from holdfast.trimmed
                                  where trimmed.run = (select key from holdfast.runs where run_id = $1)))
  and (substring(body from 1 for 10) = '\x7b2224626c6f6273223a'::bytea
       or substring(body from 1 for 4) = '\x28b52ffd'::bytea)
order by seq limit $3::bigint

-- drop_snapshots: delete snapshots that only make reading faster
delete from holdfast.snapshots where run = $1 and seq = any($2::bigint[]) and not base

-- retire: record that the run can no longer go back to checkpoints before a seq
insert into holdfast.trimmed (run, retired, retired_at, base, base_at, base_digest, place)
values ($1, $2, coalesce($3::float8, extract(epoch from clock_timestamp())::float8), 0, 0, '', '')
on conflict (run) do update set retired = excluded.retired, retired_at = excluded.retired_at
where excluded.retired > trimmed.retired

-- compactable: the columns that decide whether a run may be compacted; the run cannot be changed until the transaction ends
select runs.key, runs.seq, runs.fence, runs.holder,
       coalesce((select nullif(base, 0) from holdfast.trimmed where trimmed.run = runs.key),
                (select min(events.seq) - 1 from holdfast.events where events.run = runs.key))
from holdfast.runs where run_id = $1 for update

-- drop_snapshots_upto: delete all snapshots of a run up to a seq, including a compaction base
delete from holdfast.snapshots where run = $1 and seq <= $2::bigint

-- write_base: store a compaction base: a snapshot that replaces events
insert into holdfast.snapshots (run, seq, base, digest, body) values ($1, $2, true, $3, $4)

-- rebase: record that the log of a run now begins after a compaction base
insert into holdfast.trimmed (run, retired, retired_at, base, base_at, base_digest, place)
values ($1, 0, 0, $2, coalesce($3::float8, extract(epoch from clock_timestamp())::float8), $4, $5)
on conflict (run) do update set base = excluded.base, base_at = excluded.base_at, base_digest = excluded.base_digest,
                                place = excluded.place

-- adopt: for a run from an archive: record what upkeep had removed from its log before it was archived
insert into holdfast.trimmed (run, retired, retired_at, base, base_at, base_digest, place)
select key, $2::bigint, $3::float8, $4::bigint, $5::float8, $6::bytea, $7::text from holdfast.runs where run_id = $1
on conflict (run) do update set retired = excluded.retired, retired_at = excluded.retired_at, base = excluded.base,
                                base_at = excluded.base_at, base_digest = excluded.base_digest, place = excluded.place

-- adopt_fence: for a run from an archive: raise its fence to the highest that was given out before it was archived
update holdfast.runs set fence = $2::bigint where run_id = $1 and fence < $2::bigint and holder is null

-- keep_definition: store a flow's definition, unless it is stored already
insert into holdfast.definitions (fingerprint, body) values ($1, $2) on conflict (fingerprint) do nothing

-- leave: mark the events of a run up to a seq as leftovers, to be swept later
insert into holdfast.remains (run, upto) values ($1, $2)
on conflict (run) do update set upto = greatest(remains.upto, excluded.upto)

-- any_remains: whether any run has leftover events
select 1 from holdfast.remains limit 1

-- remains: a run that has leftover events and that no other process is sweeping
select run, upto from holdfast.remains order by run limit 1 for update skip locked

-- sweep_events: delete the first leftover events of a run
with gone as (
    delete from holdfast.events where (run, seq) in (
        select run, seq from holdfast.events where run = $1 and seq <= $2::bigint order by seq limit $3::bigint)
    returning 1)
select count(*) from gone

-- swept: delete the mark that a run has leftover events
delete from holdfast.remains where run = $1

-- fork_of: a run that was forked from this run
select run_id from holdfast.runs where parent = $1 order by run_id limit 1

-- caller_of: the run that started this run, and its status, if it may still need this run
select caller.run_id, caller.status from holdfast.runs join holdfast.runs as caller on caller.run_id = runs.origin
where runs.key = $1 and caller.status not in ('completed', 'cancelled')

-- asked_of: a request that waits in the inbox of a run that is not over
select verb from holdfast.inbox
where run = $1 and taken = 0 and exists (select from holdfast.runs where key = $1 and status not in ('completed', 'cancelled'))
order by key limit 1

-- delete_labels: delete the labels of a run
delete from holdfast.labels using holdfast.runs, json_each_text(runs.labels::json) as label
where runs.key = $1 and labels.run = $1 and labels.created_at = runs.created_at
  and hashtextextended(labels.name, 0) = hashtextextended(label.key collate "C", 0)
  and hashtextextended(labels.value, 0) = hashtextextended(label.value collate "C", 0)

-- delete_inbox: delete the inbox of a run
delete from holdfast.inbox where run = $1

-- delete_snapshots: delete the snapshots of a run
delete from holdfast.snapshots where run = $1

-- delete_trimmed: delete the record of what upkeep removed from the log of a run
delete from holdfast.trimmed where run = $1

-- delete_run: delete the run row
delete from holdfast.runs where key = $1

-- fingerprints: the fingerprints of all stored definitions
select fingerprint from holdfast.definitions order by fingerprint

-- drop_definitions: delete the definitions with these fingerprints, except those that a run row or a refusal refers to
delete from holdfast.definitions
where fingerprint = any($1::text[]) and not exists (select from holdfast.runs where runs.fingerprint = definitions.fingerprint)
and not exists (select from holdfast.refusals where refusals.fingerprint = definitions.fingerprint)
returning fingerprint

-- facts: the facts about the store and its server that `holdfast doctor` reports
select extract(epoch from clock_timestamp())::float8, (select value::bigint from holdfast.meta where name = 'schema_version'),
       pg_database_size(current_database()), (select count(*) from holdfast.remains),
       (select max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn))::bigint from pg_replication_slots),
       current_setting('server_version'),
       current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'),
       current_setting('default_transaction_read_only')

-- tell: wake the listening workers if one of these runs may be taken
select holdfast.tell($1::bigint[])

-- notify: wake the listening workers
notify holdfast

-- listen: receive the notifications that wake workers
listen holdfast

-- offers: runs that a worker may take, unless another worker takes them first
select * from holdfast.offers($1::text[], $2::text[], $3::text[], $4::float8, $5::bigint)

-- take_offers: claim the first of these runs that have not changed and that no other worker is taking: set holder and a new fence
with chosen as (
    select runs.key
    from holdfast.runs
    join unnest($1::bigint[], $2::bigint[], $3::bigint[]) with ordinality as offer(key, seq, fence, n) on offer.key = runs.key
    where runs.seq = offer.seq and runs.fence = offer.fence and (runs.holder is null or runs.holder = any($4::text[]))
    order by offer.n limit $6::bigint
    for no key update of runs skip locked
)
update holdfast.runs set holder = $5, fence = runs.fence + 1 from chosen where runs.key = chosen.key returning runs.key

-- lock_lost: lock the given holders that have expired and hold a given run, so that they cannot renew until the transaction ends
select id from holdfast.holders
where id = any($1::text[]) and expires_at <= coalesce($2::float8, extract(epoch from clock_timestamp())::float8)
and id in (select holder from holdfast.runs where key = any($3::bigint[]))
order by id for share skip locked

-- held_by: the leases of a holder
select run_id, fence, seq from holdfast.runs where holder = $1 order by run_id

-- lock_held: lock the runs of a holder, so that they cannot change until the transaction ends
select from holdfast.runs where holder = $1 order by run_id for update

-- lock_gone: lock a holder that is known to be dead or has expired, so that it cannot renew until the transaction ends
select id from holdfast.holders
where id = $1 and ($2::boolean or expires_at <= coalesce($3::float8, extract(epoch from clock_timestamp())::float8))
for no key update

-- next_due: when the first matching run is due, leaving out some queues and run ids; and whether any queue has a limit
select holdfast.next_due($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]), exists (select from holdfast.queues)

-- holders: every engine that holds runs, or recently did, and how many seconds remain until it expires
select id, expires_at - coalesce($1::float8, extract(epoch from clock_timestamp())::float8), expires_at - ttl_s, registered_at,
       id, host, boot, pid_namespace, pid, process_started, ttl_s, flows, queues, version, calls
from holdfast.holders

-- held_runs: how many runs of each queue each holder holds
select * from holdfast.held_runs()

-- limits: the queues that have a limit
select name, held_max from holdfast.queues

-- lock_limits: lock the given queues that have a limit, so that no other worker takes runs from them until the transaction ends
select name, held_max from holdfast.queues where name = any($1::text[]) order by name for update

-- set_limit: set the limit of a queue
insert into holdfast.queues (name, held_max) values ($1, $2)
on conflict (name) do update set held_max = excluded.held_max

-- drop_limit: remove the limit of a queue
delete from holdfast.queues where name = $1

-- queue_names: queues that have a limit, or a run that is not completed or cancelled
select name from holdfast.queues
union select queue from holdfast.runs
where status in ('pending', 'running', 'waiting', 'paused', 'interrupted', 'failed') order by 1

-- offered_runs: how many runs of each queue are on offer
select queue, count(*) from holdfast.runs
where (holder is null or holder = any($1::text[]))
and (status in ('running', 'interrupted') or (status = 'pending' and due_at is null)
     or (status in ('pending', 'waiting') and due_at <= coalesce($2::float8, extract(epoch from clock_timestamp())::float8))
     or (status in ('pending', 'waiting', 'paused', 'failed')
         and exists (select from holdfast.inbox where inbox.run = runs.key and inbox.taken = 0)))
group by queue

-- generation: the id of this store, which a restored copy of it does not share
select value from holdfast.meta where name = 'generation'

-- new_generation: give a restored copy a new id
update holdfast.meta set value = $1 where name = 'generation'

-- renew_fences: release all leases, and make every fence that was given out invalid
update holdfast.runs set holder = null, fence = fence + $1::bigint

-- drop_holders: delete all holders
delete from holdfast.holders

-- add_token: store a new token; selects nothing if there is a token with this id
insert into holdfast.tokens (id, name, role, kind, digest, created_at, created_by, expires_at, revoked_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict (id) do nothing returning id

-- token: the token with this id
select id, name, role, kind, digest, created_at, created_by, expires_at, revoked_at from holdfast.tokens where id = $1

-- tokens: all tokens, oldest first
select id, name, role, kind, digest, created_at, created_by, expires_at, revoked_at from holdfast.tokens order by created_at, id

-- revoke_token: revoke a token; selects nothing if there is none, or if it was revoked before
update holdfast.tokens set revoked_at = $2 where id = $1 and revoked_at is null returning id
