-- 0008: what a request asked for, and whether it still waited when its run was over; runs that begin at a time.
alter table holdfast.inbox add column digest bytea;
alter table holdfast.inbox add column unmet boolean not null default false;

update holdfast.inbox set taken = runs.seq, unmet = true, body = ''
from holdfast.runs where runs.key = inbox.run and inbox.taken = 0 and runs.status in ('completed', 'cancelled');

create function holdfast.close_inbox(of_run bigint, of_seq bigint) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
begin
    update holdfast.inbox set taken = of_seq, unmet = true, body = '' where run = of_run and taken = 0;
end
$$;

-- An append that ends a run closes its inbox.
create or replace function holdfast.append_one(
    unsafe boolean, lock_wait text, of_run text, expected bigint, of_fence bigint, of_holder text, gives_back boolean,
    new_status text, new_fingerprint text, new_state_version bigint, new_active text, new_error text, new_rewinds text,
    new_due_at double precision, new_seq bigint, new_at double precision, new_digest bytea,
    at_1 double precision, kind_1 text, node_1 text, iteration_1 bigint, execution_1 bigint, attempt_1 bigint,
    salt_1 bytea, body_1 bytea, digest_1 bytea,
    at_2 double precision, kind_2 text, node_2 text, iteration_2 bigint, execution_2 bigint, attempt_2 bigint,
    salt_2 bytea, body_2 bytea, digest_2 bytea,
    ats double precision[], kinds text[], nodes text[], iterations bigint[], executions bigint[], attempts bigint[],
    salts bytea[], bodies bytea[], digests bytea[]
) returns double precision language plpgsql as $$
declare
    of_key bigint;
begin
    if not unsafe and (current_setting('synchronous_commit') = 'off' or current_setting('fsync') = 'off') then
        return -1;
    end if;
    perform set_config('lock_timeout', lock_wait, true);
    if new_status in ('completed', 'cancelled') then
        perform from holdfast.runs where run_id = of_run for update;
    end if;
    update holdfast.runs set
        seq = new_seq, digest = new_digest, updated_at = new_at, status = new_status, fingerprint = new_fingerprint,
        state_version = new_state_version, active = new_active, error = new_error, rewinds = new_rewinds, due_at = new_due_at,
        holder = case when gives_back then null else holder end
    where run_id = of_run and seq = expected and fence = of_fence and holder = of_holder
    returning key into of_key;
    if not found then
        return null;
    end if;
    if new_status in ('completed', 'cancelled') then
        perform holdfast.close_inbox(of_key, new_seq);
    end if;
    if gives_back then
        perform holdfast.tell(array[of_key]);
    end if;
    if kind_2 is null then
        insert into holdfast.events (run, seq, at, kind, node, iteration, execution, attempt, salt, body, digest)
        values (of_key, expected + 1, at_1, kind_1, node_1, iteration_1, execution_1, attempt_1, salt_1, body_1, digest_1);
    else
        insert into holdfast.events (run, seq, at, kind, node, iteration, execution, attempt, salt, body, digest)
        values (of_key, expected + 1, at_1, kind_1, node_1, iteration_1, execution_1, attempt_1, salt_1, body_1, digest_1),
               (of_key, expected + 2, at_2, kind_2, node_2, iteration_2, execution_2, attempt_2, salt_2, body_2, digest_2);
    end if;
    if cardinality(kinds) <= 8 then
        for n in 1 .. cardinality(kinds) loop
            insert into holdfast.events (run, seq, at, kind, node, iteration, execution, attempt, salt, body, digest)
            values (of_key, expected + 2 + n, ats[n], kinds[n], nodes[n], iterations[n], executions[n], attempts[n], salts[n],
                    bodies[n], digests[n]);
        end loop;
    elsif kinds is not null then
        insert into holdfast.events (run, seq, at, kind, node, iteration, execution, attempt, salt, body, digest)
        select of_key, expected + 2 + new.n, new.at, new.kind, new.node, new.iteration, new.execution, new.attempt, new.salt,
               new.body, new.digest
        from unnest(ats, kinds, nodes, iterations, executions, attempts, salts, bodies, digests)
             with ordinality as new(at, kind, node, iteration, execution, attempt, salt, body, digest, n);
    end if;
    return date_part('epoch', clock_timestamp());
end
$$;

-- A pending run that has a time is on offer from then on.
drop index holdfast.runs_offered;
create index runs_offered on holdfast.runs (flow, queue, priority desc, created_at, run_id)
where holder is null and status in ('pending', 'running', 'interrupted') and (status <> 'pending' or due_at is null);

drop index holdfast.runs_due;
create index runs_due on holdfast.runs (flow, queue, priority desc, due_at, run_id)
where holder is null and status in ('pending', 'waiting') and due_at is not null;

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
        (select runs.key, runs.run_id, runs.flow, runs.queue, runs.priority, runs.seq, runs.fence, 'asked', asked.at
         from (select run, min(at) as at from holdfast.inbox where taken = 0 group by run) as asked
         join holdfast.runs on runs.key = asked.run
         where (runs.holder is null or runs.holder = any(lost))
         and runs.flow = any(of_flows) and (of_queues is null or runs.queue = any(of_queues))
         and (runs.status in ('paused', 'failed') or (runs.status = 'waiting' and runs.due_at is null)
              or (runs.status in ('pending', 'waiting') and runs.due_at > (select at from now))))
    )
    select key, run_id, flow, queue, priority, seq, fence, why, since
    from (select *, row_number() over (partition by queue order by priority desc, since, run_id) as n from offers) as offer
    where n <= width order by priority desc, since, run_id;
end
$$;

create or replace function holdfast.next_due(of_flows text[], of_queues text[], lost text[], stopped text[], without text[])
returns double precision
language plpgsql stable
set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
begin
    return (
    with recursive
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
    left_behind as materialized (select * from holdfast.runs where runs.holder = any(lost))
    select min(due_at) from (
        select (select runs.due_at from holdfast.runs
                where runs.holder is null and runs.status in ('pending', 'waiting') and runs.due_at is not null
                and runs.flow = due_lanes.flow and runs.queue = due_lanes.queue and runs.priority = due_lanes.priority
                and runs.run_id <> all(without)
                order by runs.due_at limit 1) as due_at
        from due_lanes where due_lanes.queue <> all(stopped)
        union all
        select runs.due_at from left_behind as runs
        where runs.status in ('pending', 'waiting') and runs.flow = any(of_flows)
        and (of_queues is null or runs.queue = any(of_queues)) and runs.queue <> all(stopped)
        and runs.run_id <> all(without)
    ) as times
    );
end
$$;
