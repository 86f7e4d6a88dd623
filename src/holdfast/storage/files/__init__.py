"""Files of a store: blobs, archives and backups, and the functions that make a file durable."""
