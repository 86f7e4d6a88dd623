-- 0012: a run can have been started by another run.
alter table holdfast.runs add column origin text;
create index runs_by_origin on holdfast.runs (origin, created_at, run_id) where origin is not null;
