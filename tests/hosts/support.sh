# Sourced by tests over hosts made of namespaces. A test runs itself again on the first host, with --inside before its
# arguments; exit code 77, "skipped", where such hosts cannot be made.
set -u
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")

skip() { echo "SKIPPED: $1"; exit 77; }

over_hosts() { # number of hosts, arguments of the test
  [ "$(id -u)" -eq 0 ] || skip "hosts are made of namespaces, which needs root"
  for program in ip tc unshare nsenter mpirun; do
    command -v "$program" >/dev/null || skip "there is no $program"
  done
  mpirun --version | grep -q "Open MPI" || skip "mpirun is not Open MPI's"
  ip netns list >/dev/null 2>&1 && unshare --net true 2>/dev/null || skip "this machine allows no network namespaces"
  cd "$root" || exit 1  # which hosts see, also where it is in /tmp, of which each has one of its own
  local hosts=$1; shift
  export work; work=$(mktemp -d /var/tmp/zero_hosts_test.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  timeout 220 "$root/scripts/hosts.sh" "$hosts" - "exec bash '$(realpath "$0")' --inside $*"
}

failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
expect() { # what, got, wanted
  [ "$2" = "$3" ] || fail "$1: got '$2', want '$3'"
}
contains() { # what, text, wanted part
  case $2 in *"$3"*) ;; *) fail "$1: want '$3' in: $2" ;; esac
}
now() { date +%s.%N; }
took_at_most() { # what, begin, seconds
  local seconds; seconds=$(echo "$(now) - $2" | bc)
  echo "$1: $seconds s"
  [ "$(echo "$seconds <= $3" | bc)" = 1 ] || fail "$1 took $seconds s, want at most $3"
}
wait_for() { # a file, or a condition for eval, 30 s
  for _ in $(seq 300); do
    eval "$1" && return
    sleep 0.1
  done
  fail "waited in vain for: $1"
}
mend() { # the link of a host, and waits until it carries
  link "$1" up
  wait_for "timeout 1 bash -c '</dev/tcp/10.77.0.$1/9' 2>&1 | grep -q refused"
}
done_testing() {
  [ "$failures" -eq 0 ] && echo "all well"
  exit $((failures > 0))
}
