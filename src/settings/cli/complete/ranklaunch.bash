# Completion of ranklaunch for bash: the program itself says what may stand at the cursor.
_ranklaunch() {
    local words=() word last= kind= path cur=${COMP_WORDS[COMP_CWORD]}
    # bash splits words at = and :
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if ((${#words[@]})) && [[ $word == [=:] || $last == [=:] ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
        last=$word
    done
    [[ $cur == [=:] ]] && cur=
    COMPREPLY=()
    while IFS=$'\t' read -r word _; do
        if [[ -z $kind ]]; then
            kind=$word
        elif [[ $word == "$cur"* ]]; then
            COMPREPLY+=("$word")
        fi
    done < <("${1/#\~/$HOME}" completions bash -- "${words[@]}" 2>/dev/null)
    [[ $kind == none ]] && return
    compopt -o filenames 2>/dev/null
    while IFS= read -r path; do
        COMPREPLY+=("$path")
    done < <(
        case $kind in
            files) compgen -f -- "$cur" ;;
            folders) compgen -d -- "$cur" ;;
            python) compgen -d -- "$cur"; compgen -f -X '!*.py' -- "$cur" ;;
        esac
    )
}
complete -F _ranklaunch ranklaunch
