-- 0002: queues, priorities, what is on offer, and the generation of a store.
alter table runs add column queue text not null default 'default';
alter table runs add column priority integer not null default 0;

drop index runs_by_holder;
create index runs_by_holder on runs (holder, queue) where holder is not null;

create index runs_offered on runs (flow, queue, priority desc, created_at, run_id)
where holder is null and status in ('pending', 'running', 'interrupted');

create index runs_due on runs (flow, queue, priority desc, due_at, run_id)
where holder is null and status = 'waiting' and due_at is not null;

create table queues (
    name     text not null primary key,
    held_max integer not null
) strict;

insert into meta (name, value) values ('generation', lower(hex(randomblob(16))));
