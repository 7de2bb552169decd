#!/bin/sh
# Calls go down, never up, and sideways only where doc/design.md says so: the
# includes of src, and those of src/relay, are held against its tables of rooms
# (layer | room | may include).  idemq.h, the shared vocabulary of the
# server's side, is open to all there; idemq.c is its room main.
. "$(dirname "$0")/lint.inc"

# check_includes FOLDER MARK: the table stands between <!-- MARK --> and <!-- /MARK -->
check_includes()
{
	files=$(ls "$1"/*.c "$1"/*.h 2>/dev/null) || return 0

	# shellcheck disable=SC2086,SC2016
	awk '
	function clean(s) { gsub(/[`,]/, " ", s); gsub(/^[ \t]+|[ \t]+$/, "", s); return s }
	# a file is known by its full name, else without .c or .h, else as a part
	# of the room whose name it goes on with (claim_sql.c of claim)
	function room(file,    r) {
		sub(/.*\//, "", file)
		if (file == "idemq.c" && "main" in layer)
			return "main"
		if (file in layer)
			return file
		r = file
		sub(/\.[ch]$/, "", r)
		for (file = r; !(r in layer);)
			if (!sub(/_[^_]*$/, "", r))
				return file
		return r
	}
	FILENAME == "doc/design.md" {
		if ($0 ~ "<!-- *" mark " *-->") { inside = 1; seen = 1 }
		if ($0 ~ "<!-- */" mark " *-->") inside = 0
		if (!inside || !/^\|/ || /^\|[-: |]+$/)
			next
		n = split($0, col, "|")
		if (n < 4 || !match(col[2], /[0-9]+/))
			next
		l = substr(col[2], RSTART, RLENGTH)
		k = split(clean(col[3]), names, /[ \t]+/)
		for (i = 1; i <= k; i++) {
			layer[names[i]] = l
			m = split(clean(col[4]), allowed, /[ \t]+/)
			for (j = 1; j <= m; j++) {
				sub(/\.h$/, "", allowed[j])
				may[names[i], allowed[j]] = 1
			}
		}
		next
	}
	FNR == 1 {
		if (!seen) { print "doc/design.md: no table between <!-- " mark " --> and <!-- /" mark " -->"; exit }
		me = room(FILENAME)
		if (!(me in layer)) print FILENAME ": the table has no room " me
		there[me] = 1
	}
	/^[ \t]*#[ \t]*include[ \t]*"/ {
		split($0, part, "\"")
		own = folder "/" part[2]
		if (index(files, " " own " ") == 0)
			next
		you = room(part[2])
		if (you == me || part[2] == "idemq.h" || !(me in layer) || !(you in layer))
			next
		plain = you
		sub(/\.h$/, "", plain)
		if (layer[you] + 0 < layer[me] + 0)
			next
		if (layer[you] == layer[me] && (me, plain) in may)
			next
		printf "%s:%d: %s (layer %s) includes %s (layer %s)\n", FILENAME, FNR, me, layer[me], you, layer[you]
	}
	END {
		if (!seen)
			exit
		for (r in layer)
			if (!(r in there)) print "doc/design.md: the room " r " is not in " folder
	}' mark="$2" folder="$1" files=" $(echo $files) " doc/design.md $files 2>&1
}

found=$(check_includes src rooms; check_includes src/relay "relay rooms")
finish "$found" "includes go down a layer, or sideways where the tables in doc/design.md allow it"
