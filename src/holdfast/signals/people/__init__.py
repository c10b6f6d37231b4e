"""Notifying people: which signals, by which channel, and the status of each channel."""
