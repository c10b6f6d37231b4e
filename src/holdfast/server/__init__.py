"""The home over HTTP and WebSocket: a host like any other, which owns no session and may be killed at any moment.

It has only what attaching needs: a gate that every request passes, tickets, and the attach itself.
"""
