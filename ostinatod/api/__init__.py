"""The daemon's HTTP API: what is asked, by whom, and in which dialect it is answered."""
