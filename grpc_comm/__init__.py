"""The wire between draft and target of Outrider.

gRPC's core logs to stderr, which is switched off here, as our errors contain the same. The core
reads GRPC_VERBOSITY when it is first used. A value set by the user stays.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
