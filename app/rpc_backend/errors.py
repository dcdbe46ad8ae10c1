"""Errors of the wire, raised by both ends.

There are two kinds, as in h11: this end misused the protocol (a bug of ours) or the peer broke it.
The worker turns the second kind into a log line and a closed connection, the client into a
DeviceLostError for every waiter. Any other exception out of `wire` is a bug.
"""

from app.errors import DeviceLostError, LlamaServeError


class LocalProtocolError(LlamaServeError):
    """This end asked for something that the protocol does not allow in its present state."""


class RemoteProtocolError(LlamaServeError):
    """The peer sent bytes that the protocol does not allow; names the command, the value and what
    was expected.
    """


class VersionMismatchError(DeviceLostError):
    """A worker speaks a protocol version that this program does not; names both."""


class GroupError(LlamaServeError):
    """A group of workers that adds tensors up cannot be joined, or has ended; names the cause."""


class DeliveryError(LlamaServeError):
    """A tensor did not get from one worker to another; names the delivery and the cause."""
