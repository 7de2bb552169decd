#!/bin/sh
# Nothing in the tree knows the machine it was written on, what lay beside it,
# or a host that packages came from.
. "$(dirname "$0")/lint.inc"

me=test/lint/paths.sh
hosts='deb\.debian\.org|security\.debian\.org|snapshot\.debian\.org|archive\.ubuntu\.com'
hosts="$hosts|apt\.postgresql\.org|pypi\.org|files\.pythonhosted\.org|registry\.npmjs\.org"
hosts="$hosts|crates\.io|proxy\.golang\.org|rubygems\.org|ghcr\.io|docker\.io|quay\.io|gcr\.io"
paths='(^|[^A-Za-z0-9_.$}*-])/(work|root|home|Users|mnt)/[A-Za-z0-9_]'

found=$(tree_files | grep -v "^$me\$" | while read -r f; do
	grep -InHE "$hosts|$paths|\.\./shared" "$f"
done)
finish "$found" "no path of a machine, no ../shared, no registry's host"
