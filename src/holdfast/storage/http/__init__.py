"""A store on a server: read and asked over HTTP."""
