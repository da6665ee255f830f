# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completes pagedcl's commands and options in bash: those that its own --help tells.

_pagedcl() {
    local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} words
    if ((COMP_CWORD == 1)); then
        words="--help --version $("$program" --help 2>/dev/null | sed -nE 's/^  ([a-z][a-z-]*) .*/\1/p')"
    elif [[ $word == -* ]]; then
        words=$("$program" "${COMP_WORDS[1]}" --help 2>/dev/null | sed -nE 's/^ +(-., +)?(--[a-z0-9-]+=?).*/\2/p')
    else
        return 0 # a file
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace
}
complete -o default -F _pagedcl pagedcl
