"""The store that lives in this process: for tests, and for runs that need not outlive it."""
