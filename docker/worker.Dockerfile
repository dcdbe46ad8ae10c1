# A worker: lends this machine's devices over the RPC protocol. No web framework in it.
#   docker build -f docker/worker.Dockerfile -t llama-serve-worker .
# The RPC port is open to whoever reaches it: publish it on a trusted network only, or run it with
#   -e LLAMA_SERVE_RPC_SECRET=... and, for TLS, --tls-cert FILE --tls-key FILE
# With -c /cache/weights the volume keeps weights, so that they are sent once.
FROM python:3.12-slim

ARG PIP_ARGS=""
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY . .
RUN pip install --no-cache-dir ${PIP_ARGS} -c constraints.txt gguf numpy torch \
 && pip install --no-cache-dir --no-deps .

RUN useradd --create-home worker && mkdir /cache && chown worker /cache
USER worker
WORKDIR /home/worker
ENV LLAMA_SERVE_CACHE=/cache
VOLUME /cache
EXPOSE 50052
ENTRYPOINT ["llama-rpc-server", "-H", "0.0.0.0", "-p", "50052"]
