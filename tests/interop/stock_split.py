"""llama.cpp (b11739) as main host that cuts every matrix over its workers (split mode "tensor").

Run inside the version 8 peer by its own Python: stock_split.py MODEL ENDPOINTS PROMPT N_PREDICT
prints the text as one line of JSON; greedy.
"""

import json
import sys

sys.path.insert(0, "/opt/peer")
from llama_cpp_py_sync import Llama  # type: ignore[import-not-found]


def main() -> None:
    model, endpoints, prompt, n_predict = sys.argv[1:5]
    options = {"n_ctx": 512, "n_threads": 1, "n_gpu_layers": 99, "flash_attn_type": 1}
    llama = Llama(model, rpc_servers=endpoints.split(","), split_mode="tensor", **options)
    text = llama.generate(prompt, max_tokens=int(n_predict), temperature=0.0, repeat_penalty=1.0)
    sys.stdout.write(json.dumps({"text": text}) + "\n")


if __name__ == "__main__":
    main()
