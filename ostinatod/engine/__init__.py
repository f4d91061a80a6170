"""Engine processes: their arguments, their life, and the client that talks to them over a Unix socket."""
