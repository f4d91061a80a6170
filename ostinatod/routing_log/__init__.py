"""The routing log: how often each expert was selected, per request and session, in a SQLite file of its own.

Counts, times and enumerated words only; no text of a prompt, an answer, a tool, a file or a client's id. See
docs/privacy.md.
"""
