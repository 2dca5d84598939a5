"""The wire between draft and target.

gRPC's core writes lines of its own to stderr, which are switched off here: our errors say the same.
The core reads GRPC_VERBOSITY when it is first used. A value that the user has set is kept.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
