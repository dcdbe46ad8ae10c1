#!/bin/sh
# Pool a model over two workers on this machine: examples/two_workers.sh model.gguf [more flags]
# On two machines, start a worker on each with -H 0.0.0.0 and name both in --rpc.
set -eu
model=${1:?usage: two_workers.sh model.gguf [more flags]}
shift
llama-rpc-server -H 127.0.0.1 -p 50052 -t 1 & first=$!
llama-rpc-server -H 127.0.0.1 -p 50053 -t 1 & second=$!
llama-serve -m "$model" --rpc 127.0.0.1:50052,127.0.0.1:50053 -ngl 99 "$@" & server=$!
trap 'kill $server $first $second 2>/dev/null || :; wait' EXIT
trap 'exit 130' INT TERM
wait $server
