-- 0009: a run can have been started by another run.
alter table runs add column origin text;
create index runs_by_origin on runs (origin, created_at, run_id) where origin is not null;
