-- 0007: which flows and queues a worker takes, and which version of Holdfast an engine uses.
alter table holdfast.holders add column flows text;
alter table holdfast.holders add column queues text;
alter table holdfast.holders add column version text not null default '';
