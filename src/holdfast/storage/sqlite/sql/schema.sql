-- The schema as it is now, for reading. Stores are made by the migrations; a test proves that their sum is this file.

-- One row per store: facts about the store itself.
create table meta (
    name  text not null primary key,
    value text not null
) strict;

-- One row per engine that holds runs, or lately did. Renewal touches this row only.
create table holders (
    key             integer primary key,
    id              text not null unique,
    host            text not null,
    boot            text not null,
    pid_namespace   text not null,
    pid             integer not null,
    process_started text not null,
    ttl_s           real not null,
    expires_at      real not null
) strict;

-- One row per run: what was written once, the view of its log that every append rewrites, and its lease.
create table runs (
    key           integer primary key,
    run_id        text not null unique,
    flow          text not null,
    parent        text,
    input_digest  blob not null,
    labels        text not null,     -- JSON, for reading; `labels` is for finding
    created_at    real not null,
    status        text not null,
    seq           integer not null,  -- where the log ends
    digest        blob not null,     -- the chain there
    updated_at    real not null,
    fingerprint   text not null,
    state_version integer not null,
    active        text,              -- JSON; null where empty
    error         text,
    rewinds       text,              -- JSON; null where empty
    due_at        real,
    fence         integer not null,
    holder        integer,           -- holders.key; null: nobody holds the run
    queue         text not null default 'default',
    priority      integer not null default 0
) strict;

create index runs_by_age on runs (created_at, run_id);
create index runs_by_status on runs (status, created_at, run_id);
create index runs_by_flow on runs (flow, created_at, run_id);
create index runs_by_parent on runs (parent) where parent is not null;
create index runs_by_holder on runs (holder, queue) where holder is not null;

-- What a worker may take, in the order it is taken, for each flow and queue. A held run is in neither, so appends do not write
-- here: `due_at` may change with every step.
create index runs_offered on runs (flow, queue, priority desc, created_at, run_id)
where holder is null and status in ('pending', 'running', 'interrupted');

create index runs_due on runs (flow, queue, priority desc, due_at, run_id)
where holder is null and status = 'waiting' and due_at is not null;

-- Queues that have a limit.
create table queues (
    name     text not null primary key,
    held_max integer not null        -- runs of it that may be held at a time
) strict;

-- What a run is found by.
create table labels (
    run   integer not null,          -- runs.key
    name  text not null,
    value text not null,
    primary key (name, value, run)
) strict, without rowid;

-- The logs. A plain table: rows over 1 KB in a `without rowid` table take five times their size. Its key is run and seq in
-- one number, so that a run's events lie together and no index is written beside them.
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

-- Stored folds. A base stands for events that the log does not hold.
create table snapshots (
    key    integer primary key,
    run    integer not null,         -- runs.key
    seq    integer not null,
    base   integer not null,
    digest blob not null,
    body   blob not null
) strict;

create unique index snapshots_by_run on snapshots (run, seq);

-- Definitions of flows, once per fingerprint.
create table definitions (
    key         integer primary key,
    fingerprint text not null unique,
    body        blob not null
) strict;

-- What everyone who does not hold a run wants of it. Taken requests keep their id, so that posting again stays harmless.
create table inbox (
    key    integer primary key,
    run    integer not null,         -- runs.key
    id     text not null,
    verb   text not null,
    body   text not null,            -- JSON; empty once taken
    "by"   text,
    reason text,
    at     real not null,
    taken  integer not null          -- the seq that answered it; 0: it waits
) strict;

create unique index inbox_by_run on inbox (run, id);
create index inbox_waiting on inbox (run) where taken = 0;

-- What was taken from a log: checkpoints before `retired` are no resume points any more, and a base (a snapshot) stands for
-- the events up to `base`, where that is not 0.
create table trimmed (
    run         integer primary key, -- runs.key
    retired     integer not null,
    retired_at  real not null,
    base        integer not null,
    base_at     real not null,
    base_digest blob not null,       -- sha256 of the base as stored
    place       text not null        -- where the log was archived before; empty: nowhere
) strict;

-- Logs of which events up to a place are nobody's any more, and are swept a piece at a time.
create table remains (
    run  integer primary key,        -- runs.key; the run itself may be gone
    upto integer not null
) strict;
