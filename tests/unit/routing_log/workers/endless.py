"""Writes requests 1, 2, 3, … to the log at argv[1] until it is killed; prints a number when the last was written."""

import sys
from itertools import count
from pathlib import Path

from ostinatod.routing_log.writer import RoutingLog
from tests.unit.routing_log.conftest import CAP_BYTES, request

log = RoutingLog(Path(sys.argv[1]), CAP_BYTES)
log.start()
for number in count(1):
    while log.status().written < number - 1:
        pass
    print(number, flush=True)
    log.put(request(number))
