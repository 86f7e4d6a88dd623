-- The current schema, for reading only. Stores are created by the migrations; a test proves that they add up to this file.

-- Facts about the store itself: its schema version, and its generation (an id that a restored or new store does not share).
create table holdfast.meta (
    name  text primary key,
    value text not null
);

insert into holdfast.meta (name, value) values ('generation', gen_random_uuid()::text);

-- One row per engine that holds runs, or recently did. Renewing all leases of an engine writes only this row.
create table holdfast.holders (
    id              text collate "C" primary key,
    host            text not null,
    boot            text not null,
    pid_namespace   text not null,
    pid             bigint not null,
    process_started text not null,
    ttl_s           double precision not null,
    expires_at      double precision not null,
    flows           text,                     -- JSON: the flows whose runs it claims as a worker; null: it is not a worker
    queues          text,                     -- JSON: the queues from which it claims them; null: all queues
    version         text not null default '',
    registered_at   double precision,         -- when the engine was first seen; null: by a version that did not record it
    calls           text                      -- JSON: its calls that waited for a place at the last renewal; null: none
) with (fillfactor = 50);

-- One row per run: facts fixed at its creation, a summary of its log that every append updates, and its lease. Pages keep free
-- space, so that an append updates the row in the same page and writes no index.
create table holdfast.runs (
    key           bigint generated always as identity primary key,
    run_id        text collate "C" not null unique,
    flow          text not null,
    parent        text,                       -- the run from which it was forked
    input_digest  bytea not null,
    labels        text not null,              -- JSON, to display them; the table `labels` is for searching
    created_at    double precision not null,
    status        text not null,
    seq           bigint not null,            -- of the last event of the log
    digest        bytea not null,             -- of the last event of the log
    updated_at    double precision not null,
    fingerprint   text not null,
    state_version bigint not null,
    active        text,                       -- JSON; null: empty
    error         text,
    rewinds       text,                       -- JSON; null: empty
    due_at        double precision,
    fence         bigint not null,
    holder        text collate "C",           -- holders.id; null: the run is not held
    queue         text collate "C" not null default 'default',
    priority      bigint not null default 0,
    asks          bigint,                     -- how many questions are open; null: nor are the next two columns known
    active_s      double precision,
    situation     text,                       -- JSON; null: unknown, or empty
    ended_at      double precision,           -- when the run got its status; null: not completed, failed or cancelled
    origin        text                        -- the run that started it
) with (fillfactor = 70);

-- Listings. Each index ends with the order of a listing, so that a page is read from it without sorting. (A run that changes its
-- status, or the number of its questions, writes them; a step without such a change writes none.)
create index runs_by_age on holdfast.runs (created_at, run_id);
create index runs_by_status on holdfast.runs (status, created_at, run_id);
create index runs_by_flow on holdfast.runs (flow, status, created_at, run_id);
create index runs_by_parent on holdfast.runs (parent, created_at, run_id) where parent is not null;
create index runs_by_origin on holdfast.runs (origin, created_at, run_id) where origin is not null;
create index runs_by_queue on holdfast.runs (queue, created_at, run_id);
create index runs_asking on holdfast.runs (created_at, run_id)
where asks > 0 or (asks is null and status not in ('completed', 'cancelled'));
create index runs_ended on holdfast.runs (ended_at, status) where ended_at is not null;

create index runs_by_holder on holdfast.runs (holder, queue) where holder is not null;

-- Runs that a worker may take, in the order in which they are taken, for each flow and queue.
create index runs_offered on holdfast.runs (flow, queue, priority desc, created_at, run_id)
where holder is null and status in ('pending', 'running', 'interrupted') and (status <> 'pending' or due_at is null);

create index runs_due on holdfast.runs (flow, queue, priority desc, due_at, run_id)
where holder is null and status in ('pending', 'waiting') and due_at is not null;

-- Queues that have a limit. A worker that takes runs from such a queue locks its row, so that workers do so one after another.
create table holdfast.queues (
    name     text collate "C" primary key,
    held_max bigint not null                  -- how many of its runs may be held at the same time
);

