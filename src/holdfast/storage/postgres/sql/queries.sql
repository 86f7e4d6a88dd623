-- Every query of the PostgreSQL store. `-- name: what it is for`, then the query. Values are always bound. The schema is
-- written `holdfast` here; a store in another one has its name put in that place.

-- begin: what follows is one transaction, by our own rules; but a server that was made read-only (its disk is nearly full) stays so
begin isolation level read committed

-- commit: everything since the begin, or nothing
commit

-- rollback: nothing since the begin
rollback

-- server: what must be true of a server before anything is written to it; which of its processes does this, and its time
select current_setting('server_version_num')::bigint, pg_is_in_recovery(), current_setting('fsync'),
       current_setting('synchronous_commit'), current_setting('server_encoding'), pg_backend_pid(),
       extract(epoch from clock_timestamp())::float8

-- guard: bounds of this transaction, and whether what it commits will be durable
select set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true),
       current_setting('fsync'), current_setting('synchronous_commit'), extract(epoch from clock_timestamp())::float8

-- end_stuck: end transactions that keep runs locked and for long have waited for more to come, in the midst of a pipeline
select pg_terminate_backend(pid)
from pg_stat_activity
where datname = current_database() and usename = current_user and state = 'active' and wait_event = 'ClientRead'
and pid <> pg_backend_pid() and greatest(xact_start, state_change) < clock_timestamp() - $1::text::interval
and exists (select from pg_locks where pg_locks.pid = pg_stat_activity.pid and relation = 'holdfast.runs'::regclass)

-- time: the database's clock
select extract(epoch from clock_timestamp())::float8

-- meta_table: whether a schema holds a store
select to_regclass('holdfast.meta')::text

-- version: how many migrations a schema has seen
select value::bigint from holdfast.meta where name = 'schema_version'

-- set_version: how many migrations a schema has seen
insert into holdfast.meta (name, value) values ('schema_version', $1)
on conflict (name) do update set value = excluded.value

-- lock_schema: one process at a time makes or lifts a schema
select pg_advisory_xact_lock(hashtextextended($1::text, 0))

-- schema_holds: whether a schema is there, and something that is in it
select to_regnamespace('holdfast')::text, (select relname::text from pg_class where relnamespace = to_regnamespace('holdfast') limit 1)

-- create_schema: a home for the tables
create schema holdfast

-- faults: indexes that a failed build left unusable, and pages whose checksums did not hold
select 'index ' || indexrelid::regclass || ' is not valid; run: reindex index ' || indexrelid::regclass
from pg_index join pg_class on pg_class.oid = indrelid
where relnamespace = to_regnamespace('holdfast') and not (indisvalid and indisready)
union all
select checksum_failures || ' pages of this database were found damaged; put a copy back'
from pg_stat_database where datname = current_database() and checksum_failures > 0
union all
select 'full_page_writes is off: a power loss may damage pages; switch it on' where current_setting('full_page_writes') = 'off'

-- head: what appends are judged by; locked in the order of run ids, so that two batches never wait for each other
select run_id, key, seq, fence, holder from holdfast.runs where run_id = any($1::text[]) order by run_id for update

-- known_holders: which of these holders the store knows; they cannot go until the transaction ends
select id from holdfast.holders where id = any($1::text[]) order by id for key share

-- append_one: a whole append in one statement, its own transaction; null: refused. Types are sent along: casts would cost time
select holdfast.append_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
                           $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42,
                           $43, $44)

-- create_runs: new run rows; those whose id is taken are left out
insert into holdfast.runs (run_id, flow, parent, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,
                           state_version, active, error, rewinds, due_at, fence, holder, queue, priority)
select * from unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::float8[], $7::text[], $8::bigint[],
                     $9::bytea[], $10::float8[], $11::text[], $12::bigint[], $13::text[], $14::text[], $15::text[],
                     $16::float8[], $17::bigint[], $18::text[], $19::text[], $20::bigint[])
on conflict (run_id) do nothing
returning run_id, key

-- label_runs: labels of new runs
insert into holdfast.labels (run, name, value) select * from unnest($1::bigint[], $2::text[], $3::text[])

-- advance_runs: the views of the logs behind a batch; where nothing of an index changes, no index is written
update holdfast.runs set
    seq = new.seq, digest = new.digest, updated_at = new.at, status = new.status, fingerprint = new.fingerprint,
    state_version = new.state_version, active = new.active, error = new.error, rewinds = new.rewinds, due_at = new.due_at,
    holder = new.holder
from unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::float8[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::text[],
            $10::text[], $11::float8[], $12::text[])
     as new(key, seq, digest, at, status, fingerprint, state_version, active, error, rewinds, due_at, holder)
where runs.key = new.key

-- write_events: rows of logs
insert into holdfast.events (run, seq, at, kind, node, iteration, execution, attempt, salt, body, digest)
select * from unnest($1::bigint[], $2::bigint[], $3::float8[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
                     $9::bytea[], $10::bytea[], $11::bytea[])

-- write_snapshot: a stored fold; nothing but a base replaces a base
insert into holdfast.snapshots (run, seq, base, digest, body) values ($1, $2, $3, $4, $5)
on conflict (run, seq) do update set base = excluded.base, digest = excluded.digest, body = excluded.body
where excluded.base >= snapshots.base

-- write_definition: a flow's definition, once
insert into holdfast.definitions (fingerprint, body) values ($1, $2) on conflict (fingerprint) do nothing

-- take_requests: requests leave the inbox; their ids stay
update holdfast.inbox set taken = $3, body = '' where run = $1 and id = any($2::text[])

-- appended: whether the row at a seq belongs to an append
select 1 from holdfast.events
where run = (select key from holdfast.runs where run_id = $1) and seq = $2::bigint and salt = $3

-- run_key: whether a run is there
select key from holdfast.runs where run_id = $1

-- lock_run: a run that cannot go until the transaction ends
select key from holdfast.runs where run_id = $1 for key share

-- runs: run rows with their holders; a condition that is null does not count
select runs.run_id, runs.flow, runs.status, runs.seq, runs.digest, runs.fingerprint, runs.state_version, runs.created_at,
       runs.updated_at, runs.input_digest, runs.labels, runs.parent, runs.active, runs.error, runs.rewinds, runs.due_at,
       runs.fence, runs.queue, runs.priority, extract(epoch from clock_timestamp())::float8, holders.expires_at, holders.id,
       holders.host, holders.boot, holders.pid_namespace, holders.pid, holders.process_started, holders.ttl_s
from holdfast.runs left join holdfast.holders on holders.id = runs.holder
where ($1::text is null or runs.run_id = $1)
  and ($2::text[] is null or runs.status = any($2))
  and ($3::text is null or runs.flow = $3)
  and ($4::text is null or runs.parent = $4)
  and ($5::text[] is null or runs.key in (
      select labels.run from holdfast.labels
      join unnest($5::text[], $6::text[]) as wanted(name, value)
        on hashtextextended(labels.name, 0) = hashtextextended(wanted.name collate "C", 0)
       and hashtextextended(labels.value, 0) = hashtextextended(wanted.value collate "C", 0)
       and labels.name = wanted.name and labels.value = wanted.value
      group by labels.run having count(*) = cardinality($5)))
  and ($7::text is null or (runs.created_at, runs.run_id) < (select created_at, run_id from holdfast.runs where run_id = $7))
  and ($9::text is null or runs.queue = $9)
order by runs.created_at desc, runs.run_id desc limit $8::bigint

-- events: a piece of a log
select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
from holdfast.events
where run = (select key from holdfast.runs where run_id = $1) and seq <= $3::bigint
  and seq > greatest($2::bigint, (select base from holdfast.trimmed
                                  where trimmed.run = (select key from holdfast.runs where run_id = $1)))
order by seq limit $4::bigint

-- events_of: a piece of a log, of some kinds (or null) or one node (or null)
select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
from holdfast.events
where run = (select key from holdfast.runs where run_id = $1) and seq <= $3::bigint
  and seq > greatest($2::bigint, (select base from holdfast.trimmed
                                  where trimmed.run = (select key from holdfast.runs where run_id = $1)))
  and ($5::text[] is null or kind = any($5)) and ($6::text is null or node = $6)
order by seq limit $4::bigint

-- snapshot: the latest stored fold within some ranges
select snapshots.seq, snapshots.body, snapshots.base, snapshots.digest
from holdfast.snapshots
join unnest($2::bigint[], $3::bigint[]) as span(first, last) on snapshots.seq between span.first and span.last
where run = (select key from holdfast.runs where run_id = $1)
order by snapshots.seq desc limit 1

-- definition: a flow's definition
select body from holdfast.definitions where fingerprint = $1

-- lease: what a claim is judged by; two claims of one run come one after the other
select runs.key, runs.seq, runs.fence, coalesce($2::float8, extract(epoch from clock_timestamp())::float8), runs.holder
from holdfast.runs where runs.run_id = $1 for update

-- claim_holders: who has a run and who wants it; neither renews until the transaction ends, and two claims lock them alike
select expires_at, id, host, boot, pid_namespace, pid, process_started, ttl_s from holdfast.holders where id = any($1::text[])
order by id for no key update

-- take_lease: a run gets a holder and a new fence
update holdfast.runs set holder = $2, fence = $3 where key = $1

-- release_lease: a run has no holder any more, if it was this one with this fence
with left_alone as (
    update holdfast.runs set holder = null where run_id = $1 and holder = $2 and fence = $3 returning key)
select holdfast.tell(array_agg(key)) from left_alone

-- renew_holder: a holder's row, alive until a new time
insert into holdfast.holders (id, host, boot, pid_namespace, pid, process_started, ttl_s, expires_at)
values ($1, $2, $3, $4, $5, $6, $7::float8, coalesce($8::float8, extract(epoch from clock_timestamp())::float8) + $7::float8)
on conflict (id) do update set expires_at = excluded.expires_at, ttl_s = excluded.ttl_s

-- renew_alone: the same in a transaction of its own; nothing where the schema is too new or the commit would not be durable
with found as (
    select coalesce((select value::bigint from holdfast.meta where name = 'schema_version'), 0) as version,
           current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit,
           set_config('lock_timeout', $9, true) as lock_wait
), renewed as (
    insert into holdfast.holders (id, host, boot, pid_namespace, pid, process_started, ttl_s, expires_at)
    select $1::text, $2::text, $3::text, $4::text, $5::bigint, $6::text, $7::float8,
           coalesce($8::float8, extract(epoch from clock_timestamp())::float8) + $7::float8
    from found
    where lock_wait is not null and version <= $10::bigint and ($11::boolean or 'off' not in (fsync, synchronous_commit))
    on conflict (id) do update set expires_at = excluded.expires_at, ttl_s = excluded.ttl_s
)
select version, fsync, synchronous_commit, extract(epoch from clock_timestamp())::float8 from found

-- release_all: nothing is held by this holder any more
update holdfast.runs set holder = null
where key in (select key from holdfast.runs where holder = $1 order by run_id for update)

-- drop_holder: a holder that is gone for good
delete from holdfast.holders where id = $1

-- drop_idle_holder: a dead holder, once it holds nothing
delete from holdfast.holders where id = $1 and not exists (select from holdfast.runs where holder = $1)

-- drop_old_holders: holders that ran out long ago and hold nothing
delete from holdfast.holders
where expires_at < coalesce($1::float8, extract(epoch from clock_timestamp())::float8) - $2::float8
  and not exists (select from holdfast.runs where runs.holder = holders.id)

-- post: leave a request; nothing where it was left before
insert into holdfast.inbox (run, id, verb, body, "by", reason, at, taken)
values ($1, $2, $3, $4, $5, $6, coalesce($7::float8, extract(epoch from clock_timestamp())::float8), 0)
on conflict (run, id) do nothing returning key

-- posted: a request that was left, whether or not it has been taken since
select inbox.key from holdfast.inbox join holdfast.runs on runs.key = inbox.run where runs.run_id = $1 and inbox.id = $2

-- inbox: what waits for the runs of a holder
select inbox.id, inbox.verb, inbox.body, inbox."by", inbox.reason, runs.run_id, inbox.at
from holdfast.inbox join holdfast.runs on runs.key = inbox.run
where inbox.taken = 0 and runs.holder = $1
order by inbox.key

-- keep_blob: say again that a blob is wanted; nothing where it is missing or damaged
update holdfast.blobs set put_at = extract(epoch from clock_timestamp())
where digest = $1 and sha256(body) = $2 returning digest

-- put_blob: a blob, also in the place of a damaged one
insert into holdfast.blobs (digest, put_at, body) values ($1, extract(epoch from clock_timestamp()), $2)
on conflict (digest) do update set put_at = excluded.put_at, body = excluded.body

-- get_blob: the stored bytes of a blob
select body from holdfast.blobs where digest = $1

-- digests: the names of some blobs behind a name, in order
select digest from holdfast.blobs where digest > $1 order by digest limit 1000

-- delete_blob: a blob goes
delete from holdfast.blobs where digest = $1

-- expire_blob: a blob goes that was last put before a time
delete from holdfast.blobs where digest = $1 and put_at < $2::float8 returning digest

-- spilling: the runs that have partial streams
select distinct run_id from holdfast.spills order by run_id

-- spill: a piece of a partial stream
insert into holdfast.spills (run_id, stream, data) values ($1, $2, $3)

-- spilled: the partial streams of a run
select stream, string_agg(data, ''::bytea order by key) from holdfast.spills where run_id = $1 group by stream

-- unspill: partial streams go
delete from holdfast.spills where run_id = $1 and stream = any($2::bytea[])

-- trimmed: what was taken from a log
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

-- drop_snapshots: stored folds that are only there for speed
delete from holdfast.snapshots where run = $1 and seq = any($2::bigint[]) and not base

-- retire: checkpoints before a place are no resume points any more
insert into holdfast.trimmed (run, retired, retired_at, base, base_at, base_digest, place)
values ($1, $2, coalesce($3::float8, extract(epoch from clock_timestamp())::float8), 0, 0, '', '')
on conflict (run) do update set retired = excluded.retired, retired_at = excluded.retired_at
where excluded.retired > trimmed.retired

-- compactable: what a compaction is judged by; the run cannot be changed until the transaction ends
select runs.key, runs.seq, runs.fence, runs.holder,
       coalesce((select nullif(base, 0) from holdfast.trimmed where trimmed.run = runs.key),
                (select min(events.seq) - 1 from holdfast.events where events.run = runs.key))
from holdfast.runs where run_id = $1 for update

-- drop_snapshots_upto: every stored fold up to a place, also a base
delete from holdfast.snapshots where run = $1 and seq <= $2::bigint

-- write_base: a stored fold that stands for events
insert into holdfast.snapshots (run, seq, base, digest, body) values ($1, $2, true, $3, $4)

-- rebase: a log begins behind another place
insert into holdfast.trimmed (run, retired, retired_at, base, base_at, base_digest, place)
values ($1, 0, 0, $2, coalesce($3::float8, extract(epoch from clock_timestamp())::float8), $4, $5)
on conflict (run) do update set base = excluded.base, base_at = excluded.base_at, base_digest = excluded.base_digest,
                                place = excluded.place

-- adopt: what was taken from a log before its run was archived
insert into holdfast.trimmed (run, retired, retired_at, base, base_at, base_digest, place)
select key, $2::bigint, $3::float8, $4::bigint, $5::float8, $6::bytea, $7::text from holdfast.runs where run_id = $1
on conflict (run) do update set retired = excluded.retired, retired_at = excluded.retired_at, base = excluded.base,
                                base_at = excluded.base_at, base_digest = excluded.base_digest, place = excluded.place

-- adopt_fence: no lower fence than were given out before its run was archived
update holdfast.runs set fence = $2::bigint where run_id = $1 and fence < $2::bigint and holder is null

-- keep_definition: a flow's definition, once
insert into holdfast.definitions (fingerprint, body) values ($1, $2) on conflict (fingerprint) do nothing

-- leave: events up to a place are nobody's any more
insert into holdfast.remains (run, upto) values ($1, $2)
on conflict (run) do update set upto = greatest(remains.upto, excluded.upto)

-- any_remains: whether anything is left of any log
select 1 from holdfast.remains limit 1

-- remains: a log of which something is left, and that nobody else is sweeping
select run, upto from holdfast.remains order by run limit 1 for update skip locked

-- sweep_events: the first of those events go
with gone as (
    delete from holdfast.events where (run, seq) in (
        select run, seq from holdfast.events where run = $1 and seq <= $2::bigint order by seq limit $3::bigint)
    returning 1)
select count(*) from gone

-- swept: nothing of this log is left
delete from holdfast.remains where run = $1

-- child_of: a run that names this one as its parent
select run_id from holdfast.runs where parent = $1 order by run_id limit 1

-- asked_of: what waits in the inbox of a run that can still be carried on
select inbox.verb from holdfast.inbox join holdfast.runs on runs.key = inbox.run
where inbox.run = $1 and inbox.taken = 0 and runs.status not in ('completed', 'cancelled') order by inbox.key limit 1

-- delete_labels: what a run was found by
delete from holdfast.labels using holdfast.runs, json_each_text(runs.labels::json) as label
where runs.key = $1 and labels.run = $1
  and hashtextextended(labels.name, 0) = hashtextextended(label.key collate "C", 0)
  and hashtextextended(labels.value, 0) = hashtextextended(label.value collate "C", 0)

-- delete_inbox: what was wanted of a run
delete from holdfast.inbox where run = $1

-- delete_snapshots: the stored folds of a run
delete from holdfast.snapshots where run = $1

-- delete_trimmed: what was known of its trimming
delete from holdfast.trimmed where run = $1

-- delete_run: the row of a run
delete from holdfast.runs where key = $1

-- fingerprints: of every definition
select fingerprint from holdfast.definitions order by fingerprint

-- drop_definitions: definitions that the row of no run names
delete from holdfast.definitions
where fingerprint = any($1::text[]) and not exists (select from holdfast.runs where runs.fingerprint = definitions.fingerprint)
returning fingerprint

-- facts: how the store is
select extract(epoch from clock_timestamp())::float8, (select value::bigint from holdfast.meta where name = 'schema_version'),
       pg_database_size(current_database()), (select count(*) from holdfast.remains),
       (select max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn))::bigint from pg_replication_slots),
       current_setting('server_version'),
       current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'),
       current_setting('default_transaction_read_only')

