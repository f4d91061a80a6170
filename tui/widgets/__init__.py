"""Widgets that put lines of `view` on the terminal."""
