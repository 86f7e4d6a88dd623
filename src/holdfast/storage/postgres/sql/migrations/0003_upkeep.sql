-- 0003: what was taken from a log, and what is left of logs until it is swept.
create table holdfast.trimmed (
    run         bigint primary key,
    retired     bigint not null,
    retired_at  double precision not null,
    base        bigint not null,
    base_at     double precision not null,
    base_digest bytea not null,
    place       text not null
);

create table holdfast.remains (
    run  bigint primary key,
    upto bigint not null
);
