-- 0010: run rows tell what a listing shows, and every way to list them goes by an index.
alter table holdfast.holders add column registered_at double precision;
alter table holdfast.runs add column asks bigint;
alter table holdfast.runs add column active_s double precision;
alter table holdfast.runs add column situation text;
alter table holdfast.runs add column ended_at double precision;

update holdfast.runs set ended_at = updated_at
where status in ('completed', 'failed', 'cancelled') and updated_at > extract(epoch from clock_timestamp()) - 3600;

drop index holdfast.runs_by_flow;
create index runs_by_flow on holdfast.runs (flow, status, created_at, run_id);
drop index holdfast.runs_by_parent;
create index runs_by_parent on holdfast.runs (parent, created_at, run_id) where parent is not null;
create index runs_by_queue on holdfast.runs (queue, created_at, run_id);
create index runs_asking on holdfast.runs (created_at, run_id)
where asks > 0 or (asks is null and status not in ('completed', 'cancelled'));
create index runs_ended on holdfast.runs (ended_at, status) where ended_at is not null;

-- The labels of a run, in the order in which runs are listed.
alter table holdfast.labels add column created_at double precision;
update holdfast.labels set created_at = runs.created_at from holdfast.runs where runs.key = labels.run;
delete from holdfast.labels where created_at is null;
alter table holdfast.labels alter column created_at set not null;
drop index holdfast.labels_by_value;
create index labels_by_value on holdfast.labels (hashtextextended(name, 0), hashtextextended(value, 0), created_at, run);

-- An append also writes the new columns. A process of an older version finds no function with its parameters, and writes nothing.
drop function holdfast.append_one(
    boolean, text, text, bigint, bigint, text, boolean, text, text, bigint, text, text, text, double precision, bigint, double
    precision, bytea, double precision, text, text, bigint, bigint, bigint, bytea, bytea, bytea, double precision, text, text,
    bigint, bigint, bigint, bytea, bytea, bytea, double precision[], text[], text[], bigint[], bigint[], bigint[], bytea[],
    bytea[], bytea[]
);

create function holdfast.append_one(
    unsafe boolean, lock_wait text, of_run text, expected bigint, of_fence bigint, of_holder text, gives_back boolean,
    new_status text, new_fingerprint text, new_state_version bigint, new_active text, new_error text, new_rewinds text,
    new_due_at double precision, new_seq bigint, new_at double precision, new_digest bytea,
    at_1 double precision, kind_1 text, node_1 text, iteration_1 bigint, execution_1 bigint, attempt_1 bigint,
    salt_1 bytea, body_1 bytea, digest_1 bytea,
    at_2 double precision, kind_2 text, node_2 text, iteration_2 bigint, execution_2 bigint, attempt_2 bigint,
    salt_2 bytea, body_2 bytea, digest_2 bytea,
    ats double precision[], kinds text[], nodes text[], iterations bigint[], executions bigint[], attempts bigint[],
    salts bytea[], bodies bytea[], digests bytea[],
    new_asks bigint, new_active_s double precision, new_situation text
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
        holder = case when gives_back then null else holder end,
        asks = new_asks, active_s = new_active_s, situation = new_situation,
        ended_at = case when new_status not in ('completed', 'failed', 'cancelled') then null
                        when status = new_status then ended_at else new_at end
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
