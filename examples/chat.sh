#!/bin/sh
# Stream a chat with curl: examples/chat.sh "Why is the sky blue?"
# BASE_URL names another server. The question must not contain quotes or backslashes.
set -eu
question=${1:-Why is the sky blue?}
curl --no-buffer --fail-with-body "${BASE_URL:-http://127.0.0.1:8080/v1}/chat/completions" \
  -H 'Content-Type: application/json' \
  -d "{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}], \"stream\": true}"
