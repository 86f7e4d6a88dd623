"""The store in memory, for tests and for runs that need not outlive the process."""
