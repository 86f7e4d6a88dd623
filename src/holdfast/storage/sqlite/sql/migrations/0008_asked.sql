-- 0008: the runs with requests in their inbox are found in the order in which workers take them, however many there are.
alter table inbox add column run_id text not null default '';
alter table inbox add column flow text not null default '';
alter table inbox add column queue text not null default '';
alter table inbox add column priority integer not null default 0;

update inbox set run_id = runs.run_id, flow = runs.flow, queue = runs.queue, priority = runs.priority
from runs where runs.key = inbox.run;

drop index inbox_waiting;
create index inbox_waiting on inbox (run, at, key) where taken = 0;
create index inbox_offered on inbox (flow, queue, priority desc, at, run_id) where taken = 0;
