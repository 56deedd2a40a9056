# Completions of zsh for the line $1, one a line: a shell in a pseudo-terminal whose completion
# prints its matches in place of inserting them.
zmodload zsh/zpty
zpty child zsh -f -i
tell() { zpty -w child "$1" }
tell 'PROMPT= ; unsetopt zle_bracketed_paste 2>/dev/null; stty -echo cols 500'
tell "fpath=(${${(%):-%x}:A:h} \$fpath); autoload -U compinit; compinit -D -u -d $HOME/zcompdump"
tell "cd ${(q)PWD}"
tell 'compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return $?; fi
  typeset -a __hits
  builtin compadd -A __hits "$@"
  print -l -- "HIT:"$^__hits
}'
tell 'zstyle ":completion:*" list-prompt ""; zstyle ":completion:*" select-prompt ""'
tell 'finish() { print "END:" }; zle -N finish; bindkey "^Y" finish; bindkey "^I" complete-word; print READY:'
local line
while zpty -r child line; do [[ $line == *READY:* && $line != *print* ]] && break; done
zpty -w -n child "$1"$'\t\031'
while zpty -r child line; do
  line=${line//$'\r'/}
  [[ $line == *HIT:* ]] && print -r -- ${${line##*HIT:}%%$'\n'}
  [[ $line == *END:* ]] && break
done
zpty -d child
