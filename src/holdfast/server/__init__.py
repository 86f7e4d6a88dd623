"""The server: one HTTP API for programs, agents and the page. `asgi` makes the application, `connection` serves it.

A handler of the server executes no node. Reading is done off the event loop.
"""