-- Runs that a worker has refused to continue. A row counts while the log of the run ends at `seq`; it goes with its holder.
create table holdfast.refusals (
    holder      text collate "C" not null references holdfast.holders (id) on delete cascade,
    run         bigint not null,              -- runs.key
    seq         bigint not null,              -- of the last event of the log when the worker refused the run
    fingerprint text not null,                -- of the flow as the worker knows it; empty: it does not know the flow
    too_new     boolean not null,             -- whether its version of Holdfast cannot read the run
    reason      text not null,
    at          double precision not null,
    primary key (holder, run)
);

create index refusals_by_run on holdfast.refusals (run, seq);

-- The labels of runs, for searching. The index has hashes, because it cannot contain long texts.
create table holdfast.labels (
    run        bigint not null,
    name       text collate "C" not null,
    value      text collate "C" not null,
    created_at double precision not null      -- of the run
);

create index labels_by_value on holdfast.labels (hashtextextended(name, 0), hashtextextended(value, 0), created_at, run);

-- The events of all runs. Bodies over 1 KB are compressed by the client.
create table holdfast.events (
    run       bigint not null,
    seq       bigint not null,
    at        double precision not null,
    iteration integer not null,
    execution integer not null,
    attempt   integer not null,
    kind      text not null,
    node      text,
    salt      bytea not null,
    digest    bytea not null,
    body      bytea not null,
    primary key (run, seq)
);

alter table holdfast.events alter column body set storage external;

-- Snapshots: states of runs at a seq. A compaction base replaces events, which are no longer in the log.
create table holdfast.snapshots (
    run    bigint not null,
    seq    bigint not null,
    base   boolean not null,
    digest bytea not null,
    body   bytea not null,
    primary key (run, seq)
);

alter table holdfast.snapshots alter column body set storage external;

-- Definitions of flows, one per fingerprint.
create table holdfast.definitions (
    fingerprint text collate "C" primary key,
    body        bytea not null
);

-- Requests to runs from processes that do not hold them. Handled requests stay, so that posting one again has no effect.
create table holdfast.inbox (
    key    bigint generated always as identity primary key,
    run    bigint not null,
    id     text collate "C" not null,
    verb   text not null,
    body   text not null,
    "by"   text,
    reason text,
    at     double precision not null,
    taken  bigint not null,                   -- the seq of the event that handled it; 0: not handled yet
    digest bytea,                             -- sha256 of verb and body; null: posted before there were digests
    unmet  boolean not null default false,    -- whether it still waited when the run was completed or cancelled
    run_id   text collate "C" not null,       -- this and the next three columns are those of the run
    flow     text collate "C" not null,
    queue    text collate "C" not null,
    priority bigint not null
);

create unique index inbox_by_run on holdfast.inbox (run, id);
create index inbox_waiting on holdfast.inbox (run, at, key) where taken = 0;
-- Requests that wait, in the order in which workers take their runs.
create index inbox_offered on holdfast.inbox (flow, queue, priority desc, at, run_id) where taken = 0;

-- Who may use the server of this store, and for what. A token is never deleted, only revoked, because logs name it.
create table holdfast.tokens (
    id         text collate "C" primary key,
    name       text not null,                 -- who uses the token
    role       text not null,
    kind       text not null,                 -- person or agent
    digest     bytea not null,                -- sha256 of the secret
    created_at double precision not null,
    created_by text,
    expires_at double precision,              -- null: it does not expire
    revoked_at double precision               -- null: it was not revoked
);

-- Blobs: values too large for a log, by the sha256 of their content; compressed by the client.
create table holdfast.blobs (
    digest text collate "C" primary key,
    put_at double precision not null,
    body   bytea not null
);

alter table holdfast.blobs alter column body set storage external;

-- Partial streams of nodes that are running, in pieces.
create table holdfast.spills (
    key    bigint generated always as identity primary key,
    run_id text collate "C" not null,
    stream bytea not null,
    data   bytea not null
);

create index spills_by_run on holdfast.spills (run_id, key);

-- What upkeep has removed from a log: checkpoints before `retired` are no longer resume points, and if `base` is not 0, a
-- snapshot (the compaction base) replaces the events up to that seq.
create table holdfast.trimmed (
    run         bigint primary key,
    retired     bigint not null,
    retired_at  double precision not null,
    base        bigint not null,
    base_at     double precision not null,
    base_digest bytea not null,               -- sha256 of the stored compaction base
    place       text not null                 -- where the log was archived before the compaction; empty: nowhere
);

