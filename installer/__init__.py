"""Everything between a fresh clone and a running engine: environment, pinned source, patches, compile, uninstall.

`bootstrap` and the modules it imports use the standard library only, because nothing is installed when they run.
"""
