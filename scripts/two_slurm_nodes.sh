#!/usr/bin/env bash
# Runs a command beside a Slurm of two nodes on this machine: two slurmd, each with a host name, /dev/shm and /tmp of its
# own, so that ranks of one node see nothing of the other's and talk to them over MPI. Root; slurm-wlm and munge of Debian.
#
#   scripts/two_slurm_nodes.sh sbatch --wait examples/slurm/train.sbatch
#   scripts/two_slurm_nodes.sh srun --mpi=pmix -N2 -n2 .venv/bin/python examples/python/training_loop.py
#
# The machine's own Slurm must not run. Nodes are n1 and n2, with a core each; OpenMPI is told to use the loopback device.
set -euo pipefail
[ "$(id -u)" -eq 0 ] || { echo "two_slurm_nodes: error: needs root, for namespaces" >&2; exit 2; }
for program in slurmctld slurmd srun munged unshare; do
  command -v "$program" >/dev/null || { echo "two_slurm_nodes: error: there is no $program; type:  apt-get install slurm-wlm munge" >&2; exit 2; }
done
[ $# -gt 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1; exit 2; }

work=$(mktemp -d /var/tmp/two_slurm_nodes.XXXXXX)
hosts_before=$(cat /etc/hosts) processes=()
finish() {
  for process in "${processes[@]}"; do kill "$process" 2>/dev/null || true; done
  wait 2>/dev/null || true
  printf '%s\n' "$hosts_before" >/etc/hosts
  rm -rf "$work"
}
trap finish EXIT

mkdir -p "$work"/{state,n1,n2,munge}
head -c 1024 /dev/urandom >"$work/munge/key"
chmod 700 "$work/munge"
chmod 400 "$work/munge/key"
munged --foreground --force --key-file="$work/munge/key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
  --log-file="$work/munge.log" --seed-file="$work/munge.seed" >/dev/null 2>&1 &
processes+=($!)
# The name of this host's controller, and of the nodes.
printf '%s\n127.0.0.1 n1 n2\n' "$hosts_before" >/etc/hosts
export SLURM_CONF=$work/slurm.conf
cat >"$SLURM_CONF" <<EOF
ClusterName=two
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
MpiDefault=none
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port=16818
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port=16819
PartitionName=both Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
EOF
slurmctld -D >/dev/null 2>&1 &
processes+=($!)
for node in n1 n2; do
  mkdir -p "$work/spool-$node"
  # shellcheck disable=SC2016
  unshare --uts --mount --ipc sh -c 'hostname "$1"; mount --bind "$2/$1" /tmp; mount -t tmpfs shm /dev/shm; exec slurmd -D -N "$1"' \
    sh "$node" "$work" >/dev/null 2>&1 &
  processes+=($!)
done
for _ in $(seq 60); do
  [ "$(sinfo -h -t idle -o '%D' 2>/dev/null)" = 2 ] && break
  sleep 0.5
done
[ "$(sinfo -h -t idle -o '%D')" = 2 ] || { tail -n 20 "$work"/*.log >&2; echo "two_slurm_nodes: error: the nodes did not come up" >&2; exit 1; }
export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_pml=ob1
"$@"
