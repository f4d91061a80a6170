"""What the panels say: pure functions from what the daemon told to lines of text. Knows no terminal library."""
