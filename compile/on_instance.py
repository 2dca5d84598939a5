"""The flags of a build on an instance of EC2; deploy/cloud_build.py makes it."""

from __future__ import annotations

from dataclasses import dataclass

from inference.command import option
from inference.errors import InvalidRequest

_GROUP = "built on an instance of EC2, which is removed afterwards (outrider compile --on TYPE)"


@dataclass(frozen=True)
class OnInstance:
    """Where the artefact is built; here, unless `on` names an instance type."""

    on: str | None = option(
        None,
        "instance type, such as r7i.4xlarge or trn1.32xlarge; with --dry_run its price and memory "
        "are printed, and nothing is started",
        _GROUP,
        metavar="TYPE",
    )
    region: str | None = option(
        None, "AWS region (default: that of boto3's configuration, else us-east-1)", _GROUP
    )
    spot: bool = option(False, "cheaper, and AWS may end it at any time", _GROUP)
    most_hours: float = option(
        6.0,
        "the instance ends itself after so long, whatever it does (default: %(default)s)",
        _GROUP,
        metavar="HOURS",
    )
    image: str | None = option(
        None,
        "public SSM parameter of the machine image (default: by --target)",
        _GROUP,
        metavar="PARAMETER",
    )
    wheel: str | None = option(
        None,
        "Outrider for the instance (default: built from this checkout)",
        _GROUP,
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        if not 0 < self.most_hours <= 24 * 7:
            raise InvalidRequest(f"--most_hours {self.most_hours}: above 0 and up to 168 is needed")
        given = [name for name, value in vars(self).items() if value not in (None, False, 6.0)]
        if self.on is None and given:
            raise InvalidRequest(f"--{given[0]} is of a build on an instance: it goes with --on")