-- Runs with leftover events (up to the seq `upto`) that no longer belong to any log and are deleted in batches.
create table holdfast.remains (
    run  bigint primary key,                  -- runs.key; the run itself may be deleted
    upto bigint not null
);

-- Wake the listening workers if one of these runs, which no engine holds, may be taken or has made room in a limited queue.
create function holdfast.tell(keys bigint[]) returns void language plpgsql as $$
begin
    if exists (
        select from holdfast.runs
        where key = any(keys) and (
            status not in ('completed', 'cancelled')
            or exists (select from holdfast.queues where queues.name = runs.queue))
    ) then
        notify holdfast;
    end if;
end
$$;

-- Mark the requests that still wait as handled and unmet, because their run is over. A function, so that its plan is kept; the
-- settings make the plan use the index of waiting requests, even if it was made while the table was small.
create function holdfast.close_inbox(of_run bigint, of_seq bigint) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
begin
    update holdfast.inbox set taken = of_seq, unmet = true, body = '' where run = of_run and taken = 0;
end
$$;

-- Write a lone append: it is checked, written and acknowledged in one round trip. A function, because the server keeps the plans
-- of its statements without a session having to prepare them. Nearly every step of a run writes two rows (a node has ended, the
-- next begins), so the first two rows are plain parameters: decoding and indexing arrays costs time at every call. Further rows
-- are arrays. A statement that reads arrays as a table is planned again each time, so up to 8 rows are inserted one by one.
-- An append that ends the run locks its row before the update: a request that another session is putting into the inbox is then
-- seen, and one that comes later waits, and finds that the run is over. (`for update` excludes the `for key share` of a request;
-- an update by itself would not.)
-- Returns null if the append is refused, -1 if the commit would not be durable, otherwise the database's time.
create function holdfast.append_one(
    unsafe boolean, lock_wait text, of_run text, expected bigint, of_fence bigint, of_holder text, gives_back boolean,
    new_status text, new_fingerprint text, new_state_version bigint, new_active text, new_error text, new_rewinds text,
    new_due_at double precision, new_seq bigint, new_at double precision, new_digest bytea,
    at_1 double precision, kind_1 text, node_1 text, iteration_1 bigint, execution_1 bigint, attempt_1 bigint,
    salt_1 bytea, body_1 bytea, digest_1 bytea,
    at_2 double precision, kind_2 text, node_2 text, iteration_2 bigint, execution_2 bigint, attempt_2 bigint,
    salt_2 bytea, body_2 bytea, digest_2 bytea,
    ats double precision[], kinds text[], nodes text[], iterations bigint[], executions bigint[], attempts bigint[],
    salts bytea[], bodies bytea[], digests bytea[],
    new_asks bigint, new_active_s double precision, new_situation text
) returns double precision language plpgsql as $$
declare
    of_key bigint;
