# Virtual environments of this suite, in the user's cache folder: each is made once, and again when what is
# asked for changes. Sourced by run.sh, which sets `here` and `cache`.

# environment NAME BASE REQUIREMENT...: prints the interpreter, or nothing if it does not install here.
# BASE is a python whose packages it sees as well, or "-". "--no-deps" as a requirement is pip's option.
environment() {
    local name=$1 base=$2 venv=$cache/engines-$1 wanted
    shift 2
    wanted="$base $*"
    (
        # One installer at a time; what was asked for is written last.
        flock 9
        if [ "$(cat "$venv/installed.txt" 2>/dev/null)" != "$wanted" ]; then
            echo "installing $* into $venv" >&2
            python3 -c 'import venv, ensurepip' 2>/dev/null || "$here/../../packages.sh" python3 python3-venv >&2
            python3 -m venv --clear "$venv" >&2
            if [ "$base" != - ]; then
                "$base" -c 'import site; print("\n".join(site.getsitepackages()))' \
                    >"$(echo "$venv"/lib/python3*/site-packages)/shared.pth"
            fi
            "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "$@" >&2 || exit 1
            echo "$wanted" >"$venv/installed.txt"
        fi
    ) 9>"$cache/engines-$name.lock" || return 0
    echo "$venv/bin/python"
}

# older_torch VERSION: the same with this torch and the numpy that goes with it.
older_torch() {
    local numpy=numpy
    case $1 in 2.[0-3].*) numpy='numpy<2' ;; esac
    environment "torch-$1" - "torch==$1" "$numpy"
}
