#!/bin/sh
# Whom the earlyoom that runs would end first, if memory were short now: its own arguments, with a limit that is always
# reached, and without ending anybody. An engine's process runs meanwhile (the kernel cuts its name at 15 characters).
set -eu
place=$(mktemp -d)
cp /usr/bin/sleep "$place/VLLM::EngineCore"
"$place/VLLM::EngineCore" 30 &
trap 'kill $!; rm -rf "$place"' EXIT
tr '\0' '\n' < "/proc/$(systemctl show --property=MainPID --value earlyoom)/cmdline" > "$place/words"
set --
while read -r word; do set -- "$@" "$word"; done < "$place/words"
timeout 15 "$@" --dryrun -m 99 2>&1 | grep -m 1 -o 'sending SIGTERM to process [0-9]* uid [0-9]* "[^"]*"'
