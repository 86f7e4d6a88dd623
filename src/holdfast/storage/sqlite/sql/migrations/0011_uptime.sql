-- 0011: a holder also says when it was renewed by the clock that all processes of its machine share.
alter table holders add column renewed real;
