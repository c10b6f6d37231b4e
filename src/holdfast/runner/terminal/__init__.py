"""The terminal half of a session: the PTY, attached clients, the keyboard, marks."""
