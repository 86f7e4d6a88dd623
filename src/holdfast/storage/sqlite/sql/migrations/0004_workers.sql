-- 0004: which flows and queues a worker takes, and which version of Holdfast an engine uses.
alter table holders add column flows text;
alter table holders add column queues text;
alter table holders add column version text not null default '';
