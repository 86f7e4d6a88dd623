-- 0005: what a request asked for, and whether it still waited when its run was over.
alter table inbox add column digest blob;
alter table inbox add column unmet integer not null default 0;

update inbox set taken = runs.seq, unmet = 1, body = ''
from runs where runs.key = inbox.run and inbox.taken = 0 and runs.status in ('completed', 'cancelled');
