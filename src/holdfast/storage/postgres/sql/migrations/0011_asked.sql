-- 0011: the runs with requests in their inbox are found in the order in which workers take them, however many there are.
alter table holdfast.inbox add column run_id text collate "C";
alter table holdfast.inbox add column flow text collate "C";
alter table holdfast.inbox add column queue text collate "C";
alter table holdfast.inbox add column priority bigint;

update holdfast.inbox set run_id = runs.run_id, flow = runs.flow, queue = runs.queue, priority = runs.priority
from holdfast.runs where runs.key = inbox.run;
delete from holdfast.inbox where run_id is null;

-- A process of an older version does not fill these columns, so it can post no request.
alter table holdfast.inbox alter column run_id set not null;
alter table holdfast.inbox alter column flow set not null;
alter table holdfast.inbox alter column queue set not null;
alter table holdfast.inbox alter column priority set not null;

drop index holdfast.inbox_waiting;
create index inbox_waiting on holdfast.inbox (run, at, key) where taken = 0;
create index inbox_offered on holdfast.inbox (flow, queue, priority desc, at, run_id) where taken = 0;

create or replace function holdfast.offers(of_flows text[], of_queues text[], lost text[], given_now double precision, width bigint)
returns table (key bigint, run_id text, flow text, queue text, priority bigint, seq bigint, fence bigint, why text,
               since double precision)
