#!/bin/sh
# Shell scripts can be read by the shell that they name, and by shellcheck
# where it is installed.
. "$(dirname "$0")/lint.inc"

found=$(tree_files | while read -r f; do
	first=$(head -c 80 "$f" | tr -d '\000' | sed -n 1p)
	case $first in
		'#!/bin/sh'* | '#!/usr/bin/env sh'* | '# shellcheck shell=sh'*) shell="sh" ;;
		'#!/bin/bash'* | '#!/usr/bin/env bash'*) shell="bash" ;;
		*)
			case $f in
				*.sh) echo "$f: the first line names no shell" ;;
			esac
			continue
			;;
	esac
	"$shell" -n "$f" 2>&1
	if command -v shellcheck >/dev/null; then
		# its notes are a matter of taste
		shellcheck -s "$shell" -S warning -f gcc "$f"
	fi
done)
finish "$found" "sh -n and shellcheck have nothing to say"
