"""Which agent session a request belongs to, what kind of turn it is, and where its prompt broke with the one before.

Holds keyed hashes of messages in memory, never text, and nothing on disk.
"""
