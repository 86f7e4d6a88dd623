-- 0007: run rows tell what a listing shows, and every way to list them goes by an index.
alter table holders add column registered_at real;
alter table runs add column asks integer;
alter table runs add column active_s real;
alter table runs add column situation text;
alter table runs add column ended_at real;

update runs set ended_at = updated_at
where status in ('completed', 'failed', 'cancelled') and updated_at > unixepoch() - 3600;

drop index runs_by_flow;
create index runs_by_flow on runs (flow, status, created_at, run_id);
drop index runs_by_parent;
create index runs_by_parent on runs (parent, created_at, run_id) where parent is not null;
create index runs_by_queue on runs (queue, created_at, run_id);
create index runs_asking on runs (created_at, run_id, asks, status)
where asks > 0 or (asks is null and status not in ('completed', 'cancelled'));
create index runs_ended on runs (ended_at, status) where ended_at is not null;

-- What is on offer is counted without reading the rows.
drop index runs_offered;
create index runs_offered on runs (flow, queue, priority desc, created_at, run_id, status, due_at, holder, asks)
where holder is null and status in ('pending', 'running', 'interrupted') and (status <> 'pending' or due_at is null);
drop index runs_due;
create index runs_due on runs (flow, queue, priority desc, due_at, run_id, status, holder, asks)
where holder is null and status in ('pending', 'waiting') and due_at is not null;

-- The labels of a run, in the order in which runs are listed. They are derived from the run rows.
drop table labels;
create table labels (
    run        integer not null,
    name       text not null,
    value      text not null,
    created_at real not null,
    primary key (name, value, created_at, run)
) strict, without rowid;

insert into labels (run, name, value, created_at)
select runs.key, label.key, label.value, runs.created_at from runs cross join json_each(runs.labels) as label;
