"""The terminal dashboard: its own process, which knows the daemon only through its HTTP API.

`view` turns what the daemon told into lines of text without a terminal library; `widgets` and `screens` put those lines
on the terminal; `feed` and `jobs` talk to the daemon beside the terminal's own loop.
"""
