"""The key of a secret and the proofs made with it, byte for byte."""

from typing import Final

import pytest

from app.rpc_backend.wire.extensions import Speaker, proof_key, prove

# `openssl kdf SCRYPT` with salt "llama-serve rpc 1", n 32768, r 8, p 1; the proof by Python's hmac.
SECRET: Final = b"a secret of the house"
KEY: Final = "6c81c7e351f79fdcbaa70493c2f2c98013ca38e66631e0f01364ec72c74127a4"
CLIENT_PROOF: Final = "5fc1982e24dd3d7ed26ed8bea4d787e2d2e6a83215ae608874e81791e9a3bdc9"
NONCES: Final = bytes(range(32)), bytes(range(32, 64))


def test_the_key_is_what_another_program_makes_of_the_secret() -> None:
    assert proof_key(SECRET).hex() == KEY


def test_a_proof_is_what_it_was() -> None:
    proof = prove(bytes.fromhex(KEY), Speaker.CLIENT, *NONCES, b"")
    assert proof.hex() == CLIENT_PROOF


@pytest.mark.parametrize("speaker", Speaker)
def test_a_proof_is_good_for_one_speaker_one_conversation_and_one_certificate(
    speaker: Speaker,
) -> None:
    key, (first, second) = bytes.fromhex(KEY), NONCES
    others = [
        *(prove(key, other, first, second, b"") for other in Speaker if other is not speaker),
        prove(key, speaker, second, first, b""),
        prove(key, speaker, first, second, b"c" * 32),
        prove(proof_key(KEY.encode()), speaker, first, second, b""),
    ]
    assert prove(key, speaker, first, second, b"") not in others
