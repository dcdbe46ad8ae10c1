"""Workers that speak TLS without a secret find each other by the certificates of `--tls-ca`."""

from contextlib import ExitStack

import numpy as np
import pytest

from app.errors import LlamaServeError
from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.group import WorkerPair
from tests.helpers.certificates import Certificates
from tests.helpers.process import free_port, own_worker
from tests.helpers.rpc_link import spread

HOST = "127.0.0.1"
LIMIT_S = 60


@pytest.mark.parametrize("knows_ca", [True, False])
def test_other_workers_are_trusted_by_the_file(certificates: Certificates, knows_ca: bool) -> None:
    ca = ["--tls-ca", str(certificates.trust.ca_file)] if knows_ca else []
    with ExitStack() as stack:
        ends = []
        for _ in range(2):
            own = certificates.signed(HOST)
            flags = ["--tls-cert", str(own.cert_file), "--tls-key", str(own.key_file), *ca]
            ends.append(f"{HOST}:{stack.enter_context(own_worker(*flags))[1]}")
        first, second = open_workers(ends, ClientSettings(tls=certificates.trust))
        stack.callback(second.close)
        stack.callback(first.close)
        tensors = [new_tensor(GGMLType.F32, (16,), "x") for _ in range(2)]
        values = np.arange(16, dtype=np.float32)
        for device, tensor in zip((first, second), tensors, strict=True):
            spread(device, [tensor])
            device.set_tensor(tensor, values.tobytes())
        if not knows_ca:
            first.push(tensors[0], second, tensors[1])
            # Its waiting is called off once the first worker's failure is known here.
            with pytest.raises(LlamaServeError):
                second.get_tensor(tensors[1], 0, 64).result(LIMIT_S)
            with pytest.raises(LlamaServeError, match=r"not trusted .* with --tls-ca"):
                first.synchronize()
            return
        pair = WorkerPair(first, second, port=free_port())
        pair.all_reduce(tensors[0], tensors[1])
        pair.close()
        first.synchronize()
        second.set_tensor(tensors[1], bytes(64))
        first.push(tensors[0], second, tensors[1])
        got = second.get_tensor(tensors[1], 0, 64).result(LIMIT_S)
        np.testing.assert_array_equal(np.frombuffer(got, np.float32), 2 * values)
