"""An extended conversation with a worker, without sockets: failures are told and leave the rest
alone, the secret is proved by both, and stock clients meet none of it.
"""

import struct
from typing import Final

import pytest

from app.devices.null import NullDevice
from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.greeting import AccessRefusedError, Credentials, greet
from app.rpc_backend.client.secure import Trust
from app.rpc_backend.errors import LocalProtocolError, RemoteProtocolError
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.client_core import ClientCore, Reply
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.tensor import NULL_TENSOR, Place, to_wire
from app.rpc_backend.worker.access import OPEN, Access
from app.rpc_backend.worker.outgoing import Letter
from app.rpc_backend.worker.seal import Seal
from app.rpc_backend.worker.session import Session, SessionError
from app.rpc_backend.worker.state import ClientState
from tests.helpers.rpc_frames import HELLO, frame, u32, u64
from tests.helpers.rpc_link import received

SECRET: Final = b"a secret of the house"
CERTIFICATE: Final = b"c" * 32


class Talk:
    """Our client's core and a worker's session, joined in memory."""

    def __init__(self, access: Access = OPEN, credentials: Credentials | None = None) -> None:
        self.device = NullDevice(total=1 << 20)
        self.session = Session([self.device], 8, access=access)
        self.core = ClientCore()
        self.replies: list[Reply] = []
        self.give(self.core.hello())
        self.replies.clear()
        if credentials is not None:
            greet(self.ask, self.core, credentials)

    def give(self, data: Body) -> None:
        """Hand bytes to the worker and what it answers to the client."""
        view = memoryview(bytes(data))
        while view:
            room = self.session.writable()
            n = min(len(room), len(view))
            room[:n] = view[:n]
            room.release()
            view = view[n:]
            for piece in self.session.wrote(n):
                self.replies += received(self.core, bytes(piece))

    def send(self, message: m.Message, data: bytes = b"") -> list[Reply]:
        """Send one request and return everything that came back."""
        self.replies.clear()
        head, _ = self.core.request(message, len(data))
        self.give(head + data)
        return list(self.replies)

    def ask(self, message: m.Message) -> m.Message:
        (reply,) = self.send(message)
        return reply.body


def extended(access: Access = OPEN) -> Talk:
    return Talk(access, Credentials(access.secret, access.certificate))


def error_of(reply: Reply) -> x.ErrorReply:
    assert isinstance(reply.body, x.ErrorReply)
    return reply.body


def test_a_ping_comes_back() -> None:
    assert extended().ask(x.Ping(2**64 - 1)) == x.Ping(2**64 - 1)


def test_a_command_that_fails_in_place_of_its_reply_leaves_the_conversation_open() -> None:
    talk = extended()
    (reply,) = talk.send(m.BufferGetBase(99))
    assert reply.command is not None
    assert reply.command.number is Cmd.BUFFER_GET_BASE
    assert error_of(reply).code == x.ErrorCode.PROTOCOL
    assert "BUFFER_GET_BASE: buffer handle 0x63" in error_of(reply).text
    assert talk.ask(m.DeviceCount()) == m.DeviceCountReply(1)


def test_a_command_without_a_reply_that_fails_is_told_between_two_replies() -> None:
    talk = extended()
    talk.send(x.Ping(1))
    (reply,) = talk.send(m.FreeBuffer(99))
    assert reply.command is None
    assert error_of(reply).request == 1
    assert talk.ask(m.DeviceCount()) == m.DeviceCountReply(1)


def test_a_failure_between_requests_under_way_is_matched_with_its_own() -> None:
    talk = extended()
    talk.replies.clear()
    requests = [x.Ping(1), m.FreeBuffer(98), m.GetAlignment(7), m.FreeBuffer(99), x.Ping(2)]
    talk.give(b"".join(talk.core.request(message)[0] for message in requests))
    numbers = [None if reply.command is None else reply.command.number for reply in talk.replies]
    assert numbers == [Cmd.PING, None, Cmd.GET_ALIGNMENT, None, Cmd.PING]
    assert [error_of(reply).request for reply in talk.replies[1:4]] == [1, 2, 3]


def test_the_data_of_a_write_that_failed_is_dropped() -> None:
    talk = extended()
    tensor = new_tensor(GGMLType.I8, (1 << 19,), "x")
    wire = to_wire(tensor, Place(77, 1 << 41))
    (reply,) = talk.send(m.SetTensor(wire, 0, 0), bytes(1 << 19))
    assert "SET_TENSOR: buffer handle 0x4d" in error_of(reply).text
    assert talk.device.bytes_written == 0
    assert talk.ask(m.DeviceCount()) == m.DeviceCountReply(1)