-- tell: have those who listen look again, if one of these runs may be taken
select holdfast.tell($1::bigint[])

-- notify: have those who listen look again
notify holdfast

-- listen: be told what others notify
listen holdfast

-- offers: what may be taken, as long as nobody else takes it
select * from holdfast.offers($1::text[], $2::text[], $3::text[], $4::float8, $5::bigint)

-- take_offers: the first of these runs that are still as they were, and that nobody else is taking, get a holder and a new fence
with chosen as (
    select runs.key
    from holdfast.runs
    join unnest($1::bigint[], $2::bigint[], $3::bigint[]) with ordinality as offer(key, seq, fence, n) on offer.key = runs.key
    where runs.seq = offer.seq and runs.fence = offer.fence and (runs.holder is null or runs.holder = any($4::text[]))
    order by offer.n limit $6::bigint
    for no key update of runs skip locked
)
update holdfast.runs set holder = $5, fence = runs.fence + 1 from chosen where runs.key = chosen.key returning runs.key

-- lock_lost: those of these holders whose time has run out, of some runs; they cannot renew until the transaction ends
select id from holdfast.holders
where id = any($1::text[]) and expires_at <= coalesce($2::float8, extract(epoch from clock_timestamp())::float8)
and id in (select holder from holdfast.runs where key = any($3::bigint[]))
order by id for share skip locked

