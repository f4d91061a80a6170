"""The daemon as a service of this user: a systemd user unit on Linux, a launchd agent on macOS.

Writes one file in the user's home and asks the user's own service manager to start it; never needs root. Removing it
removes exactly that file and what enabling it made.
"""
