"""The pure heart: what a run is and what it does next. No clock, no random, no I/O, no logging, no async, no user code.

Read in this order: `events` (what can happen), `run_state` and `fold` (what a log means),
`decide` (what happens next). `graph`, `topology` and `readiness` say what a flow is and which of its nodes are due;
`state` and `codec` keep values exact.
"""
