"""What every server needs: a token that is kept in the home, a socket to listen on, and a way to leave."""
