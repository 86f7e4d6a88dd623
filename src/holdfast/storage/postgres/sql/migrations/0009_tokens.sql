-- 0009: tokens, which say who may use the server of this store.
create table holdfast.tokens (
    id         text collate "C" primary key,
    name       text not null,
    role       text not null,
    kind       text not null,
    digest     bytea not null,
    created_at double precision not null,
    created_by text,
    expires_at double precision,
    revoked_at double precision
);
