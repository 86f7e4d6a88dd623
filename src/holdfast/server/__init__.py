"""The server: an HTTP API for programs and agents. `asgi` makes the application, `connection` serves it.

A handler of the server executes no node. Reading is done off the event loop.
"""

MISSING_PACKAGES = "the server needs more packages: pip install 'holdfast[server]', or '.[server]' in a clone"
"""The error for an installation without the extra `server`."""