begin
    if not unsafe and (current_setting('synchronous_commit') = 'off' or current_setting('fsync') = 'off') then
        return -1;
    end if;
    perform set_config('lock_timeout', lock_wait, true);
    if new_status in ('completed', 'cancelled') then
        perform from holdfast.runs where run_id = of_run for update;
    end if;
    update holdfast.runs set
        seq = new_seq, digest = new_digest, updated_at = new_at, status = new_status, fingerprint = new_fingerprint,
        state_version = new_state_version, active = new_active, error = new_error, rewinds = new_rewinds, due_at = new_due_at,
        holder = case when gives_back then null else holder end,
        asks = new_asks, active_s = new_active_s, situation = new_situation,
        ended_at = case when new_status not in ('completed', 'failed', 'cancelled') then null
                        when status = new_status then ended_at else new_at end
    where run_id = of_run and seq = expected and fence = of_fence and holder = of_holder
    returning key into of_key;
    if not found then
        return null;
    end if;
    if new_status in ('completed', 'cancelled') then
        perform holdfast.close_inbox(of_key, new_seq);
    end if;
    if gives_back then
        perform holdfast.tell(array[of_key]);
    end if;
    if kind_2 is null then
        insert into holdfast.events (run, seq, at, kind, node, iteration, execution, attempt, salt, body, digest)
        values (of_key, expected + 1, at_1, kind_1, node_1, iteration_1, execution_1, attempt_1, salt_1, body_1, digest_1);
    else
        insert into holdfast.events (run, seq, at, kind, node, iteration, execution, attempt, salt, body, digest)
        values (of_key, expected + 1, at_1, kind_1, node_1, iteration_1, execution_1, attempt_1, salt_1, body_1, digest_1),
               (of_key, expected + 2, at_2, kind_2, node_2, iteration_2, execution_2, attempt_2, salt_2, body_2, digest_2);
    end if;
    if cardinality(kinds) <= 8 then
        for n in 1 .. cardinality(kinds) loop
            insert into holdfast.events (run, seq, at, kind, node, iteration, execution, attempt, salt, body, digest)
            values (of_key, expected + 2 + n, ats[n], kinds[n], nodes[n], iterations[n], executions[n], attempts[n], salts[n],
                    bodies[n], digests[n]);
        end loop;
    elsif kinds is not null then
        insert into holdfast.events (run, seq, at, kind, node, iteration, execution, attempt, salt, body, digest)
        select of_key, expected + 2 + new.n, new.at, new.kind, new.node, new.iteration, new.execution, new.attempt, new.salt,
               new.body, new.digest
        from unnest(ats, kinds, nodes, iterations, executions, attempts, salts, bodies, digests)
             with ordinality as new(at, kind, node, iteration, execution, attempt, salt, body, digest, n);
    end if;
    return date_part('epoch', clock_timestamp());
end
$$;

-- Runs that a worker may take: the first few runs of each lane (flow, queue and priority), the runs of lost holders, and the runs
-- with requests in their inbox. Lanes are found by jumping along an index from one to the next, so the cost does not depend on
-- how many runs they have. A lane that is found has at least one run, so no more ready lanes are visited than runs are wanted.
-- A function, so that its plan is kept. The plan may have been made while the table was small, so the settings below force it to
-- use the indexes; JIT is off because compiling the plan would take longer than running it. Nothing may be sorted: every
-- `order by` must match one index. That is why a priority is written as a range (`between`) and not as `=`: with `=`, priority
-- drops out of the order, which an index over all runs ever created would then match as well.
create function holdfast.offers(of_flows text[], of_queues text[], lost text[], given_now double precision, width bigint)
returns table (key bigint, run_id text, flow text, queue text, priority bigint, seq bigint, fence bigint, why text,
               since double precision)
