#!/bin/bash
# Runs the tests that failed in a log of `cargo test --no-fail-fast` again, each alone: again.sh LOG
#
# The suite starts hundreds of real jobs side by side, and a machine that other programs use can take longer than any
# deadline. A test that fails alone as well is a defect; one that passes alone is named, so that it is not forgotten.
# More failures than a busy machine explains, and failures without a name (a test program that was killed, a compiler's
# error), are not tried again.
set -euo pipefail
log=${1:?the log of cargo test}
most=${AGAIN_MOST:-10}

# One line for each failed test: cargo's own words for its program, a tab, its name.
failed=$(awk '
    /^failures:$/ { names = ""; listed = 1; next }
    listed && /^    [^ ]+$/ { names = names substr($0, 5) "\n"; next }
    /^test result: / { listed = 0; if (!/FAILED/) names = ""; next }
    match($0, /^error: test failed, to rerun pass `[^`]+`/) {
        program = substr($0, RSTART, RLENGTH)
        gsub(/^[^`]*`|`$/, "", program)
        if (names == "") print program "\t"
        for (at = split(names, each, "\n"); at > 0; at--) if (each[at] != "") print program "\t" each[at]
        names = ""
    }
' "$log")
count=$(grep -c . <<<"$failed" || true)
if [ "$count" = 0 ] || [ "$count" -gt "$most" ] || grep -q $'\t$' <<<"$failed"; then
    printf 'not tried again: %s\n' "$([ "$count" = 0 ] && echo 'no failed test has a name' || printf '%s failures:\n%s' "$count" "$failed")"
    exit 1
fi
bad=()
while IFS=$'\t' read -r program name; do
    printf '\n== again, alone: %s %s\n' "$program" "$name"
    # shellcheck disable=SC2086
    if make test-one PROGRAM="$program" NAME="$name" </dev/null; then
        printf 'FAILED ONCE, passed alone: %s\n' "$name"
    else
        bad+=("$name")
    fi
done <<<"$failed"
[ ${#bad[@]} = 0 ] && exit
printf 'failed alone as well: %s\n' "${bad[@]}"
exit 1
