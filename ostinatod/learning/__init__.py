"""Learning which experts to keep hot: plans from the routing log, applied between sessions, kept and taken back.

`planning` decides (pure), `generations` remembers, `application` tells the engine, `service` does it between sessions.
"""