language plpgsql stable
set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
begin
    return query
    with recursive
    now (at) as (select coalesce(given_now, extract(epoch from clock_timestamp())::float8)),
    ready_queues (flow, queue) as (
        select wanted.flow, (select runs.queue from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                             and (runs.status <> 'pending' or runs.due_at is null)
                             and runs.flow = wanted.flow
                             order by runs.queue limit 1)
        from unnest(of_flows) as wanted(flow)
        union all
        select ready_queues.flow, (select runs.queue from holdfast.runs
                                   where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                                   and (runs.status <> 'pending' or runs.due_at is null)
                                   and runs.flow = ready_queues.flow and runs.queue > ready_queues.queue
                                   order by runs.queue limit 1)
        from ready_queues where queue is not null
    ),
    ready_lanes (flow, queue, priority, n) as (
        select flow, queue, (select runs.priority from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                             and (runs.status <> 'pending' or runs.due_at is null)
                             and runs.flow = ready_queues.flow and runs.queue = ready_queues.queue
                             order by runs.priority desc limit 1), 1
        from ready_queues
        where queue is not null and (of_queues is null or queue = any(of_queues))
        union all
        select flow, queue, (select runs.priority from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                             and (runs.status <> 'pending' or runs.due_at is null)
                             and runs.flow = ready_lanes.flow and runs.queue = ready_lanes.queue
                             and runs.priority < ready_lanes.priority
                             order by runs.priority desc limit 1), n + 1
        from ready_lanes where priority is not null and n < width
    ),
    due_queues (flow, queue) as (
        select wanted.flow, (select runs.queue from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                             and runs.flow = wanted.flow
                             order by runs.queue limit 1)
        from unnest(of_flows) as wanted(flow)
        union all
        select due_queues.flow, (select runs.queue from holdfast.runs
                                 where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                                 and runs.flow = due_queues.flow and runs.queue > due_queues.queue
                                 order by runs.queue limit 1)
        from due_queues where queue is not null
    ),
    due_lanes (flow, queue, priority) as (
        select flow, queue, (select runs.priority from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                             and runs.flow = due_queues.flow and runs.queue = due_queues.queue
                             order by runs.priority desc limit 1)
        from due_queues
        where queue is not null and (of_queues is null or queue = any(of_queues))
        union all
        select flow, queue, (select runs.priority from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                             and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue
                             and runs.priority < due_lanes.priority
                             order by runs.priority desc limit 1)
        from due_lanes where priority is not null
    ),
    asked_queues (flow, queue) as (
        select wanted.flow, (select inbox.queue from holdfast.inbox where inbox.taken = 0 and inbox.flow = wanted.flow
                             order by inbox.queue limit 1)
        from unnest(of_flows) as wanted(flow)
        union all
        select asked_queues.flow, (select inbox.queue from holdfast.inbox
                                   where inbox.taken = 0 and inbox.flow = asked_queues.flow
                                   and inbox.queue > asked_queues.queue
                                   order by inbox.queue limit 1)
        from asked_queues where queue is not null
    ),
    asked_lanes (flow, queue, priority) as (
        select flow, queue, (select inbox.priority from holdfast.inbox
                             where inbox.taken = 0 and inbox.flow = asked_queues.flow and inbox.queue = asked_queues.queue
                             order by inbox.priority desc limit 1)
        from asked_queues
        where queue is not null and (of_queues is null or queue = any(of_queues))
        union all
        select flow, queue, (select inbox.priority from holdfast.inbox
                             where inbox.taken = 0 and inbox.flow = asked_lanes.flow and inbox.queue = asked_lanes.queue
                             and inbox.priority < asked_lanes.priority
                             order by inbox.priority desc limit 1)
        from asked_lanes where priority is not null
    ),
    left_behind as materialized (select * from holdfast.runs where runs.holder = any(lost)),
    offers as (
        select runs.key, runs.run_id, runs.flow, runs.queue, runs.priority, runs.seq, runs.fence,
               runs.status as why, runs.created_at as since
        from ready_lanes as lane cross join lateral (
            select * from holdfast.runs where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
            and (runs.status <> 'pending' or runs.due_at is null)
            and runs.flow = lane.flow and runs.queue = lane.queue
            and runs.priority between lane.priority and lane.priority
            order by runs.priority desc, runs.created_at, runs.run_id limit width) as runs
        where lane.priority is not null
        union all
        select runs.key, runs.run_id, runs.flow, runs.queue, runs.priority, runs.seq, runs.fence,
               case runs.status when 'waiting' then 'due' else runs.status end, runs.due_at
        from due_lanes as lane cross join lateral (
            select * from holdfast.runs where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
            and runs.flow = lane.flow and runs.queue = lane.queue
            and runs.priority between lane.priority and lane.priority and runs.due_at <= (select at from now)
            order by runs.priority desc, runs.due_at, runs.run_id limit width) as runs
        where lane.priority is not null
        union all
        (select runs.key, runs.run_id, runs.flow, runs.queue, runs.priority, runs.seq, runs.fence,
                case runs.status when 'waiting' then 'due' else runs.status end,
                case when runs.status in ('pending', 'waiting') then coalesce(runs.due_at, runs.created_at)
                     else runs.created_at end
         from left_behind as runs
         where runs.flow = any(of_flows) and (of_queues is null or runs.queue = any(of_queues))
         and (runs.status in ('running', 'interrupted') or (runs.status = 'pending' and runs.due_at is null)
              or (runs.status in ('pending', 'waiting') and runs.due_at <= (select at from now))))
        union all
        select runs.key, runs.run_id, runs.flow, runs.queue, runs.priority, runs.seq, runs.fence, 'asked', asked.at
        from asked_lanes as lane cross join lateral (
            select inbox.run, inbox.at from holdfast.inbox join holdfast.runs on runs.key = inbox.run
            where inbox.taken = 0 and inbox.flow = lane.flow and inbox.queue = lane.queue
            and inbox.priority between lane.priority and lane.priority
            and inbox.key = (select oldest.key from holdfast.inbox as oldest where oldest.run = inbox.run and oldest.taken = 0
                             order by oldest.at, oldest.key limit 1)
            and (runs.holder is null or runs.holder = any(lost))
            and (runs.status in ('paused', 'failed') or (runs.status = 'waiting' and runs.due_at is null)
                 or (runs.status in ('pending', 'waiting') and runs.due_at > (select at from now)))
            order by inbox.priority desc, inbox.at, inbox.run_id limit width) as asked
        join holdfast.runs on runs.key = asked.run
        where lane.priority is not null
    )
    select key, run_id, flow, queue, priority, seq, fence, why, since
    from (select *, row_number() over (partition by queue order by priority desc, since, run_id) as n from offers) as offer
    where n <= width order by priority desc, since, run_id;
