"""What hosts do with the terminal of a session: keys, screens, painting, recording."""