-- held_by: the leases in a holder's name
select run_id, fence, seq from holdfast.runs where holder = $1 order by run_id

-- lock_held: the runs of a holder cannot change until the transaction ends
select from holdfast.runs where holder = $1 order by run_id for update

-- lock_gone: a holder that is known to be dead, or whose time has run out; it cannot renew until the transaction ends
select id from holdfast.holders
where id = $1 and ($2::boolean or expires_at <= coalesce($3::float8, extract(epoch from clock_timestamp())::float8))
for no key update

-- next_due: when the first of some runs falls due, but for some queues and some ids, and whether any queue has a limit
select holdfast.next_due($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]), exists (select from holdfast.queues)

-- holders: everyone who holds runs, or lately did, and how long their time still is
select id, expires_at - coalesce($1::float8, extract(epoch from clock_timestamp())::float8), id, host, boot, pid_namespace, pid,
       process_started, ttl_s
from holdfast.holders

-- held_runs: how many runs of each queue each holder has
select * from holdfast.held_runs()

-- limits: the queues that have a limit
select name, held_max from holdfast.queues

-- lock_limits: those of these queues that have a limit; nobody else takes from them until the transaction ends
select name, held_max from holdfast.queues where name = any($1::text[]) order by name for update

-- set_limit: the limit of a queue
insert into holdfast.queues (name, held_max) values ($1, $2)
on conflict (name) do update set held_max = excluded.held_max

-- drop_limit: a queue without a limit
delete from holdfast.queues where name = $1

-- queue_names: queues with a limit, or with a run that has not ended
select name from holdfast.queues
union select queue from holdfast.runs
where status in ('pending', 'running', 'waiting', 'paused', 'interrupted', 'failed') order by 1

-- offered_runs: how many runs of each queue are on offer
select queue, count(*) from holdfast.runs
where (holder is null or holder = any($1::text[]))
and (status in ('pending', 'running', 'interrupted')
     or (status = 'waiting' and due_at <= coalesce($2::float8, extract(epoch from clock_timestamp())::float8))
     or (status in ('waiting', 'paused', 'failed')
         and exists (select from holdfast.inbox where inbox.run = runs.key and inbox.taken = 0)))
group by queue

-- generation: which store this is
select value from holdfast.meta where name = 'generation'

-- new_generation: no longer the store that a copy was made of
update holdfast.meta set value = $1 where name = 'generation'

-- renew_fences: nobody holds anything, and no fence of before is good
update holdfast.runs set holder = null, fence = fence + $1::bigint

-- drop_holders: everyone who holds runs is forgotten
delete from holdfast.holders
