"""Which addresses may connect to a worker at all (`--allow`).

Asked for each connection before a byte of it is read. An address is no proof of who somebody is;
that is what the secret is for, which stock main hosts do not know.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Network = IPv4Network | IPv6Network

_MAPPED: Final = IPv6Network("::ffff:0:0/96")


def as_met(network: Network) -> Network:
    """Return a network as the one that `is_allowed` looks for: IPv4 written as IPv6 is IPv4."""
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        start = network.network_address.ipv4_mapped
        assert start is not None
        return IPv4Network((start, network.prefixlen - _MAPPED.prefixlen))
    return network


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
