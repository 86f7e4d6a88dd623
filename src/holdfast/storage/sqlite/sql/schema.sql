-- The current schema, for reading only. Stores are created by the migrations; a test proves that they add up to this file.

-- One row per store: facts about the store itself.
create table meta (
    name  text not null primary key,
    value text not null
) strict;

-- One row per engine that holds runs, or recently did. Renewing all leases of an engine writes only this row.
create table holders (
    key             integer primary key,
    id              text not null unique,
    host            text not null,
    boot            text not null,
    pid_namespace   text not null,
    pid             integer not null,
    process_started text not null,
    ttl_s           real not null,
    expires_at      real not null,
    flows           text,            -- JSON: the flows whose runs it claims as a worker; null: it is not a worker
    queues          text,            -- JSON: the queues from which it claims them; null: all queues
    version         text not null default '',
    registered_at   real,            -- when the engine was first seen; null: by a version that did not record it
    renewed         real,            -- the uptime of the machine at the last renewal; null: unknown
    calls           text             -- JSON: its calls that waited for a place at the last renewal; null: none
) strict;

-- One row per run: facts fixed at its creation, a summary of its log that every append updates, and its lease.
create table runs (
    key           integer primary key,
    run_id        text not null unique,
    flow          text not null,
    parent        text,              -- the run from which it was forked
    input_digest  blob not null,
    labels        text not null,     -- JSON, to display them; the table `labels` is for searching
    created_at    real not null,
    status        text not null,
    seq           integer not null,  -- of the last event of the log
    digest        blob not null,     -- of the last event of the log
    updated_at    real not null,
    fingerprint   text not null,
    state_version integer not null,
    active        text,              -- JSON; null: empty
    error         text,
    rewinds       text,              -- JSON; null: empty
    due_at        real,
    fence         integer not null,
    holder        integer,           -- holders.key; null: the run is not held
    queue         text not null default 'default',
    priority      integer not null default 0,
    asks          integer,           -- how many questions are open; null: neither this nor the next two columns are known
    active_s      real,
    situation     text,              -- JSON; null: unknown, or empty
    ended_at      real,              -- when the run got its status; null: it is not completed, failed or cancelled
    origin        text               -- the run that started it
) strict;

-- Listings. Each index ends with the order of a listing, so that a page is read from it without sorting. (A run that changes its
-- status moves within two of them; a step without a change writes none.)
create index runs_by_age on runs (created_at, run_id);
create index runs_by_status on runs (status, created_at, run_id);
create index runs_by_flow on runs (flow, status, created_at, run_id);
create index runs_by_parent on runs (parent, created_at, run_id) where parent is not null;
create index runs_by_origin on runs (origin, created_at, run_id) where origin is not null;
create index runs_by_queue on runs (queue, created_at, run_id);
create index runs_asking on runs (created_at, run_id, asks, status)
where asks > 0 or (asks is null and status not in ('completed', 'cancelled'));
create index runs_ended on runs (ended_at, status) where ended_at is not null;

create index runs_by_holder on runs (holder, queue) where holder is not null;

-- Runs that a worker may take, in the order in which they are taken, for each flow and queue. A held run is in neither index,
-- so appends do not update them, although `due_at` may change with every step. The last columns are for counting without the rows.
create index runs_offered on runs (flow, queue, priority desc, created_at, run_id, status, due_at, holder, asks)
where holder is null and status in ('pending', 'running', 'interrupted') and (status <> 'pending' or due_at is null);

create index runs_due on runs (flow, queue, priority desc, due_at, run_id, status, holder, asks)
where holder is null and status in ('pending', 'waiting') and due_at is not null;

-- Queues that have a limit.
create table queues (
    name     text not null primary key,
    held_max integer not null        -- how many of its runs may be held at the same time
) strict;

-- Runs that a worker has refused to continue. A row counts while the log of the run ends at `seq`; it goes with its holder.
create table refusals (
    holder      integer not null,    -- holders.key
    run         integer not null,    -- runs.key
    seq         integer not null,    -- of the last event of the log when the worker refused the run
    fingerprint text not null,       -- of the flow as the worker knows it; empty: it does not know the flow
    too_new     integer not null,    -- 1: its version of Holdfast cannot read the run
    reason      text not null,
    at          real not null,
    primary key (holder, run)
) strict, without rowid;

