#!/bin/sh
# What only a test build may do stands between #ifdef IDEMQ_TEST and #endif,
# or goes through the macros of testpoint.h, which are empty in other builds.
. "$(dirname "$0")/lint.inc"

files=$(find src -name "*.[ch]" ! -name "testpoint.*" | sort)
[ -n "$files" ] || exit 0

# shellcheck disable=SC2086
found=$(awk '
	FNR == 1 { depth = 0; guards = 0; comment = 0 }
	{
		line = $0
		# comments are no code
		while (1) {
			if (comment) {
				if (!(e = index(line, "*/"))) { line = ""; break }
				line = substr(line, e + 2); comment = 0
			}
			if (!(b = index(line, "/*"))) break
			rest = substr(line, b + 2)
			if (e = index(rest, "*/")) line = substr(line, 1, b - 1) " " substr(rest, e + 2)
			else { line = substr(line, 1, b - 1); comment = 1; break }
		}
		sub(/\/\/.*/, "", line)
	}
	line ~ /^[ \t]*#[ \t]*if/ {
		guard[++depth] = (line ~ /ifdef[ \t]+IDEMQ_TEST/ || (line ~ /defined[ \t(]*IDEMQ_TEST/ && line !~ /!/ && line !~ /\|\|/))
		guards += guard[depth]
		next
	}
	line ~ /^[ \t]*#[ \t]*(else|elif)/ { guards -= guard[depth]; guard[depth] = 0; next }
	line ~ /^[ \t]*#[ \t]*endif/ { guards -= guard[depth]; delete guard[depth--]; next }
	!guards && line ~ /(test_point|test_without|test_clock_offset|testpoint_[a-z]+ *\()/ {
		printf "%s:%d: %s\n", FILENAME, FNR, $0
	}' $files)
finish "$found" "hooks of the test build only where IDEMQ_TEST is defined"
