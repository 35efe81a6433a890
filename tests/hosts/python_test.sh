#!/usr/bin/env bash
# Ranks of Python programs over two hosts: mpirun, python -m zerotorch.run --hostfile and --nnodes, the deepspeed command.
# Usage: python_test.sh <folder of the package>
source "$(dirname "$0")/support.sh"
if [ "${1-}" != --inside ]; then over_hosts 2 "$(realpath "$1")"; exit $?; fi
export PYTHONPATH=$2 OMP_NUM_THREADS=1 ZERO_LOG_LEVEL=error GLOO_SOCKET_IFNAME=eth0
python=$root/.venv/bin/python
cd "$work" || exit 1

cat >meets.py <<'END'
import os, sys
import torch, torch.distributed as dist
import deepspeed
from zerotorch.core.distributed import world_group

if "mpi_discovery" in sys.argv:
    deepspeed.comm.mpi_discovery()
deepspeed.init_distributed()
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
told = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")]
os.write(1, f"{' '.join(told)} sum {total.item()} group of {world_group().size} {sys.argv[1:]}\n".encode())
END
want() { # arguments of rank 0, of rank 1
  printf "0 2 0 1 10.77.0.1 sum 3 group of 2 [%s]\n1 2 0 1 10.77.0.1 sum 3 group of 2 [%s]" "$1" "${2-$1}"
}
meets() { # what, wanted, command
  local what=$1 wanted=$2; shift 2
  said=$(timeout 60 "$@" 2>said.err) || fail "$what: exit code $?: $(tail -5 said.err)"
  expect "$what" "$(echo "$said" | sort)" "$wanted"
}
meets "mpirun" "$(want "")" mpirun -np 2 --hostfile "$HOSTFILE" -x ZEROTORCH_AS_DEEPSPEED=1 "$python" -m zerotorch.run meets.py
meets "mpirun and mpi_discovery" "$(want "'mpi_discovery'")" \
  mpirun -np 2 --hostfile "$HOSTFILE" "$python" -m zerotorch.run meets.py mpi_discovery
meets "zerotorch.run --hostfile" "$(want "'-n', '3'")" "$python" -m zerotorch.run --hostfile "$HOSTFILE" meets.py -n 3
meets "deepspeed" "$(want "'--local_rank=0', '--x'")" \
  "$python" -m zerotorch.launcher.runner --hostfile "$HOSTFILE" --num_nodes 2 --num_gpus 1 --launcher openmpi meets.py --x
printf 'h1 slots=2\nh2 slots=2\n' >four
meets "deepspeed --include" "$(want "")" \
  "$python" -m zerotorch.launcher.runner -H four -i h1:0@h2:1 --no_local_rank meets.py

# ---- training, and what fails ----
loop=$root/examples/python/training_loop.py
one=$(timeout 60 "$python" -m zerotorch.run -n 2 "$loop" --steps 3 2>/dev/null | grep loss)
two=$(timeout 60 "$python" -m zerotorch.run --hostfile "$HOSTFILE" "$loop" --steps 3 2>said.err | grep loss)
expect "losses over two hosts ($(tail -3 said.err))" "$two" "$one"
echo 'import os, sys; sys.exit(int(os.environ["RANK"]) * 9)' >fails.py
"$python" -m zerotorch.run --hostfile "$HOSTFILE" fails.py 2>said.err
expect "exit code" $? 9
contains "last line" "$(tail -1 said.err)" "zerotorch: rank 1 of 2"
"$python" -m zerotorch.run --hostfile none fails.py 2>said.err
expect "exit code without a hostfile" $? 2
contains "without a hostfile" "$(cat said.err)" "none: No such file"

# ---- the same command on each host: the ranks' environment, as torchrun makes it ----
cat >gloo.py <<'END'
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
os.write(1, f"{' '.join(os.environ[name] for name in names)} sum {total.item()}\n".encode())
dist.destroy_process_group()
END
static="-m zerotorch.run --nnodes 2 --master-addr 10.77.0.1 --master-port 29511 --nproc-per-node 2"
on_host 2 "cd $work; PYTHONPATH=$PYTHONPATH timeout 60 $python $static --node-rank 1 gloo.py" >second.out 2>second.err &
timeout 60 "$python" $static --node-rank 0 gloo.py >first.out 2>first.err || fail "--nnodes: $(tail -5 first.err)"
wait $!
expect "--nnodes" "$(sort first.out second.out)" "0 0 4 2 0 2 sum 10
1 1 4 2 0 2 sum 10
2 0 4 2 1 2 sum 10
3 1 4 2 1 2 sum 10"

# ---- training without MPI: the ranks meet at MASTER_ADDR, and talk over UCX ----
if ldconfig -p | grep -q libucp.so.0; then
  on_both() { # what, command without the rank of the node
    local what=$1; shift
    on_host 2 "cd $work; PYTHONPATH=$PYTHONPATH timeout 60 $* --node-rank 1 $loop --steps 3" >second.out 2>second.err &
    two=$(timeout 60 "$@" --node-rank 0 "$loop" --steps 3 2>first.err | grep loss)
    wait $! || fail "$what: the second host: $(tail -5 second.err)"
    expect "$what ($(tail -3 first.err))" "$two" "$one"
  }
  on_both "losses over zerotorch.run --nnodes" "$python" -m zerotorch.run --nnodes 2 --master-addr 10.77.0.1 \
    --master-port 29512 --nproc-per-node 1
  on_both "losses over torchrun" "$python" -m torch.distributed.run --nnodes 2 --master-addr 10.77.0.1 --master-port 29513 \
    --nproc-per-node 1
  rendezvous="--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 10.77.0.1:29514 --rdzv-id t"
  on_host 2 "cd $work; PYTHONPATH=$PYTHONPATH timeout 60 $python -m torch.distributed.run $rendezvous $loop --steps 3" \
    >second.out 2>second.err &
  # shellcheck disable=SC2086
  two=$(timeout 60 "$python" -m torch.distributed.run $rendezvous "$loop" --steps 3 2>first.err)
  wait $! || fail "torchrun's rendezvous: the second host: $(tail -5 second.err)"
  two=$(echo "$two"; cat second.out)  # either host may have rank 0
  expect "losses over torchrun's rendezvous ($(tail -3 first.err))" "$(echo "$two" | grep loss | sort -u)" "$(echo "$one" | sort -u)"
fi
done_testing