end
$$;

-- How many runs of each queue each holder holds.
create function holdfast.held_runs() returns table (queue text, holder text, held bigint)
language plpgsql stable
set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
begin
    return query
    select runs.queue, runs.holder, count(*) from holdfast.runs where runs.holder is not null group by runs.holder, runs.queue;
end
$$;

-- When the first waiting or pending run of some flows and queues (null: all queues) is due, except runs in the queues `stopped` and the
-- runs `without`.
create function holdfast.next_due(of_flows text[], of_queues text[], lost text[], stopped text[], without text[])
returns double precision
language plpgsql stable
set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
begin
    return (
    with recursive
    due_queues (flow, queue) as (
        select wanted.flow, (select runs.queue from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                             and runs.flow = wanted.flow
                             order by runs.queue limit 1)
        from unnest(of_flows) as wanted(flow)
        union all
        select due_queues.flow, (select runs.queue from holdfast.runs
                                 where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                                 and runs.flow = due_queues.flow and runs.queue > due_queues.queue
                                 order by runs.queue limit 1)
        from due_queues where queue is not null
    ),
    due_lanes (flow, queue, priority) as (
        select flow, queue, (select runs.priority from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                             and runs.flow = due_queues.flow and runs.queue = due_queues.queue
                             order by runs.priority desc limit 1)
        from due_queues
        where queue is not null and (of_queues is null or queue = any(of_queues))
        union all
        select flow, queue, (select runs.priority from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                             and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue
                             and runs.priority < due_lanes.priority
                             order by runs.priority desc limit 1)
        from due_lanes where priority is not null
    ),
    left_behind as materialized (select * from holdfast.runs where runs.holder = any(lost))
    select min(due_at) from (
        select (select runs.due_at from holdfast.runs
                where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue and runs.priority = due_lanes.priority
                and runs.run_id <> all(without)
                order by runs.due_at limit 1) as due_at
        from due_lanes where due_lanes.queue <> all(stopped)
        union all
        select runs.due_at from left_behind as runs
        where runs.status in ('pending', 'waiting') and runs.flow = any(of_flows)
        and (of_queues is null or runs.queue = any(of_queues)) and runs.queue <> all(stopped)
        and runs.run_id <> all(without)
    ) as times
    );
end
$$;

-- The body of an event as JSON, for people who read the tables; null if it is compressed or PostgreSQL cannot represent it.
create function holdfast.as_json(body bytea) returns jsonb language plpgsql immutable strict as $$
begin
    if substring(body from 1 for 4) = '\x28b52ffd'::bytea then
        return null;
    end if;
    return convert_from(body, 'UTF8')::jsonb;
exception when data_exception or program_limit_exceeded then
    return null;
end
$$;

-- The events of all runs in a readable form, for ad-hoc SQL.
create view holdfast.events_json as
select runs.run_id, events.seq, to_timestamp(events.at) as at, events.kind, events.node, events.iteration, events.execution,
       events.attempt, holdfast.as_json(events.body) as body
from holdfast.events join holdfast.runs on runs.key = events.run;
