#!/bin/sh
# Calls go down, never up, and sideways only where doc/design.md says so: the
# includes of src are held against its table of rooms (layer | room | may
# include).  idemq.h, the shared vocabulary, is open to all;
# idemq.c is the room main.
. "$(dirname "$0")/lint.inc"

files=$(ls src/*.c src/*.h 2>/dev/null) || exit 0

# shellcheck disable=SC2086,SC2016
found=$(awk '
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
		if (/<!-- *rooms *-->/) { inside = 1; seen = 1 }
		if (/<!-- *\/rooms *-->/) inside = 0
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
		if (!seen) { print "doc/design.md: no table between <!-- rooms --> and <!-- /rooms -->"; exit }
		me = room(FILENAME)
		if (!(me in layer)) print FILENAME ": the table has no room " me
	}
	/^[ \t]*#[ \t]*include[ \t]*"/ {
		split($0, part, "\"")
		own = "src/" part[2]
		if (index(files, " " own " ") == 0)
			next
		you = room(part[2])
		if (you == me || part[2] == "idemq.h" || !(me in layer) || !(you in layer))
			next
		if (layer[you] + 0 < layer[me] + 0)
			next
		plain = you
		sub(/\.h$/, "", plain)
		if (layer[you] == layer[me] && (me, plain) in may)
			next
		printf "%s:%d: %s (layer %s) includes %s (layer %s)\n", FILENAME, FNR, me, layer[me], you, layer[you]
	}' files=" $(echo $files) " doc/design.md $files 2>&1)
finish "$found" "includes go down a layer, or sideways where the table in doc/design.md allows it"
