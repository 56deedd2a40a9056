#!/usr/bin/env bash
# Runs the fuzz targets one after the other, each below libFuzzer, and says at the end what each did: executions, their
# rate, features that were reached, findings. Goes on with the next target after a finding, and then fails.
#
# FUZZ_SECONDS   seconds for each target (60)
# FUZZ_RUNS      executions for each target in place of a time
# ONLY           names of targets; all
#
# Findings are kept in target/fuzz/found/TARGET. The corpus that grows is in target/fuzz/corpus/TARGET; the seeds in
# tests/fuzz/seeds are never written.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo=${CARGO:-cargo}
build=$PWD/target/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
targets=${ONLY:-$(ls tests/fuzz/seeds)}

# cargo-fuzz asks for a nightly compiler's flags; RUSTC_BOOTSTRAP gives them to any. No sanitizer: the rooms under test
# hold no unsafe code.
RUSTC_BOOTSTRAP=1 $cargo fuzz build --fuzz-dir tests/fuzz --target-dir "$build" --sanitizer none targets

# Seconds of one run by the clock, also on a busy machine, and MB of memory: the [platform] of a profile lives as long as
# the process, so many of them need more.
limits=(-timeout=60 -report_slow_units=60 -rss_limit_mb=1024 -malloc_limit_mb=512 -len_control=20)

if [ -n "${FUZZ_RUNS:-}" ]; then
    amount=(-runs="$FUZZ_RUNS")
else
    amount=(-max_total_time="${FUZZ_SECONDS:-60}")
fi

rows=$(mktemp)
log=$(mktemp)
trap 'rm -f "$rows" "$log"' EXIT
failed=0
for target in $targets; do
    corpus=$build/corpus/$target
    found=$build/found/$target
    mkdir -p "$corpus" "$found"
    extra=()
    [ -f "tests/fuzz/dictionaries/$target.dict" ] && extra+=("-dict=tests/fuzz/dictionaries/$target.dict")
    printf '\n== %s\n' "$target"
    began=$SECONDS
    status=0
    FUZZ_TARGET=$target "$build/$host/release/targets" "$corpus" "tests/fuzz/seeds/$target" -artifact_prefix="$found/" \
        "${amount[@]}" "${limits[@]}" "${extra[@]}" -print_final_stats=1 >"$log" 2>&1 || status=$?
    seconds=$((SECONDS - began))
    runs=$(sed -nE 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
    runs=${runs:-$(sed -nE 's/^#([0-9]+).*/\1/p' "$log" | tail -1)}
    features=$(sed -nE 's/.* ft: ([0-9]+) .*/\1/p' "$log" | tail -1)
    findings=0
    if [ "$status" != 0 ]; then
        findings=1
        failed=1
        grep -vE '^#[0-9]+' "$log" | tail -n 40
    fi
    printf '%s\t%s\t%s\t%s\t%s\n' "$target" "${runs:-0}" "$((${runs:-0} / (seconds > 0 ? seconds : 1)))" \
        "${features:-0}" "$findings" | tee -a "$rows"
done

printf '\n%-12s %12s %10s %10s %10s\n' target executions exec/s features findings
while IFS=$'\t' read -r target runs rate features findings; do
    printf '%-12s %12s %10s %10s %10s\n' "$target" "$runs" "$rate" "$features" "$findings"
done <"$rows"
awk -F'\t' '{ runs += $2; findings += $5 } END { printf "%-12s %12d %10s %10s %10d\n", "all", runs, "", "", findings }' "$rows"
exit "$failed"
