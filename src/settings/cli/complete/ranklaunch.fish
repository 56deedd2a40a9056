# Completion of ranklaunch for fish: the program itself says what may stand at the cursor.
function __ranklaunch_offered
    set -l before (commandline -opc)
    set -l typed (commandline -ct)
    set -l lines (command $before[1] completions fish -- $before[2..-1] "$typed" 2>/dev/null)
    # What stands before = stays.
    set -l front (string match -r -- '^-[^=]*=' "$typed")
    set -l name (string replace -- "$front" '' "$typed")
    printf '%s\n' "$front"$lines[2..-1]
    switch "$lines[1]"
        case files
            printf '%s\n' "$front"(__fish_complete_path "$name")
        case folders
            printf '%s\n' "$front"(__fish_complete_directories "$name" '')
        case python
            set -l found $name*.py $name*/
            printf '%s\n' "$front"$found
    end
end
complete -c ranklaunch -f -k -a '(__ranklaunch_offered)'