def test_what_breaks_the_framing_is_told_and_ends_the_conversation() -> None:
    talk = extended()
    talk.send(x.Ping(1))
    talk.replies.clear()
    talk.core.request(m.FreeBuffer(0))
    with pytest.raises(SessionError, match="FREE_BUFFER: body of 3 bytes"):
        talk.give(frame(Cmd.FREE_BUFFER, b"abc"))
    (reply,) = talk.replies
    assert error_of(reply) == x.ErrorReply(
        1, x.ErrorCode.PROTOCOL, "FREE_BUFFER: body of 3 bytes: expected 8 bytes"
    )


def test_a_bug_is_told_and_ends_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = extended()

    def broken() -> int:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(talk.device, "alignment", broken)
    with pytest.raises(SessionError, match="internal error"):
        talk.send(m.GetAlignment(0))
    assert error_of(talk.replies[0]).code == x.ErrorCode.INTERNAL


def test_a_stock_client_is_told_nothing_and_cut_off() -> None:
    talk = Talk()
    with pytest.raises(SessionError, match="FREE_BUFFER"):
        talk.send(m.FreeBuffer(99))
    assert not talk.replies


@pytest.mark.parametrize("message", [x.Ping(1), x.DeviceFacts(0), x.Prove(bytes(32))])
def test_our_commands_need_extend_first(message: m.Message) -> None:
    talk = Talk()
    with pytest.raises(LocalProtocolError, match="does not know it"):
        talk.send(message)
    body = u64(1) if isinstance(message, x.Ping) else u32(0)
    number = {x.Ping: Cmd.PING, x.DeviceFacts: Cmd.DEVICE_FACTS}.get(type(message), Cmd.PROVE)
    with pytest.raises(SessionError, match=f"{number.name}: expected EXTEND before it"):
        talk.give(frame(number, body if number is not Cmd.PROVE else bytes(32)))


def test_extend_comes_once_and_with_a_revision() -> None:
    talk = extended()
    with pytest.raises(SessionError, match="EXTEND: expected it once"):
        talk.send(x.Extend(1, bytes(32)))
    with pytest.raises(SessionError, match="revision 0"):
        Talk().send(x.Extend(0, bytes(32)))


def test_a_later_revision_gets_ours() -> None:
    reply = Talk().ask(x.Extend(200, bytes(32)))
    assert isinstance(reply, x.ExtendReply)
    assert reply.revision == x.REVISION


def test_who_knows_the_secret_is_served() -> None:
    talk = extended(Access(SECRET))
    assert talk.session.has_said_hello
    assert talk.ask(m.DeviceCount()) == m.DeviceCountReply(1)


def test_nothing_but_the_proof_is_taken_before_it() -> None:
    talk = Talk(Access(SECRET))
    with pytest.raises(SessionError, match="DEVICE_COUNT: refused: this worker has a secret"):
        talk.give(frame(Cmd.DEVICE_COUNT))
    talk = Talk(Access(SECRET))
    talk.ask(x.Extend(1, bytes(32)))
    talk.core.extend()
    assert not talk.session.has_said_hello
    with pytest.raises(SessionError, match="PING: refused"):
        talk.send(x.Ping(1))


def test_another_secret_is_noticed_by_the_worker() -> None:
    with pytest.raises(SessionError, match="does not know this worker's secret"):
        Talk(Access(SECRET), Credentials(b"another"))


@pytest.mark.parametrize("proof", [bytes(32), b"x" * 32])
@pytest.mark.parametrize("is_right", [0, 1])
def test_a_worker_that_does_not_prove_the_secret_is_not_used(is_right: int, proof: bytes) -> None:
    talk = Talk(Access(SECRET))
    said: list[m.Message] = []

    def ask(message: m.Message) -> m.Message:
        said.append(message)
        if isinstance(message, x.Prove):
            return x.ProveReply(is_right, proof)
        return talk.ask(message)

    with pytest.raises(AccessRefusedError, match="its secret is another one"):
        greet(ask, talk.core, Credentials(SECRET))
    assert len(said) == 2


def test_what_the_client_says_sent_back_is_no_proof_of_the_worker() -> None:
    talk = Talk(Access(SECRET))

    def ask(message: m.Message) -> m.Message:
        if isinstance(message, x.Prove):
            return x.ProveReply(1, message.proof)
        return talk.ask(message)

    with pytest.raises(AccessRefusedError, match="its secret is another one"):
        greet(ask, talk.core, Credentials(SECRET))


def test_a_worker_shows_nothing_that_a_secret_could_be_guessed_by() -> None:
    talk = Talk(Access(SECRET))
    reply = talk.ask(x.Extend(1, bytes(32)))
    assert isinstance(reply, x.ExtendReply)
    talk.core.extend()
    with pytest.raises(SessionError, match="does not know"):
        talk.send(x.Prove(bytes(32)))
    (answer,) = talk.replies
    assert answer.body == x.ProveReply(0, bytes(32))


