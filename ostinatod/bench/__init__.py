"""The replay benchmark: recorded agent sessions, replayed token by token under settings of the engine (paper 4.1-4.3).

Whoever times loads one model into one process of its own (`child`), which needs numpy and the bindings and nothing else
of the project; the processes are planned and read by `comparison`, and what comes out is computed by `statistics` and
told by `report` and `plot`. The faces are `ostinato bench` and `benchmarks/replay.py`.
"""