language plpgsql stable
set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
begin
    return query
    with recursive
    now (at) as (select coalesce(given_now, extract(epoch from clock_timestamp())::float8)),
    ready_queues (flow, queue) as (
        select wanted.flow, (select runs.queue from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                             and (runs.status <> 'pending' or runs.due_at is null)
                             and runs.flow = wanted.flow
                             order by runs.queue limit 1)
        from unnest(of_flows) as wanted(flow)
        union all
        select ready_queues.flow, (select runs.queue from holdfast.runs
                                   where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                                   and (runs.status <> 'pending' or runs.due_at is null)
                                   and runs.flow = ready_queues.flow and runs.queue > ready_queues.queue
                                   order by runs.queue limit 1)
        from ready_queues where queue is not null
    ),
    ready_lanes (flow, queue, priority, n) as (
        select flow, queue, (select runs.priority from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                             and (runs.status <> 'pending' or runs.due_at is null)
                             and runs.flow = ready_queues.flow and runs.queue = ready_queues.queue
                             order by runs.priority desc limit 1), 1
        from ready_queues
        where queue is not null and (of_queues is null or queue = any(of_queues))
        union all
        select flow, queue, (select runs.priority from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
                             and (runs.status <> 'pending' or runs.due_at is null)
                             and runs.flow = ready_lanes.flow and runs.queue = ready_lanes.queue
                             and runs.priority < ready_lanes.priority
                             order by runs.priority desc limit 1), n + 1
        from ready_lanes where priority is not null and n < width
    ),
    due_queues (flow, queue) as (
        select wanted.flow, (select runs.queue from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                             and runs.flow = wanted.flow
                             order by runs.queue limit 1)
        from unnest(of_flows) as wanted(flow)
        union all
        select due_queues.flow, (select runs.queue from holdfast.runs
                                 where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                                 and runs.flow = due_queues.flow and runs.queue > due_queues.queue
                                 order by runs.queue limit 1)
        from due_queues where queue is not null
    ),
    due_lanes (flow, queue, priority) as (
        select flow, queue, (select runs.priority from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                             and runs.flow = due_queues.flow and runs.queue = due_queues.queue
                             order by runs.priority desc limit 1)
        from due_queues
        where queue is not null and (of_queues is null or queue = any(of_queues))
        union all
        select flow, queue, (select runs.priority from holdfast.runs
                             where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                             and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue
                             and runs.priority < due_lanes.priority
                             order by runs.priority desc limit 1)
        from due_lanes where priority is not null
    ),
    asked_queues (flow, queue) as (
        select wanted.flow, (select inbox.queue from holdfast.inbox where inbox.taken = 0 and inbox.flow = wanted.flow
                             order by inbox.queue limit 1)
        from unnest(of_flows) as wanted(flow)
        union all
        select asked_queues.flow, (select inbox.queue from holdfast.inbox
                                   where inbox.taken = 0 and inbox.flow = asked_queues.flow
                                   and inbox.queue > asked_queues.queue
                                   order by inbox.queue limit 1)
        from asked_queues where queue is not null
    ),
    asked_lanes (flow, queue, priority) as (
        select flow, queue, (select inbox.priority from holdfast.inbox
                             where inbox.taken = 0 and inbox.flow = asked_queues.flow and inbox.queue = asked_queues.queue
                             order by inbox.priority desc limit 1)
        from asked_queues
        where queue is not null and (of_queues is null or queue = any(of_queues))
        union all
        select flow, queue, (select inbox.priority from holdfast.inbox
                             where inbox.taken = 0 and inbox.flow = asked_lanes.flow and inbox.queue = asked_lanes.queue
                             and inbox.priority < asked_lanes.priority
                             order by inbox.priority desc limit 1)
        from asked_lanes where priority is not null
    ),
    left_behind as materialized (select * from holdfast.runs where runs.holder = any(lost)),
    offers as (
        select runs.key, runs.run_id, runs.flow, runs.queue, runs.priority, runs.seq, runs.fence,
               runs.status as why, runs.created_at as since
        from ready_lanes as lane cross join lateral (
            select * from holdfast.runs where runs.holder is null and runs.status in ('pending', 'running', 'interrupted')
            and (runs.status <> 'pending' or runs.due_at is null)
            and runs.flow = lane.flow and runs.queue = lane.queue
            and runs.priority between lane.priority and lane.priority
            order by runs.priority desc, runs.created_at, runs.run_id limit width) as runs
        where lane.priority is not null
        union all
        select runs.key, runs.run_id, runs.flow, runs.queue, runs.priority, runs.seq, runs.fence,
               case runs.status when 'waiting' then 'due' else runs.status end, runs.due_at
        from due_lanes as lane cross join lateral (
            select * from holdfast.runs where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
            and runs.flow = lane.flow and runs.queue = lane.queue
            and runs.priority between lane.priority and lane.priority and runs.due_at <= (select at from now)
            order by runs.priority desc, runs.due_at, runs.run_id limit width) as runs
        where lane.priority is not null
        union all
        (select runs.key, runs.run_id, runs.flow, runs.queue, runs.priority, runs.seq, runs.fence,
                case runs.status when 'waiting' then 'due' else runs.status end,
                case when runs.status in ('pending', 'waiting') then coalesce(runs.due_at, runs.created_at)
                     else runs.created_at end
         from left_behind as runs
         where runs.flow = any(of_flows) and (of_queues is null or runs.queue = any(of_queues))
         and (runs.status in ('running', 'interrupted') or (runs.status = 'pending' and runs.due_at is null)
              or (runs.status in ('pending', 'waiting') and runs.due_at <= (select at from now))))
        union all
        select runs.key, runs.run_id, runs.flow, runs.queue, runs.priority, runs.seq, runs.fence, 'asked', asked.at
        from asked_lanes as lane cross join lateral (
            select inbox.run, inbox.at from holdfast.inbox join holdfast.runs on runs.key = inbox.run
            where inbox.taken = 0 and inbox.flow = lane.flow and inbox.queue = lane.queue
            and inbox.priority between lane.priority and lane.priority
            and inbox.key = (select oldest.key from holdfast.inbox as oldest where oldest.run = inbox.run and oldest.taken = 0
                             order by oldest.at, oldest.key limit 1)
            and (runs.holder is null or runs.holder = any(lost))
            and (runs.status in ('paused', 'failed') or (runs.status = 'waiting' and runs.due_at is null)
                 or (runs.status in ('pending', 'waiting') and runs.due_at > (select at from now)))
            order by inbox.priority desc, inbox.at, inbox.run_id limit width) as asked
        join holdfast.runs on runs.key = asked.run
        where lane.priority is not null
    )
    select key, run_id, flow, queue, priority, seq, fence, why, since
    from (select *, row_number() over (partition by queue order by priority desc, since, run_id) as n from offers) as offer
    where n <= width order by priority desc, since, run_id;
end
$$;
