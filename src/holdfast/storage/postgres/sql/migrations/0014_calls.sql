-- 0014: a holder also says how many of its calls wait for a place, in a thread or a process.
alter table holdfast.holders add column calls text;
