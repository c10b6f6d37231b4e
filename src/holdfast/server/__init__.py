"""The home over HTTP and WebSocket: a host like any other, which owns no session and may be killed at any moment.

A gate that every request passes, a table of routes over the calls of the library, events, and the attach.
"""
