#!/usr/bin/env bash
# Hosts on one machine: each has its own name, network and /dev/shm; files are shared.
#   hosts.sh up STATE | down STATE | on STATE HOST command...
#   hosts.sh address STATE        the first three numbers of the hosts' addresses
# Needs root, iproute2 and util-linux. STATE is a folder. The hosts are n0 and n1. Names of interfaces
# and addresses are STATE's own, so that several pairs of hosts may be up at a time.
set -euo pipefail

state=$2

# Takes the first number whose bridge does not exist: who makes it, has it.
take() {
    for number in $(seq 1 250); do
        if ip link add "pynccl$number" type bridge 2>/dev/null; then
            echo "$number" >"$state/number"
            return
        fi
    done
    echo "no bridge could be made: $(ip link add pynccl251 type bridge 2>&1)" >&2
    exit 1
}

name() {
    number=$(cat "$state/number")
    bridge=pynccl$number
    net=10.77.$number
}

up() {
    mkdir -p "$state"
    take
    name
    ip addr add "$net.1/24" dev "$bridge"
    ip link set "$bridge" up
    printf '%s\n' '127.0.0.1 localhost' "$net.1 head $(hostname -s)" "$net.10 n0" "$net.11 n1" >"$state/hosts"
    for i in 0 1; do
        # shellcheck disable=SC2016  # expanded by the inner shell
        setsid unshare --net --uts --mount --propagation private sh -c '
            hostname "$1" && mount --bind "$2/hosts" /etc/hosts &&
            mount -t tmpfs -o size=1g tmpfs /dev/shm &&
            touch "$2/$1.ready" && exec sleep 600' sh n$i "$state" </dev/null >/dev/null 2>"$state/n$i.err" &
        echo $! >"$state/n$i.pid"
    done
    for i in 0 1; do
        for _ in $(seq 50); do [[ ! -e $state/n$i.ready ]] || break; sleep 0.1; done
        pid=$(cat "$state/n$i.pid")
        ip link add "$bridge-n$i" type veth peer name eth0 netns "$pid"
        ip link set "$bridge-n$i" master "$bridge" up
        nsenter -t "$pid" -n sh -c "ip link set lo up; ip addr add $net.$((10 + i))/24 dev eth0
            ip link set eth0 up; ip route add default via $net.1"
    done
}

down() {
    for file in "$state"/n*.pid; do
        kill "$(cat "$file")" 2>/dev/null || true
        rm -f "$file"
    done
    [[ -e $state/number ]] || exit 0
    name
    for i in 0 1; do ip link del "$bridge-n$i" 2>/dev/null || true; done
    ip link del "$bridge" 2>/dev/null || true
}

on() {
    host=$1
    shift
    exec nsenter -t "$(cat "$state/$host.pid")" -n -u -m --wd="$PWD" -- "$@"
}

case $1 in
    up) up ;;
    down) down ;;
    on) shift 2 && on "$@" ;;
    address) name && echo "$net" ;;
    *) sed -n 2,5p "$0" && exit 2 ;;
esac
