#!/bin/sh
# A question with curl: sh chat.sh Why is the sky blue?
# The key goes to curl through a file descriptor: in its arguments everybody on this computer could read it.
set -eu
question=$(printf '%s' "${*:-Say hello.}" | python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()))')
ask() {
  printf 'header = "Authorization: Bearer %s"\n' "$OPENAI_API_KEY" |
    curl --silent --show-error --fail-with-body --config - ${SSL_CERT_FILE:+--cacert "$SSL_CERT_FILE"} "$@"
}
model=$(ask "$OPENAI_BASE_URL/models" | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')
ask "$OPENAI_BASE_URL/chat/completions" --header 'Content-Type: application/json' \
  --data "{\"model\": \"$model\", \"max_tokens\": 512, \"messages\": [{\"role\": \"user\", \"content\": $question}]}"
