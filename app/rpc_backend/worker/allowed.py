"""Which addresses may connect to a worker at all (`--allow`).

Asked for each connection before a byte of it is read. An address is no proof of who somebody is;
that is what the secret is for, which stock main hosts do not know.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network


def is_allowed(host: str, networks: Sequence[Network]) -> bool:
    """Whether a numeric address is in one of the networks; without any, every one is. What a socket
    of both families shows of IPv4 counts as IPv4.
    """
    if not networks:
        return True
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
