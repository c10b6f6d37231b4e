"""A toolset for clients of the Model Context Protocol, over stdio and over HTTP.

The server holds nothing that matters: killed at any moment and started again, it shows the same sessions, and what was
not acknowledged comes again.
"""
