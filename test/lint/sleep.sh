#!/bin/sh
# No test sleeps for luck: it waits for a condition, with a deadline.  The nap
# between two looks at the condition is marked, on its line or the one above,
# with a comment "sleep: why".
. "$(dirname "$0")/lint.inc"

# shellcheck disable=SC2016
found=$(tree_files | grep '^test/' | grep -vE '^test/(bench|drills|lint)/|\.out$' |
	while read -r f; do
		awk '
			BEGIN { marked = -9 }
			/sleep: / { marked = NR }
			/pg_sleep[a-z_]*[ ]*\(/ ||
			/(^|[ \t;&|({])u?sleep[ ]*\(?[ ]*[0-9.]/ ||
			/time\.sleep[ ]*\(/ ||
			/select[ ]*\([ ]*undef[ ]*,[ ]*undef[ ]*,[ ]*undef/ {
				if (marked != NR && marked != NR - 1)
					printf "%s:%d: %s\n", FILENAME, NR, $0
			}' "$f"
	done)
finish "$found" "wait for a condition with a deadline; a nap between two looks says why (sleep: ...)"
