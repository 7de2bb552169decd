#!/bin/sh
# A C file holds one concept: one that has grown beyond 800 lines holds two.
# idemq.c only starts things up: under 150.
. "$(dirname "$0")/lint.inc"

found=$(find src -name '*.[ch]' | sort | while read -r f; do
	lines=$(wc -l <"$f")
	if [ "$lines" -gt 800 ]; then echo "$f: $lines lines"; fi
	if [ "$f" = src/idemq.c ] && [ "$lines" -ge 150 ]; then echo "$f: $lines lines"; fi
done)
finish "$found" "no C file beyond 800 lines, idemq.c under 150"
