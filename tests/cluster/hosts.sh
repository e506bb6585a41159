#!/usr/bin/env bash
# Hosts on one machine: each has its own name, network and /dev/shm; files are shared.
#   hosts.sh up STATE | down STATE | on STATE HOST command...
# Needs root, iproute2 and util-linux. STATE is a folder. The hosts are n0 and n1.
set -euo pipefail

bridge=pynccl0
net=10.77.0
state=$2

up() {
    mkdir -p "$state"
    ip link add $bridge type bridge
    ip addr add $net.1/24 dev $bridge
    ip link set $bridge up
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
        ip link add pynccl-n$i type veth peer name eth0 netns "$pid"
        ip link set pynccl-n$i master $bridge up
        nsenter -t "$pid" -n sh -c "ip link set lo up; ip addr add $net.$((10 + i))/24 dev eth0
            ip link set eth0 up; ip route add default via $net.1"
    done
}

down() {
    for file in "$state"/n*.pid; do
        kill "$(cat "$file")" 2>/dev/null || true
        rm -f "$file"
    done
    for i in 0 1; do ip link del pynccl-n$i 2>/dev/null || true; done
    ip link del $bridge 2>/dev/null || true
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
    *) sed -n 2,4p "$0" && exit 2 ;;
esac
