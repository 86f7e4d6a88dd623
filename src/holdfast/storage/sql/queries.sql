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
from (select value as cells from json_each(?1)) as new
where runs.key = new.cells ->> 0

-- write_events: many rows of logs, a JSON list; a body is text, or compressed and then in hex
insert into events (key, at, kind, node, iteration, execution, attempt, salt, body, digest)
select cells ->> 0, (cells ->> 1) / 4194304.0, cells ->> 2, cells ->> 3, cells ->> 4, cells ->> 5, cells ->> 6,
       unhex(cells ->> 7), coalesce(cast(cells ->> 8 as blob), unhex(cells ->> 9)), unhex(cells ->> 10)
from (select value as cells from json_each(?1))

-- create_run: a new run row
insert into runs (run_id, flow, parent, input_digest, labels, created_at, status, seq, digest, updated_at, fingerprint,
                  state_version, active, error, rewinds, due_at, fence, holder)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)

-- label_run: one label of a new run
insert into labels (run, name, value) values (?1, ?2, ?3)

-- advance_run: the view of the log behind an append; no column of an index is touched
update runs set seq = ?2, digest = ?3, updated_at = ?4, fingerprint = ?5, state_version = ?6,
                active = ?7, error = ?8, rewinds = ?9, due_at = ?10
where key = ?1

-- turn_run: the new status of a run, where an append changes it
update runs set status = ?2 where key = ?1

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
       runs.fence, holders.expires_at, holders.id, holders.host, holders.boot, holders.pid_namespace, holders.pid,
       holders.process_started, holders.ttl_s
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

-- runs_of_label: condition: carries this label; repeated for each
and runs.key in (select run from labels where name = ? and value = ?)

-- runs_behind: condition: behind this run in the listing
and (runs.created_at, runs.run_id) < (select created_at, run_id from runs where run_id = ?)

-- runs_newest: order and length of a listing
order by runs.created_at desc, runs.run_id desc limit ?

-- events: a piece of a log
select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
from events where key > (select key from runs where run_id = ?1) << 32 | ?2
and key <= (select key from runs where run_id = ?1) << 32 | ?3
order by key limit ?4

-- events_of: a piece of a log, of some kinds (a JSON list, or null) or one node (or null)
select seq, at, kind, node, iteration, execution, attempt, salt, body, digest
from events where key > (select key from runs where run_id = ?1) << 32 | ?2
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

-- inbox: what waits for the runs of a holder; starts from the requests, of which there are mostly none
select inbox.id, inbox.verb, inbox.body, inbox."by", inbox.reason, runs.run_id, inbox.at
from inbox cross join runs on runs.key = inbox.run cross join holders on holders.key = runs.holder
where inbox.taken = 0 and holders.id = ?1
order by inbox.key
