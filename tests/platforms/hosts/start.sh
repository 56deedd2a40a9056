#!/bin/bash
# Platforms as they are: a distribution's own Slurm, Open MPI and MPICH on three hosts.
#
#   tests/platforms/slurm/run.sh RANKLAUNCH [OPTION...]      the cases of a folder
#   tests/platforms/hosts/start.sh RANKLAUNCH [OPTION...] [FOLDER...]
#   tests/platforms/hosts/start.sh RANKLAUNCH --shell [COMMAND...]     a login host with Slurm
#
# FOLDER is slurm, mpi or bare; without one, all. Options: suite.py --help; SHORT=1 is --short, KEEP=1 keeps
# the folder of logs. Installs what is missing through apt.
# RELEASE=trixie takes the packages of that release of Debian, in a root folder of its own (root.sh).
# The hosts are namespaces on a bridge inside a network of their own, so no address, port or
# firewall rule of this machine is touched. All processes live in one process namespace; its end
# ends them, whatever happens to this script. Daemons, keys and logs are in one temporary folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
executable=$(realpath "${1:?the executable}")
shift

if [ "$(id -u)" != 0 ]; then
    # Hosts need namespaces, and Slurm's daemons start tasks of any user.
    echo "left out: all cases, because this needs root"
    exit 0
fi
if [ "${!#}" != bare ] && ! command -v apt-get >/dev/null && ! command -v slurmctld >/dev/null; then
    echo "left out: all cases, because this needs Debian's or Ubuntu's packages"
    exit 0
fi

here_is=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
root=
if [ -n "${RELEASE:-}" ] && [ "$RELEASE" != "$here_is" ]; then
    if ! command -v apt-get >/dev/null; then
        echo "left out: all cases, because debootstrap comes from Debian's or Ubuntu's packages"
        exit 0
    fi
    root=$("$here/root.sh" "$RELEASE")
fi

missing=()
need() { command -v "$1" >/dev/null || missing+=("${@:2}"); }
need python3 python3
need ip iproute2
need unshare util-linux
# Hosts without a scheduler need no more than that.
if [ -z "$root" ] && [ "${!#}" != bare ]; then
    need munged munge
    need slurmctld slurmctld slurmd slurm-client
    need slurmd slurmd
    need sbatch slurm-client
    need mpirun.openmpi openmpi-bin
    need mpiexec.hydra mpich
fi
if [ ${#missing[@]} -gt 0 ]; then
    "$here/../../packages.sh" --no-install-recommends "${missing[@]}"
fi

# A python with torch, for the cases with an engine. Without one they are left out.
if [ -z "${RANKLAUNCH_TEST_PYTHON:-}" ]; then
    RANKLAUNCH_TEST_PYTHON=$("$here/../../python/find.sh" torch numpy accelerate) || RANKLAUNCH_TEST_PYTHON=
fi
export RANKLAUNCH_TEST_PYTHON

work=$(mktemp -d "${TMPDIR:-/tmp}/platforms.XXXXXX")
chmod 755 "$work"
enter=()
if [ -n "$root" ]; then
    folders=("$(cd "$here/../../.." && pwd)" "$(dirname "$executable")")
    if [ -n "$RANKLAUNCH_TEST_PYTHON" ]; then
        # The same python, below the C library of the other release. One of the distribution itself is
        # not at its place there.
        mapfile -t prefixes < <("$RANKLAUNCH_TEST_PYTHON" -c 'import sys; print(sys.prefix, sys.base_prefix, sep="\n")')
        case "${prefixes[*]} " in
        */usr\ *) RANKLAUNCH_TEST_PYTHON= ;;
        *) folders+=("${prefixes[@]}") ;;
        esac
    fi
    enter=("$here/enter.sh" "$root" "$work" "${folders[@]}" --)
fi
suite=
finish() {
    if [ -n "$suite" ]; then
        kill -KILL "$suite" 2>/dev/null || true
        wait "$suite" 2>/dev/null || true
    fi
    if [ -n "${KEEP:-}" ]; then
        echo "kept: $work"
    else
        rm -rf "$work"
    fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The limit holds for a machine that is busy. Whatever ends `unshare` ends all that it started, and it
# ends with this script.
setpriv --pdeathsig KILL unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc --propagation private \
    "${enter[@]}" timeout --foreground --kill-after=20 "${PLATFORMS_SECONDS:-1200}" \
    python3 "$here/suite.py" --work="$work" --executable="$executable" ${SHORT:+--short} "$@" <&0 &
suite=$!
wait "$suite"
