-- 0013: how many runs have each status, kept by triggers, so that a board need not count a million runs.
create table counts (
    status text not null primary key,
    runs   integer not null
) strict, without rowid;

insert into counts (status, runs) select status, count(*) from runs group by status;

create trigger counts_new after insert on runs begin
    insert into counts (status, runs) values (new.status, 1) on conflict (status) do update set runs = runs + 1;
end;

create trigger counts_turned after update of status on runs when old.status <> new.status begin
    update counts set runs = runs - 1 where status = old.status;
    insert into counts (status, runs) values (new.status, 1) on conflict (status) do update set runs = runs + 1;
end;

create trigger counts_gone after delete on runs begin
    update counts set runs = runs - 1 where status = old.status;
end;
