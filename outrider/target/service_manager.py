"""Tells the service manager that started this process, such as systemd, how it is.

The protocol is that of sd_notify(3): a datagram to the socket that NOTIFY_SOCKET names.
"""

from __future__ import annotations

import os
import socket

from inference.command import say


def notify(*states: str) -> None:
    """Send states such as READY=1. Does nothing without a service manager that wants to know."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(states).encode(), address)
    except OSError as error:
        say(f"the service manager cannot be told {states[0]}: {error.strerror or error}")
