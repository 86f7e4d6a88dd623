"""The pure core: the state of a run and what the run does next. No clock, no randomness, no I/O, no logging, no async, no user
code.

Read in this order: `events` (what can happen), `run_state` and `fold` (the state that a log describes), `decide` (what happens
next). `graph`, `topology` and `readiness` define what a flow is and which of its nodes are due; `state` and `codec` convert
values to JSON and back without loss.
"""

VERSION = "0.1.0"
"""The version of Holdfast."""
