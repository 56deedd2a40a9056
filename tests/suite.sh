#!/bin/bash
# Runs the whole suite: suite.sh [FILTER...]
#
# With cargo-nextest where it is installed: all suites side by side, the slowest tests named. A test that fails is
# tried once more, alone, and named either way: the suite starts hundreds of real jobs side by side, and a machine
# that other programs use can take longer than any deadline. A test that fails alone as well is a defect, and so are
# more failures than a busy machine explains (AGAIN_MOST), or more than three that pass only alone (PASSED_ALONE_MOST).
# Without cargo-nextest, `cargo test` runs one suite after the other, and nothing is tried again.
#
# Parts that this machine cannot run are listed at the end ("SKIPPED"); RANKLAUNCH_TEST_NO_SKIP=1 makes them failures.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
# Signals that were ignored when this was started (nohup, a background job) would be ignored by the launchers under
# test as well, as they should.
default=(env --default-signal=HUP,INT,QUIT,TERM)

if ! "$cargo" nextest --version >/dev/null 2>&1; then
    echo "cargo-nextest is not installed: the suites run one after the other" >&2
    exec "${default[@]}" "$cargo" test --locked --workspace --no-fail-fast -- "$@"
fi

run() {
    local profile=$1
    shift
    "${default[@]}" "$cargo" nextest run --locked --workspace --config-file tests/nextest.toml --profile "$profile" "$@"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export RANKLAUNCH_TEST_SKIPS=$work/skips
touch "$RANKLAUNCH_TEST_SKIPS"

# Names of the failed tests, as nextest prints them at the end: "BINARY NAME".
failed() {
    sed -E 's/\x1b\[[0-9;]*m//g' "$1" |
        sed -nE 's/^ +(FAIL|TIMEOUT|ABORT|SIG[A-Z0-9]+|LEAK-FAIL) +\[[^]]*\] +(\([^)]*\) +)?([^ ]+) +([^ ]+)$/\3 \4/p' | sort -u
}
code=0
run default --no-tests=fail "$@" 2>&1 | tee "$work/log" || code=${PIPESTATUS[0]}
if [ "$code" != 0 ]; then
    failed "$work/log" >"$work/failed"
    count=$(grep -c . "$work/failed" || true)
    if [ "$count" = 0 ] || [ "$count" -gt "${AGAIN_MOST:-15}" ]; then
        printf 'not tried again: %s failed tests have a name\n' "$count"
    else
        code=0 alone=0
        while read -r binary name; do
            printf '\n== again, alone: %s %s\n' "$binary" "$name"
            if run again -E "binary_id(=$binary) & test(=$name)" </dev/null; then
                printf 'FAILED ONCE, passed alone: %s %s\n' "$binary" "$name"
                alone=$((alone + 1))
            else
                printf 'failed alone as well: %s %s\n' "$binary" "$name"
                code=1
            fi
        done <"$work/failed"
        if [ "$alone" -gt "${PASSED_ALONE_MOST:-3}" ]; then
            printf '%s tests passed only alone, more than %s\n' "$alone" "${PASSED_ALONE_MOST:-3}"
            code=1
        fi
    fi
fi
sort -u "$RANKLAUNCH_TEST_SKIPS"
exit "$code"
