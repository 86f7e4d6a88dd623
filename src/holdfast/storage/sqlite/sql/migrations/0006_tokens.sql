-- 0006: tokens, which say who may use the server of this store.
create table tokens (
    id         text not null primary key,
    name       text not null,
    role       text not null,
    kind       text not null,
    digest     blob not null,
    created_at real not null,
    created_by text,
    expires_at real,
    revoked_at real
) strict;
