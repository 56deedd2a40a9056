#compdef ranklaunch
# Completion of ranklaunch for zsh: the program itself says what may stand at the cursor.
_ranklaunch() {
    local kind
    local -a lines
    lines=("${(@f)$(${(Q)~words[1]} completions zsh -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    kind=$lines[1]
    shift lines
    lines=("${(@)lines//:/\\:}")
    lines=("${(@)lines/$'\t'/:}")
    # What stands before = stays.
    [[ $words[CURRENT] == -*=* ]] && compset -P '*='
    local found=1
    (( $#lines )) && _describe -V ranklaunch lines && found=0
    case $kind in
        files) _files && found=0 ;;
        folders) _files -/ && found=0 ;;
        python)
            _path_files -g '*.py' && found=0
            _path_files -/ && found=0
            ;;
    esac
    return found
}
if [[ $funcstack[1] == _ranklaunch ]]; then
    _ranklaunch "$@"
else
    compdef _ranklaunch ranklaunch
fi
