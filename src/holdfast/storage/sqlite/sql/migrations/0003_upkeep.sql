-- 0003: what was taken from a log, and what is left of logs until it is swept.
create table trimmed (
    run         integer primary key,
    retired     integer not null,
    retired_at  real not null,
    base        integer not null,
    base_at     real not null,
    base_digest blob not null,
    place       text not null
) strict;

create table remains (
    run  integer primary key,
    upto integer not null
) strict;
