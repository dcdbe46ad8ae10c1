"""The greeting with a worker of our own: EXTEND, and the proof of a secret, right and wrong."""

from app.rpc_backend.wire import extensions as x
from app.rpc_backend.worker.access import OPEN, Access
from tests.fuzz.caller import Caller
from tests.fuzz.census import Census
from tests.fuzz.dice import Dice
from tests.fuzz.talk import request

SECRET = b"known to some"
_BEFORE_PROOF = ("HELLO", "EXTEND", "PROVE")


def access(dice: Dice) -> Access:
    """Return the rules for one client; one of eight has to know a secret."""
    return Access(SECRET) if dice.chance(0.125) else OPEN


def greet(dice: Dice, link: Caller) -> None:
    """Go on to an extended conversation, mostly; whoever is wrong must be shut out.

    Raises: SessionError, HasEndedError.
    """
    secret = link.session.state.access.secret
    if secret is None and dice.chance(0.4):
        return
    nonce = dice.randbytes(x.NONCE_BYTES)
    if secret is not None:
        _try_without(dice, link)
    revision = dice.choice((0, 2, 255)) if dice.chance(0.1) else x.REVISION
    reply = link.call(x.Extend(revision, nonce))
    assert isinstance(reply, x.ExtendReply)
    if secret is None:
        return
    said = (nonce, reply.nonce, b"")
    theirs = x.prove(secret, x.Speaker.WORKER, *said)
    _try_without(dice, link)
    right = x.prove(secret, x.Speaker.CLIENT, *said)
    wrong = (theirs, dice.randbytes(32), bytes(32), x.prove(b"", x.Speaker.CLIENT, *said))
    proof = right if dice.chance(0.7) else dice.choice(wrong)
    answer = link.call(x.Prove(proof))
    assert proof == right, "a wrong proof was taken"
    assert answer == x.ProveReply(1, theirs), "another proof than the right"


def _try_without(dice: Dice, link: Caller) -> None:
    """Ask for something that only those who know the secret may have; nothing must come of it."""
    if dice.chance(0.8):
        return
    counted, link.session.census = link.session.census, Census()
    try:
        link.raw(request(dice, link.version, []))
    finally:
        seen, link.session.census = link.session.census, counted
        names = {key.split()[1] for key in (*seen.accepted, *seen.refused)}
        assert names <= {*_BEFORE_PROOF}, f"served without a proof: {names}"
