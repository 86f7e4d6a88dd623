-- 0001: everything a store of the first version holds. Never changed; what comes later is a migration of its own.
create table meta (
    name  text not null primary key,
    value text not null
) strict;

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

create table runs (
    key           integer primary key,
    run_id        text not null unique,
    flow          text not null,
    parent        text,
    input_digest  blob not null,
    labels        text not null,
    created_at    real not null,
    status        text not null,
    seq           integer not null,
    digest        blob not null,
    updated_at    real not null,
    fingerprint   text not null,
    state_version integer not null,
    active        text,
    error         text,
    rewinds       text,
    due_at        real,
    fence         integer not null,
    holder        integer
) strict;

create index runs_by_age on runs (created_at, run_id);
create index runs_by_status on runs (status, created_at, run_id);
create index runs_by_flow on runs (flow, created_at, run_id);
create index runs_by_parent on runs (parent) where parent is not null;
create index runs_by_holder on runs (holder) where holder is not null;

create table labels (
    run   integer not null,
    name  text not null,
    value text not null,
    primary key (name, value, run)
) strict, without rowid;

create table events (
    key       integer primary key,
    run       integer generated always as (key >> 32) virtual,
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

create table snapshots (
    key    integer primary key,
    run    integer not null,
    seq    integer not null,
    base   integer not null,
    digest blob not null,
    body   blob not null
) strict;

create unique index snapshots_by_run on snapshots (run, seq);

create table definitions (
    key         integer primary key,
    fingerprint text not null unique,
    body        blob not null
) strict;

create table inbox (
    key    integer primary key,
    run    integer not null,
    id     text not null,
    verb   text not null,
    body   text not null,
    "by"   text,
    reason text,
    at     real not null,
    taken  integer not null
) strict;

create unique index inbox_by_run on inbox (run, id);
create index inbox_waiting on inbox (run) where taken = 0;

insert into meta (name, value) values ('store_id', lower(hex(randomblob(16))));