def test_no_proof_and_no_key_is_shown_by_what_has_them() -> None:
    told = [x.ProveReply(1, b"hush"), x.Prove(b"hush"), x.DoorReply(b"hush")]
    told.append(x.PushTensor(NULL_TENSOR, 0, 0, 1, 2, b"host", b"hush"))
    assert "hush" not in repr([*told, x.Deliver(b"hush", 1)])


def test_no_secret_is_shown_by_what_has_it() -> None:
    state = ClientState([], 8, access=Access(b"hush"), proofs=(b"hush", b"hush"))
    sent = Letter(b"hush", 1, b"hush", lambda error: None)
    assert "hush" not in repr([state, sent, Trust(b"hush"), Credentials(b"hush"), Seal(b"hush")])


def test_a_client_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    talk = extended()
    for _ in range(300):
        talk.send(m.FreeBuffer(77))
    assert len(caplog.records) == 101
    assert "its further failures are only counted" in caplog.text


def test_the_workers_proof_is_not_the_clients() -> None:
    talk, nonce = Talk(Access(SECRET)), bytes(32)
    reply = talk.ask(x.Extend(1, nonce))
    assert isinstance(reply, x.ExtendReply)
    talk.core.extend()
    with pytest.raises(SessionError, match="does not know"):
        talk.send(x.Prove(x.prove(SECRET, x.Speaker.WORKER, nonce, reply.nonce, b"")))


def test_a_proof_for_one_certificate_is_none_for_another() -> None:
    with pytest.raises(SessionError, match="does not know"):
        Talk(Access(SECRET, CERTIFICATE, True), Credentials(SECRET, b"d" * 32))
    extended(Access(SECRET, CERTIFICATE, True))


def test_each_conversation_has_proofs_of_its_own() -> None:
    first, second = (Talk(Access(SECRET)).ask(x.Extend(1, bytes(32))) for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("access", "credentials", "reason"),
    [
        (Access(SECRET), Credentials(), "it demands a secret: give --rpc-secret-file"),
        (OPEN, Credentials(SECRET), "it has no secret, .* --secret-file"),
        (Access(demands_tls=True, certificate=CERTIFICATE), Credentials(), "it demands TLS"),
    ],
)
def test_a_client_says_what_a_worker_wants(
    access: Access, credentials: Credentials, reason: str
) -> None:
    with pytest.raises(AccessRefusedError, match=reason):
        Talk(access, credentials)


def test_a_worker_that_only_says_that_it_has_a_secret_is_not_trusted() -> None:
    talk = Talk(Access(SECRET))
    talk.core.announced = x.Announced.SECRET
    with pytest.raises(AccessRefusedError, match="expected it to prove"):
        greet(talk.ask, talk.core, Credentials(SECRET))


def test_a_plain_client_of_a_tls_worker_gets_its_hello_answered_and_no_more() -> None:
    session, answers = Session([NullDevice()], 8, access=Access(demands_tls=True)), []
    session.writable()[: len(HELLO)] = HELLO
    with pytest.raises(SessionError, match="a client without TLS"):
        for piece in session.wrote(len(HELLO)):
            answers.append(bytes(piece))
    assert answers[0][8 + 3] == x.Announced.EXTENDED | x.Announced.TLS


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("<Q", x.ERROR_BIT | 8) + bytes(8), "error frame of 8 bytes"),
        (struct.pack("<Q", x.ERROR_BIT | 5000), "error frame of 5000 bytes"),
        (struct.pack("<Q", x.ERROR_BIT | (1 << 62)), "error frame"),
        (x.pack_error(x.ErrorReply(1, 1, "")), "failure of request 1: expected one of the 1 "),
        (u64(4), "reply of 4 bytes while none is due"),
    ],
)
def test_nonsense_about_failures_breaks_the_protocol(data: bytes, reason: str) -> None:
    core = extended().core
    core.request(m.FreeBuffer(1))
    core.writable()[: len(data)] = data
    core.wrote(len(data))
    with pytest.raises(RemoteProtocolError, match=reason):
        core.next_reply()


def test_a_long_reason_is_cut_and_an_unknown_code_is_read() -> None:
    core = extended().core
    core.request(m.FreeBuffer(1))
    data = x.pack_error(x.ErrorReply(0, 250, "ä" * 10_000))
    assert len(data) == 8 + x.MAX_ERROR_BYTES
    core.writable()[: len(data)] = data
    core.wrote(len(data))
    reply = core.next_reply()
    assert reply is not None
    assert error_of(reply).code == 250
    assert error_of(reply).text.startswith("äää")


def test_a_reason_cannot_speak_to_the_terminal() -> None:
    frame_ = x.pack_error(x.ErrorReply(0, 1, "no\x1b[2J\nerror: ä\x9b"))
    assert x.unpack_error(frame_[8:]).text == "no\ufffd[2J\ufffderror: ä\ufffd"
