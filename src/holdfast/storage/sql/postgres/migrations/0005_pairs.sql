-- 0005: the two rows of nearly every step are written at once, and the time is told as the number it is kept as.

create or replace function holdfast.append_one(
    unsafe boolean, lock_wait text, of_run text, expected bigint, of_fence bigint, of_holder text, gives_back boolean,
    new_digest bytea, new_at double precision, new_status text, new_fingerprint text, new_state_version bigint,
    new_active text, new_error text, new_rewinds text, new_due_at double precision,
    at_s double precision[], kinds text[], nodes text[], iterations bigint[], executions bigint[], attempts bigint[],
    salts bytea[], bodies bytea[], digests bytea[]
) returns double precision language plpgsql as $$
declare
    of_key bigint;
begin
    if not unsafe and (current_setting('synchronous_commit') = 'off' or current_setting('fsync') = 'off') then
        return -1;
    end if;
    perform set_config('lock_timeout', lock_wait, true);
    update holdfast.runs set
        seq = expected + cardinality(kinds), digest = new_digest, updated_at = new_at, status = new_status,
        fingerprint = new_fingerprint, state_version = new_state_version, active = new_active, error = new_error,
        rewinds = new_rewinds, due_at = new_due_at, holder = case when gives_back then null else holder end
    where run_id = of_run and seq = expected and fence = of_fence and holder = of_holder
    returning key into of_key;
    if not found then
        return null;
    end if;
    if gives_back then
        perform holdfast.tell(array[of_key]);
    end if;
    if cardinality(kinds) = 2 then
        insert into holdfast.events (run, seq, at, iteration, execution, attempt, kind, node, salt, digest, body)
        values (of_key, expected + 1, at_s[1], iterations[1], executions[1], attempts[1], kinds[1], nodes[1], salts[1],
                digests[1], bodies[1]),
               (of_key, expected + 2, at_s[2], iterations[2], executions[2], attempts[2], kinds[2], nodes[2], salts[2],
                digests[2], bodies[2]);
    elsif cardinality(kinds) <= 8 then
        for n in 1 .. cardinality(kinds) loop
            insert into holdfast.events (run, seq, at, iteration, execution, attempt, kind, node, salt, digest, body)
            values (of_key, expected + n, at_s[n], iterations[n], executions[n], attempts[n], kinds[n], nodes[n], salts[n],
                    digests[n], bodies[n]);
        end loop;
    else
        insert into holdfast.events (run, seq, at, iteration, execution, attempt, kind, node, salt, digest, body)
        select of_key, expected + new.n, new.at, new.iteration, new.execution, new.attempt, new.kind, new.node, new.salt,
               new.digest, new.body
        from unnest(at_s, kinds, nodes, iterations, executions, attempts, salts, bodies, digests)
             with ordinality as new(at, kind, node, iteration, execution, attempt, salt, body, digest, n);
    end if;
    return date_part('epoch', clock_timestamp());
end
$$;
