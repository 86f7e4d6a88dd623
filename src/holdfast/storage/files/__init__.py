"""What stores keep in files: blobs, archives and backups, and how a file becomes durable."""
