"""What a host does: find, start, read, wait for and stop sessions."""
