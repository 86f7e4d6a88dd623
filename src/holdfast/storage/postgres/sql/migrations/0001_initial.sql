-- The first version: runs with their logs, snapshots, definitions, leases, the inbox and blobs.

create table holdfast.meta (
    name  text primary key,
    value text not null
);

insert into holdfast.meta (name, value) values ('generation', gen_random_uuid()::text);

create table holdfast.holders (
    id              text collate "C" primary key,
    host            text not null,
    boot            text not null,
    pid_namespace   text not null,
    pid             bigint not null,
    process_started text not null,
    ttl_s           double precision not null,
    expires_at      double precision not null
) with (fillfactor = 50);

create table holdfast.runs (
    key           bigint generated always as identity primary key,
    run_id        text collate "C" not null unique,
    flow          text not null,
    parent        text,
    input_digest  bytea not null,
    labels        text not null,
    created_at    double precision not null,
    status        text not null,
    seq           bigint not null,
    digest        bytea not null,
    updated_at    double precision not null,
    fingerprint   text not null,
    state_version bigint not null,
    active        text,
    error         text,
    rewinds       text,
    due_at        double precision,
    fence         bigint not null,
    holder        text collate "C"
) with (fillfactor = 70);

create index runs_by_age on holdfast.runs (created_at, run_id);
create index runs_by_status on holdfast.runs (status, created_at, run_id);
create index runs_by_flow on holdfast.runs (flow, created_at, run_id);
create index runs_by_parent on holdfast.runs (parent) where parent is not null;
create index runs_by_holder on holdfast.runs (holder) where holder is not null;

create table holdfast.labels (
    run   bigint not null,
    name  text collate "C" not null,
    value text collate "C" not null
);

create index labels_by_value on holdfast.labels (hashtextextended(name, 0), hashtextextended(value, 0), run);

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

create table holdfast.snapshots (
    run    bigint not null,
    seq    bigint not null,
    base   boolean not null,
    digest bytea not null,
    body   bytea not null,
    primary key (run, seq)
);

alter table holdfast.snapshots alter column body set storage external;

create table holdfast.definitions (
    fingerprint text collate "C" primary key,
    body        bytea not null
);

create table holdfast.inbox (
    key    bigint generated always as identity primary key,
    run    bigint not null,
    id     text collate "C" not null,
    verb   text not null,
    body   text not null,
    "by"   text,
    reason text,
    at     double precision not null,
    taken  bigint not null
);

create unique index inbox_by_run on holdfast.inbox (run, id);
create index inbox_waiting on holdfast.inbox (run) where taken = 0;

create table holdfast.blobs (
    digest text collate "C" primary key,
    put_at double precision not null,
    body   bytea not null
);

alter table holdfast.blobs alter column body set storage external;

create table holdfast.spills (
    key    bigint generated always as identity primary key,
    run_id text collate "C" not null,
    stream bytea not null,
    data   bytea not null
);

create index spills_by_run on holdfast.spills (run_id, key);

create function holdfast.append_one(
    unsafe boolean, lock_wait text, of_run text, expected bigint, of_fence bigint, of_holder text, gives_back boolean,
    new_digest bytea, new_at double precision, new_status text, new_fingerprint text, new_state_version bigint,
    new_active text, new_error text, new_rewinds text, new_due_at double precision,
    at_s double precision[], kinds text[], nodes text[], iterations bigint[], executions bigint[], attempts bigint[],
    salts bytea[], bodies bytea[], digests bytea[]
) returns double precision language plpgsql as $$
declare
    of_key bigint;
begin
    if not unsafe and (current_setting('synchronous_commit') = 'off' or current_setting('fsync') = 'off') then
        return -1;
    end if;
    perform set_config('lock_timeout', lock_wait, true);
    update holdfast.runs set
        seq = expected + cardinality(kinds), digest = new_digest, updated_at = new_at, status = new_status,
        fingerprint = new_fingerprint, state_version = new_state_version, active = new_active, error = new_error,
        rewinds = new_rewinds, due_at = new_due_at, holder = case when gives_back then null else holder end
    where run_id = of_run and seq = expected and fence = of_fence and holder = of_holder
    returning key into of_key;
    if not found then
        return null;
    end if;
    insert into holdfast.events (run, seq, at, iteration, execution, attempt, kind, node, salt, digest, body)
    select of_key, expected + new.n, new.at, new.iteration, new.execution, new.attempt, new.kind, new.node, new.salt, new.digest,
           new.body
    from unnest(at_s, kinds, nodes, iterations, executions, attempts, salts, bodies, digests)
         with ordinality as new(at, kind, node, iteration, execution, attempt, salt, body, digest, n);
    return extract(epoch from clock_timestamp());
end
$$;

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

create view holdfast.events_json as
select runs.run_id, events.seq, to_timestamp(events.at) as at, events.kind, events.node, events.iteration, events.execution,
       events.attempt, holdfast.as_json(events.body) as body
from holdfast.events join holdfast.runs on runs.key = events.run;
