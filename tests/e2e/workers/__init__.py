"""Scripts run in processes of their own, because a process binds to one build of the engine's libraries only."""
