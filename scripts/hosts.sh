#!/usr/bin/env bash
# Runs a command on the first of several hosts made of namespaces on this machine: each has a name, an address, /dev/shm
# and /tmp of its own, and is joined to the others by a link of the given rate. Root, util-linux and iproute2; nothing
# outside the namespaces changes.
#
#   scripts/hosts.sh 2 1gbit zero launch --hostfile '$HOSTFILE' -- ./train ds.json
#   scripts/hosts.sh 2 - mpirun -n 2 --hostfile '$HOSTFILE' ./train ds.json
#   scripts/hosts.sh 4 100mbit 'on_host 3 torchrun --nnodes 4 ... & torchrun ...; wait'
#
# RATE is as tc takes it, or - for none; it holds in each direction of each host's link. The command is given to bash, and
# sees
#   HOSTFILE, HOSTS     the hosts h1, h2, ... as `h1 slots=1` (SLOTS=2 scripts/hosts.sh ...: two) and as words
#   on_host N COMMAND   runs a command on another host, as `ssh` does, also where its link is cut
#   as_ssh N COMMAND    the same over the link; mpirun uses it
#   link N down|up      cuts the link of a host, or mends it
#   crash N             kills every process of a host
#   freeze N, thaw N    stops every process of a host, or lets them go on
# Addresses are 10.77.0.1, 10.77.0.2, ...
set -euo pipefail
if [ $# -lt 3 ]; then
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1 >&2
  exit 2
fi
count=$1 rate=$2
shift 2
[ "$(id -u)" -eq 0 ] || { echo "hosts: error: needs root, for namespaces" >&2; exit 2; }

work=$(mktemp -d /var/tmp/zero_hosts.XXXXXX)
name=zh$$
inits=()
processes_of() {  # a host
  local network
  network=$(readlink "/proc/${inits[$1 - 1]}/ns/net") || return 0
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/net" 2>/dev/null)" != "$network" ] || echo "${process#/proc/}"
  done
}
finish() {
  for ((i = 1; i <= ${#inits[@]}; i++)); do
    for pid in $(processes_of "$i"); do kill -KILL "$pid" 2>/dev/null || true; done
  done
  wait 2>/dev/null || true
  ip netns del "$name" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$work/bin"
# The switch that all links meet in.
ip netns add "$name"
ip -n "$name" link add switch type bridge
ip -n "$name" link set switch up
{
  echo "127.0.0.1 localhost"
  for ((i = 1; i <= count; i++)); do echo "10.77.0.$i h$i"; done
} >"$work/hosts"
: >"$work/hostfile"
for ((i = 1; i <= count; i++)); do echo "h$i slots=${SLOTS:-1}" >>"$work/hostfile"; done

for ((i = 1; i <= count; i++)); do
  mkdir -p "$work/tmp$i"
  # shellcheck disable=SC2016
  unshare --net --uts --ipc --mount sh -c '
    hostname "$1"
    mount -t tmpfs -o size=16g shm /dev/shm
    case $PWD in /tmp/*)  # the working folder is there as it is everywhere
      mkdir -p "$2/tmp$3${PWD#/tmp}"
      mount --bind "$PWD" "$2/tmp$3${PWD#/tmp}" ;;
    esac
    mount --rbind "$2/tmp$3" /tmp
    mount --bind "$2/hosts" /etc/hosts
    ip link set lo up
    touch "$2/ready$3"
    exec sleep infinity' sh "h$i" "$work" "$i" &
  inits+=($!)
  disown
  until [ -e "$work/ready$i" ]; do sleep 0.02; done
  inside=$!
  echo "$inside" >"$work/init$i"
  ip link add "$name.$i" netns "$name" type veth peer name eth0 netns "$inside"
  ip -n "$name" link set "$name.$i" master switch up
  nsenter -t "$inside" -n sh -c "ip addr add 10.77.0.$i/24 dev eth0 && ip link set eth0 up"
  if [ "$rate" != - ]; then
    nsenter -t "$inside" -n tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms
    ip netns exec "$name" tc qdisc add dev "$name.$i" root tbf rate "$rate" burst 256kb latency 50ms
  fi
done

cat >"$work/bin/on_host" <<END
#!/bin/bash
# on_host N|hN|ADDRESS COMMAND...: as ssh; a command of one word is a shell's line.
host=\${1#h}
host=\${host##*.}
shift
exec nsenter -t "\$(cat "$work/init\$host")" --net --uts --ipc --mount --wd="\$PWD" bash -c "\$*"
END
cat >"$work/bin/as_ssh" <<END
#!/bin/bash
# As on_host, but a host whose link is cut does not answer.
host=\${1#h}
host=\${host##*.}
if [ -z "\$(ip -n "$name" link show dev "$name.\$host" up 2>/dev/null)" ]; then
  sleep 130
  echo "as_ssh: \$1: Connection timed out" >&2
  exit 255
fi
exec "$work/bin/on_host" "\$@"
END
cat >"$work/bin/link" <<END
#!/bin/bash
exec ip -n "$name" link set "$name.\$1" "\$2"
END
cat >"$work/bin/freeze" <<END
#!/bin/bash
network=\$(readlink "/proc/\$(cat "$work/init\$1")/ns/net")
for process in /proc/[0-9]*; do
  [ "\$(readlink "\$process/ns/net" 2>/dev/null)" != "\$network" ] || kill -"\${2:-STOP}" "\${process#/proc/}" 2>/dev/null
done
exit 0
END
cat >"$work/bin/crash" <<END
#!/bin/bash
init=\$(cat "$work/init\$1")
network=\$(readlink "/proc/\$init/ns/net")
for process in /proc/[0-9]*; do
  pid=\${process#/proc/}
  [ "\$(readlink "\$process/ns/net" 2>/dev/null)" != "\$network" ] || [ "\$pid" = "\$init" ] || kill -KILL "\$pid" 2>/dev/null
done
exit 0
END
cat >"$work/bin/thaw" <<END
#!/bin/bash
exec "$work/bin/freeze" "\$1" CONT
END
chmod +x "$work"/bin/*

export HOSTFILE=$work/hostfile PATH=$work/bin:$PATH
HOSTS=$(seq -f 'h%g' -s ' ' 1 "$count")
export HOSTS
export OMPI_MCA_plm_rsh_agent=$work/bin/as_ssh OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export UCX_TLS=tcp,self  # the hosts have one kernel, and UCX would share memory between them
export OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
status=0
nsenter -t "$(cat "$work/init1")" --net --uts --ipc --mount --wd="$PWD" bash -c "$*" <&0 &
wait $! || status=$?  # in the background, so that a signal ends it
exit $status
