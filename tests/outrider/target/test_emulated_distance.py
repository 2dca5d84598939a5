"""`outrider target --emulate NAME --rtt MS` is reached over an emulated link."""

from __future__ import annotations

from pathlib import Path

import pytest

import outrider
from grpc_comm.certificate import make_certificate
from grpc_comm.client.connection import connect
from grpc_comm.security import SecurityOptions
from inference.errors import OutriderError
from outrider.options.roles import TargetRole
from tests.support.refusals import assert_refused

PROFILE = "llama-3.1-8b-trn1.2xlarge-measured"
ROUND_TRIP = 0.2


def test_an_emulated_target_is_encrypted_and_as_far_away_as_its_round_trip(
    tmp_path: Path,
) -> None:
    files = make_certificate(tmp_path, ["localhost"])
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    served = outrider.serve(
        port=0, batch=1, emulate=PROFILE, rtt=ROUND_TRIP * 1e3, token_file=str(token),
        tls_cert=str(files.certificate), tls_key=str(files.key),
    )  # fmt: skip
    with served as target:
        address = f"localhost:{target.address.rpartition(':')[2]}"
        security = SecurityOptions(tls_ca=files.ca, token_file=token)
        with connect(address, security=security) as client:
            assert client.probe() >= ROUND_TRIP
            assert client.description.emulated
            assert client.description.device.endswith("200 ms away")
        with (
            pytest.raises(OutriderError),
            connect(address, security=SecurityOptions(tls_ca=files.ca)) as client,
        ):
            client.probe()


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ({"rtt": 20.0}, ["--rtt", "--emulate"]),
        ({"rtt": -1.0, "emulate": PROFILE}, ["--rtt", "-1", "above 0"]),
        ({"rtt": 1e6, "emulate": PROFILE}, ["--rtt", "10000"]),
    ],
)
def test_a_distance_is_bounded_and_is_that_of_an_emulated_target(
    flags: dict[str, object], shown: list[str]
) -> None:
    assert_refused(lambda: TargetRole(**flags), shown)  # type: ignore[arg-type]
