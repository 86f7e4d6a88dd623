-- 0005: what a request asked for, and whether it still waited when its run was over; runs that begin at a time.
alter table inbox add column digest blob;
alter table inbox add column unmet integer not null default 0;

update inbox set taken = runs.seq, unmet = 1, body = ''
from runs where runs.key = inbox.run and inbox.taken = 0 and runs.status in ('completed', 'cancelled');

-- A pending run that has a time is on offer from then on.
drop index runs_offered;
create index runs_offered on runs (flow, queue, priority desc, created_at, run_id)
where holder is null and status in ('pending', 'running', 'interrupted') and (status <> 'pending' or due_at is null);

drop index runs_due;
create index runs_due on runs (flow, queue, priority desc, due_at, run_id)
where holder is null and status in ('pending', 'waiting') and due_at is not null;
