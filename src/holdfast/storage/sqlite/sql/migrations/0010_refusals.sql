-- 0010: workers record which runs they refuse, and why.
create table refusals (
    holder      integer not null,
    run         integer not null,
    seq         integer not null,
    fingerprint text not null,
    too_new     integer not null,
    reason      text not null,
    at          real not null,
    primary key (holder, run)
) strict, without rowid;

create index refusals_by_run on refusals (run, seq);

create trigger refusals_of_holder after delete on holders begin
    delete from refusals where holder = old.key;
end;
