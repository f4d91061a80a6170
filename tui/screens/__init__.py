"""Screens: the dashboard with its presets, and what opens above it."""
