#!/bin/bash
# Runs a command in a network namespace of its own whose loopback device is as slow as a network: for trying on one
# host what several would do. Needs root, util-linux and iproute2; changes nothing outside the namespace.
#
#   scripts/slow_network.sh 5gbit mpirun -n 2 --mca btl tcp,self --mca btl_tcp_if_include lo \
#     build/release/benchmarks/step --modes stage3-copying,stage3-copying-thread
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: $0 RATE COMMAND...   (RATE as tc takes it: 1gbit, 400mbit)" >&2
  exit 2
fi
rate=$1
shift
exec unshare --net bash -c '
  ip link set lo up
  tc qdisc add dev lo root tbf rate "$0" burst 4mb latency 100ms || {
    echo "slow_network: the kernel has no token bucket filter (sch_tbf)" >&2
    exit 1
  }
  exec "$@"' "$rate" "$@"
