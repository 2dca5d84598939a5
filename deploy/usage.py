"""What a target has used so far, as AWS's own records say. Reads only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from deploy.aws import Aws, aws_refusals
from deploy.bill import BYTES_PER_GB, Usage, charged_seconds
from deploy.bucket import Bucket
from deploy.running_instance import RunningInstance, describe_instances
from inference.cost.accounting import SECONDS_PER_HOUR
from inference.errors import InvalidRequest

_ENDED = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
_OWN_BUCKET = "outrider-"
_MOST_POINTS = 1440  # that CloudWatch gives in one reply
