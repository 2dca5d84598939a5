"""Communication between Outrider's draft and target.

This module switches off the logging of gRPC's core to stderr, since Outrider's errors contain the
same information. The core reads GRPC_VERBOSITY on first use. A value set by the user is kept.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
