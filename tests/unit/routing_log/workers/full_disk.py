"""Writes to the log at argv[1] until the file-size limit stands in its way, lifts the limit, and writes once more."""

import resource
import signal
import sys
import time
from pathlib import Path

from ostinatod.routing_log.writer import RoutingLog
from tests.unit.routing_log.conftest import CAP_BYTES, request

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, HARD = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, HARD))

log = RoutingLog(Path(sys.argv[1]), CAP_BYTES, retry_s=0.01)
log.start()
number = 0
while log.status().state == "on" and number < 10_000:
    number += 1
    log.put(request(number))
    log.flush()
print(log.status().state, log.status().reason)
resource.setrlimit(resource.RLIMIT_FSIZE, (HARD, HARD))
time.sleep(0.05)
log.put(request(number + 1))
log.flush()
print(log.status().state, log.status().reason)
log.close()
