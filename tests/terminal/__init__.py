"""Tests of terminal sessions on the host's side."""
