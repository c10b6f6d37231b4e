"""Whether the command waits for input at its terminal."""
