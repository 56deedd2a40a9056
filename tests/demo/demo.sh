#!/bin/sh
# A two-node job on one machine: two launchers, two ranks each, a real torchrun
# with gloo on each node, and a leftover of an "earlier run" that is cleared.
#
# Fails when a node fails, when the sums are wrong or when the leftover survives.
# Runs in a folder of its own and ends only what it started. Keeps the report of the
# job, whose path is the last line.
set -eu

: "${PYTHON:?a python that has torch}" "${RANKLAUNCH:?the executable}"
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
stale= node0= node1=

# A living process of this demo: its folder tells it from a later one with the
# same number, and a zombie has none.
lives() { [ "$(readlink "/proc/$1/cwd" 2>/dev/null)" = "$work" ]; }
clean_up() {
    for node in $node0 $node1; do kill -TERM "$node" 2>/dev/null || true; done
    for node in $node0 $node1; do wait "$node" || true; done
    if [ -n "$stale" ] && lives "$stale"; then kill -KILL "$stale" 2>/dev/null || true; fi
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
title() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
fail() {
    printf '\nthe demo failed: %s\n' "$*" >&2
    for node in 0 1; do
        if [ -f "node$node.txt" ]; then printf -- '-- node %s\n' "$node"; cat "node$node.txt"; fi
    done >&2
    exit 1
}
# The same words with shorter paths and narrower columns.
prefix=$(dirname "$(dirname "$(dirname "$PYTHON")")")
columns() {
    sed -u -E -e "s|$work/||g" -e "s|$prefix/||g" |
        LC_ALL=C awk -F '  +' '/^  [^ ].*  / {
                wide = 17 + gsub(/×/, "×", $3)  # two bytes, one column
                $0 = sprintf("  %-18s %-*s %s  %s", $2, wide, $3, $4, $5)
            }
            { sub(/ +$/, ""); print; fflush() }'
}
short() { columns | sed -u -E 's/^(.{115}).{4,}$/\1.../'; }

# The job runs a copy, so that nothing else on this machine can be taken for it.
cp "$here/train.py" "$work/train.py"
cd "$work"
port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# `node RANK ARGS…`: ranklaunch in what the platform would set in that container.
node() {
    rank=$1; shift
    exec env -i PATH="$PATH" HOME="$HOME" LANG="${LANG:-C}" TMPDIR="${TMPDIR:-/tmp}" \
        ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"} \
        WORLD_SIZE=2 RANK="$rank" MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" \
        "$RANKLAUNCH" "$@"
}
set -- --python "$PYTHON" --device cpu --nproc-per-node 2 --log-dir logs -- train.py

title "1  ranklaunch plan: what node 0 would do, and why"
(node 0 plan "$@") > plan.txt 2>&1 || { cat plan.txt; fail "there is no plan"; }
sed -n '/^decisions/,/^$/p' plan.txt | sed -e 1d -e '/^$/d' | columns

title "2  a rank of an earlier run was left behind; its launcher is long gone"
# It waits for a peer that never comes.
stale=$(TORCHELASTIC_RUN_ID=demo WORLD_SIZE=2 RANK=1 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 \
    sh -c '"$0" train.py </dev/null >/dev/null 2>&1 & echo $!' "$PYTHON")
# Older than the launchers, as leftovers are, and past the fork of its shell.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    sleep 0.2
    case $(tr '\0' ' ' < "/proc/$stale/cmdline") in "$PYTHON train.py "*) break ;; esac
done
lives "$stale" || fail "the leftover could not be planted"
printf '  pid %s: python train.py\n' "$stale"

title "3  ranklaunch run on both nodes; node 0 says"
mkfifo live
tee node0.txt < live | short & shower=$!
(node 0 run "$@") > live 2>&1 & node0=$!
(node 1 run "$@") > node1.txt 2>&1 & node1=$!
code0=0; wait "$node0" || code0=$?
node0=
wait "$shower"
code1=0; wait "$node1" || code1=$?
node1=

title "   node 1 says, after such a block (it notices that both nodes are one machine)"
sed -e '/^  [^h]/d' -e '/^── ranklaunch: [0-9]* nodes ×/d' node1.txt | short

title "4  the verdict"
[ $code0 = 0 ] || fail "node 0 ended with $code0"
[ $code1 = 0 ] || fail "node 1 ended with $code1"
grep -q "step 2: all-reduce gives 14" node0.txt || fail "the ranks did not add up"
printf '  node 0 and node 1 ended with 0; the sums of four ranks are right\n'
# Nothing is ended before both nodes have agreed; here they are one machine, and one is first.
grep -q "ended: pid $stale " node0.txt node1.txt || fail "nobody ended the leftover $stale"
if lives "$stale"; then fail "the leftover $stale is still there"; fi
printf '  pid %s is gone\n' "$stale"
stale=

title "5  every rank has its own files"
for folder in logs/run-*/node-*; do
    printf '  %s: %s\n' "${folder#logs/}" "$(cd "$folder" && echo agent.jsonl run.json attempt-0/*.out)"
done
file=$(find logs -name rank-00000.out)
printf '  %s:\n' "${file##*/}"
sed 's/^/    /' "$file"

title "6  the report of the job: open it in a browser"
[ -s logs/latest/report.html ] || fail "node 0 wrote no report"
for folder in logs/latest/node-*; do
    [ -s "$folder/report.html" ] || fail "there is no $folder/report.html"
done
# Of both nodes, also if they are of different folders.
grep -q '"missing":0' logs/latest/report.html || fail "the report lacks a node"
kept=$(mktemp -d "${TMPDIR:-/tmp}/ranklaunch-demo.XXXXXX")/report.html
cp logs/latest/report.html "$kept"
printf '  %s\n' "$kept"
