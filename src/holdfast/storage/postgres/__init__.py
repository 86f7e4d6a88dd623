"""The store on a PostgreSQL server, and its SQL."""
