"""Ostinato: large mixture-of-experts models, fast for coding agents on one workstation."""

__version__ = "0.1.0"
