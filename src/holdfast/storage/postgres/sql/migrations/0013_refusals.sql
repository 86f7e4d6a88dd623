-- 0013: workers record which runs they refuse, and why.
create table holdfast.refusals (
    holder      text collate "C" not null references holdfast.holders (id) on delete cascade,
    run         bigint not null,
    seq         bigint not null,
    fingerprint text not null,
    too_new     boolean not null,
    reason      text not null,
    at          double precision not null,
    primary key (holder, run)
);

create index refusals_by_run on holdfast.refusals (run, seq);
