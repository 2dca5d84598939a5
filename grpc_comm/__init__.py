"""The wire between draft and target.

gRPC's core writes lines of its own to stderr; what they tell is said in our errors. Whoever wants
them sets GRPC_VERBOSITY. The core reads it when it is first used, so that it is set here.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
