#!/usr/bin/env bash
# Takes the place of ssh for an MPI launcher: agent.sh [ssh's options] HOST COMMAND...
set -euo pipefail
while [[ ${1:-} == -* ]]; do
    case $1 in -l | -p | -o) shift 2 ;; *) shift ;; esac
done
host=$1
shift
exec "$(dirname "$0")/hosts.sh" on "$PYNCCL_TEST_HOSTS" "$host" sh -c "$*"
