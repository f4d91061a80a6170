"""`python3 installer VERB` in a checkout, or `python -m ostinatod.installer VERB`.

Kept to syntax that old interpreters parse, so that they get the sentence below and not a SyntaxError.
"""

import importlib
import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(
        "Ostinato needs Python 3.10 or newer; this is Python %d.%d (%s).\n"  # noqa: UP031
        "Install a newer one and run it by name, such as: python3.12 installer"
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )

package = __package__
if not package:
    # Run as a directory: it becomes a package of its parent, so that its modules cannot shadow anybody else's.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.path.dirname(here)
    package = os.path.basename(here)

sys.exit(importlib.import_module(package + ".bootstrap").main())