create index refusals_by_run on refusals (run, seq);

create trigger refusals_of_holder after delete on holders begin
    delete from refusals where holder = old.key;
end;

-- How many runs have each status. Triggers keep it, in the transaction that changes a run; a step without a change of the status
-- writes nothing here.
create table counts (
    status text not null primary key,
    runs   integer not null
) strict, without rowid;

create trigger counts_new after insert on runs begin
    insert into counts (status, runs) values (new.status, 1) on conflict (status) do update set runs = runs + 1;
end;

create trigger counts_turned after update of status on runs when old.status <> new.status begin
    update counts set runs = runs - 1 where status = old.status;
    insert into counts (status, runs) values (new.status, 1) on conflict (status) do update set runs = runs + 1;
end;

create trigger counts_gone after delete on runs begin
    update counts set runs = runs - 1 where status = old.status;
end;

-- The labels of runs, for searching.
create table labels (
    run        integer not null,     -- runs.key
    name       text not null,
    value      text not null,
    created_at real not null,        -- of the run
    primary key (name, value, created_at, run)
) strict, without rowid;

-- The events of all runs. A plain table: in a `without rowid` table, rows over 1 KB take five times their size. The key is run
-- and seq in one number, so that a run's events are stored together and no further index is written.
create table events (
    key       integer primary key,
    run       integer generated always as (key >> 32) virtual,  -- runs.key
    seq       integer generated always as (key & 4294967295) virtual,
    at        real not null,
    kind      text not null,
    node      text,
    iteration integer not null,
    execution integer not null,
    attempt   integer not null,
    salt      blob not null,
    digest    blob not null,
    body      blob not null
) strict;

-- Snapshots: states of runs at a seq. A compaction base replaces events, which are no longer in the log.
create table snapshots (
    key    integer primary key,
    run    integer not null,         -- runs.key
    seq    integer not null,
    base   integer not null,
    digest blob not null,
    body   blob not null
) strict;

create unique index snapshots_by_run on snapshots (run, seq);

-- Definitions of flows, one per fingerprint.
create table definitions (
    key         integer primary key,
    fingerprint text not null unique,
    body        blob not null
) strict;

-- Requests to runs from processes that do not hold them. Handled requests stay, so that posting one again has no effect.
create table inbox (
    key    integer primary key,
    run    integer not null,         -- runs.key
    id     text not null,
    verb   text not null,
    body   text not null,            -- JSON; empty once handled
    "by"   text,
    reason text,
    at     real not null,
    taken  integer not null,         -- the seq of the event that handled it; 0: not handled yet
    digest blob,                     -- sha256 of verb and body; null: posted before there were digests
    unmet  integer not null default 0, -- 1: it still waited when the run was completed or cancelled
    run_id   text not null default '', -- this and the next three columns are those of the run
    flow     text not null default '',
    queue    text not null default '',
    priority integer not null default 0
) strict;

create unique index inbox_by_run on inbox (run, id);
create index inbox_waiting on inbox (run, at, key) where taken = 0;
-- Requests that wait, in the order in which workers take their runs.
create index inbox_offered on inbox (flow, queue, priority desc, at, run_id) where taken = 0;

-- What upkeep has removed from a log: checkpoints before `retired` are no longer resume points, and if `base` is not 0, a
-- snapshot (the compaction base) replaces the events up to that seq.
create table trimmed (
    run         integer primary key, -- runs.key
    retired     integer not null,
    retired_at  real not null,
    base        integer not null,
    base_at     real not null,
    base_digest blob not null,       -- sha256 of the stored compaction base
    place       text not null        -- where the log was archived before the compaction; empty: nowhere
) strict;

-- Runs with leftover events (up to the seq `upto`) that no longer belong to any log and are deleted in batches.
create table remains (
    run  integer primary key,        -- runs.key; the run itself may be deleted
    upto integer not null
) strict;

-- Who may use the server of this store, and for what. A token is never deleted, only revoked, because logs name it.
create table tokens (
    id         text not null primary key,
    name       text not null,        -- who uses the token
    role       text not null,
    kind       text not null,        -- person or agent
    digest     blob not null,        -- sha256 of the secret
    created_at real not null,
    created_by text,
    expires_at real,                 -- null: it does not expire
    revoked_at real                  -- null: it was not revoked
) strict;
