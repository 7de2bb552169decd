# shellcheck shell=sh
# shellcheck disable=SC2015,SC2034	# A && B || C is meant; some variables are for the caller
#
# What test/check, test/demo and the drills have in common.  POSIX sh, for
# Debian and Ubuntu.  To be sourced:
#
#	. "$(dirname "$0")/lib.sh"		(test/check, test/demo)
#	. "$(dirname "$0")/../lib.sh"		(test/drills/*.sh)
#
# and used like this:
#
#	need_debian				# or says what is missing: exit 3
#	choose_pg				# sets PGMAJOR
#	need_packages "postgresql-$PGMAJOR" "postgresql-server-dev-$PGMAJOR" gcc make
#	make_work				# sets WORK, SERVER_USER; cleans up at exit
#	copy_tree				# $WORK/src
#	make_prefix				# $WORK/prefix; sets PGBIN, PG_CONFIG, PATH
#	build TEST_BUILD=1			# make all install, into the prefix
#	start_cluster main "shared_preload_libraries = 'idemq'"
#	as_user psql -c 'select 1'
#
# Sourcing sets TREE, the root of the tree that the script belongs to, and
# does nothing else.  Functions that fail end the script, unless it says
# otherwise.
#
# test/check runs the drills as SERVER_USER, with IDEMQ_PREFIX, PGMAJOR, PGBIN
# and PG_CONFIG of its own prefix in the environment: make_prefix and build
# then take what is there, so that a drill reads the same alone and in the
# suite.
#
# say TEXT...		prints a line, with the seconds since the start
# die TEXT...		prints to stderr and exits 1
# need_debian		exits 3 with a list of what is missing where there is no apt
# choose_pg		PGMAJOR := $PGVERSION, else the newest of 15 to 18 whose
#			server is installed, else the newest that apt has
# need_packages P...	installs what is missing of these (root or sudo; the
#			only thing that needs either).  Creates no cluster,
#			starts no service, upgrades nothing that need not be
# want_packages P...	the same, but a package that apt does not have is only
#			mentioned
# have_package P	true if it is installed
# make_work		WORK := a private folder, removed at exit (IDEMQ_KEEP=1
#			keeps it).  SERVER_USER := who runs the server: postgres
#			if we are root, else ourselves.  Sets the traps: who
#			wants something done at exit calls at_exit
# at_exit CODE		shell code, run before the folder is removed, last
#			come first, with the exit status unharmed.  LAST_LINE, if
#			it is set, is printed when everything is gone
# PYTHON		Debian's python3, the one that has pika and psycopg2
# as_user CMD...	runs CMD as SERVER_USER (no shell function), with HOME in
#			WORK and in a session of its own; returns its status.
#			INT and TERM end it with all that it started
# as_user_bg CMD...	the same in the background; BG_PID is its process and
#			its process group.  Ended at exit
# stop_bg PID [SIG]	ends such a process group (TERM) and waits for it
# tree_tar		writes tracked and not ignored files to stdout, as a tar
# copy_tree		copies them to $WORK/src
# make_prefix		private copy of the server, so that the system's stays
#			untouched: IDEMQ_PREFIX, PGBIN, PG_CONFIG, PATH
# build VAR=VALUE...	builds $WORK/src and installs into the prefix
# build_relay VAR=VALUE...   builds idemq-relay there; RELAY is the program.
#			IDEMQ_RELAY=FILE: that one is taken
# start_cluster NAME [LINE...]
#			initdb at the first call, adds the LINEs to
#			postgresql.conf, starts, then use_cluster NAME.  Only a
#			unix socket; superuser postgres; locale C, UTF8
# use_cluster NAME	exports PGHOST, PGPORT, PGUSER, PGDATA of that cluster
# stop_cluster NAME [MODE]   fast unless said otherwise; fine if it is not up
# cluster_log NAME	prints the name of its log file

set -u

PG_MIN=15
PG_MAX=18

PYTHON=/usr/bin/python3

STARTED=$(date +%s)

# The tree is where idemq.control lies, above the script.
find_tree()
{
	_d=$(cd "$(dirname "$0")" && pwd -P) || exit 1
	while [ ! -f "$_d/idemq.control" ]; do
		[ "$_d" != / ] || { echo "$0: not inside a tree of idemq" >&2; exit 1; }
		_d=$(dirname "$_d")
	done
	echo "$_d"
}
TREE=$(find_tree) || exit 1

WORK=
SERVER_USER=
AT_EXIT=

say()
{
	printf '[%3ds] %s\n' "$(($(date +%s) - STARTED))" "$*"
}

die()
{
	printf '%s: %s\n' "$(basename "$0")" "$*" >&2
	exit 1
}

# ---- packages ------------------------------------------------------------

# Where there is no apt, says what is missing and stops.
need_debian()
{
	# shellcheck disable=SC1091
	_ids=$(. /etc/os-release 2>/dev/null && echo " ${ID:-} ${ID_LIKE:-} ")
	case $_ids in
		*" debian "* | *" ubuntu "*)
			if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
				return 0
			fi
			;;
	esac

	_missing=
	for _p in apt-get dpkg-query pg_config pg_ctl pg_prove gcc make perl prove \
		python3 rabbitmq-server faketime; do
		command -v $_p >/dev/null || _missing="$_missing $_p"
	done
	cat >&2 <<-END
		$(basename "$0"): this runs on Debian and Ubuntu only: it uses apt and the places
		where their packages put PostgreSQL.  Nothing was changed.

		Missing here:${_missing:- none of the programs that were looked for}

		On another system, install PostgreSQL $PG_MIN to $PG_MAX with its headers and test
		programs (pg_regress, pg_isolation_regress, PostgreSQL::Test, pgTAP, pg_prove),
		gcc, make and the Perl module IPC::Run, then run "make TEST_BUILD=1 install" and
		"make installcheck" against a server of your own.
	END
	exit 3
}

have_package()
{
	[ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null | cut -c1-2)" = ii ]
}

# Does apt have it?
apt_has()
{
	apt-cache policy "$1" 2>/dev/null | grep -q '^ *Candidate: [^(]'
}

# Runs CMD as root, by sudo if need be.
as_root()
{
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo "$@"
	fi
}

# Can as_root work?  With a terminal sudo may ask for the password.
can_root()
{
	[ -z "${IDEMQ_NO_INSTALL:-}" ] || return 1
	[ "$(id -u)" = 0 ] && return 0
	command -v sudo >/dev/null || return 1
	[ -t 0 ] || sudo -n true 2>/dev/null
}

# Asks apt for its lists, once.  A list that does not come is no reason to
# stop: the installation itself will tell.
APT_UPDATED=
apt_update()
{
	[ -z "$APT_UPDATED" ] || return 0
	APT_UPDATED=1
	say "apt-get update"
	as_root apt-get -q -o DPkg::Lock::Timeout=300 update >/dev/null 2>&1 ||
		say "apt-get update was not quite successful, going on"
}

# What root does to install: it runs as one program, so that its trap takes
# back the measures whatever happens.  A new server package would create and
# start the cluster "main", a new rabbitmq-server would start at once and at
# each boot.
# shellcheck disable=SC2016
ROOT_INSTALL='
set -u
# one at a time, or one would take away the other one'"'"'s measures
exec 9</var/lib/dpkg && flock 9
policy=/usr/sbin/policy-rc.d
conf_dir=/etc/postgresql-common
conf=$conf_dir/createcluster.d/zz-idemq-$$.conf
made_policy= made_conf= made_dir= made_conf_dir=

undo()
{
	[ -z "$made_policy" ] || rm -f "$policy"
	[ -z "$made_conf" ] || rm -f "$conf"
	[ -z "$made_dir" ] || rmdir "$conf_dir/createcluster.d" 2>/dev/null
	[ -z "$made_conf_dir" ] || rmdir "$conf_dir" 2>/dev/null
	[ -z "$log" ] || rm -f "$log"
}
log=
trap undo EXIT
trap "exit 130" INT
trap "exit 143" TERM HUP

if { [ ! -e "$policy" ] && [ ! -L "$policy" ]; } || grep -qs "^# idemq-install" "$policy"; then
	made_policy=1
	printf "#!/bin/sh\n# idemq-install: only while it runs\nexit 101\n" >"$policy" &&
		chmod 755 "$policy" || exit 1
fi
[ -d "$conf_dir" ] || { mkdir "$conf_dir" && made_conf_dir=1 || exit 1; }
[ -d "$conf_dir/createcluster.d" ] ||
	{ mkdir "$conf_dir/createcluster.d" && made_dir=1 || exit 1; }
made_conf=1
echo "create_main_cluster = false" >"$conf" || exit 1
if [ -f "$conf_dir/createcluster.conf" ] && command -v pg_conftool >/dev/null; then
	case $(pg_conftool "$conf_dir/createcluster.conf" show -bs create_main_cluster 2>/dev/null) in
		off | false | no | 0) ;;
		*)
			echo "$conf_dir/createcluster.conf does not read createcluster.d:" >&2
			echo "set create_main_cluster = false in it, or install by hand: $*" >&2
			exit 1
			;;
	esac
fi

was_there()
{
	[ "$(dpkg-query -W -f="\${db:Status-Abbrev}" "$1" 2>/dev/null | cut -c1-2)" = ii ]
}
new=
for p in rabbitmq-server erlang-base; do
	was_there $p || new="$new $p"
done

# a policy of the administrator stays as it is, and may allow to start:
# systemd then gets a mask for the time of the installation
masked=
if [ -z "$made_policy" ] && [ -d /run/systemd/system ]; then
	for u in rabbitmq-server.service epmd.service epmd.socket; do
		case $new in *rabbitmq*) ;; *) continue ;; esac
		[ ! -e "/run/systemd/system/$u" ] && systemctl cat "$u" >/dev/null 2>&1 && continue
		systemctl --runtime mask "$u" >/dev/null 2>&1 && masked="$masked $u"
	done
fi

log=$(mktemp) || exit 1
DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
	apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
	-o Dpkg::Options::=--force-confold \
	--no-install-recommends --no-remove --no-upgrade install "$@" >"$log" 2>&1 </dev/null 9<&-
rc=$?
[ $rc = 0 ] || { tail -n 30 "$log" >&2; }
[ -z "$masked" ] || systemctl --runtime unmask $masked >/dev/null 2>&1

# what is new shall not come up at the next boot either
for p in $new; do
	was_there $p || continue
	case $p in
		rabbitmq-server) services="rabbitmq-server" ;;
		erlang-base) services="epmd" ;;
	esac
	for s in $services; do
		if command -v systemctl >/dev/null; then
			systemctl disable $s.service >/dev/null 2>&1
			[ $s != epmd ] || systemctl disable epmd.socket >/dev/null 2>&1
		fi
		[ ! -e /etc/init.d/$s ] || update-rc.d $s disable >/dev/null 2>&1
		if [ -z "$made_policy" ] && [ ! -d /run/systemd/system ] && [ -x /etc/init.d/$s ]; then
			/etc/init.d/$s stop >/dev/null 2>&1 9<&-
		fi
		if [ $s = epmd ] && [ -z "$made_policy" ] && [ ! -d /run/systemd/system ]; then
			epmd -kill >/dev/null 2>&1
		fi
	done
	[ $p != rabbitmq-server ] ||
		echo "       rabbitmq-server is installed, but neither started nor enabled at boot"
done
exit $rc
'

# Installs what is missing of these packages.
need_packages()
{
	_missing=
	for _p in "$@"; do
		have_package "$_p" || _missing="$_missing $_p"
	done
	[ -n "$_missing" ] || return 0
	if ! can_root; then
		cat >&2 <<-END
			$(basename "$0"): missing packages:$_missing
			This is neither root nor allowed to sudo, or was told not to install.  As root:

			    apt-get install --no-install-recommends$_missing
		END
		exit 3
	fi
	apt_update
	say "installing$_missing (and what they need)"
	# shellcheck disable=SC2086
	as_root sh -c "$ROOT_INSTALL" idemq-install $_missing ||
		die "apt-get install failed:$_missing"
}

# The same, but does without what apt does not have.
want_packages()
{
	_wanted=
	for _w in "$@"; do
		have_package "$_w" && continue
		can_root && apt_update
		if apt_has "$_w" && can_root; then
			_wanted="$_wanted $_w"
		else
			say "going on without the package $_w"
		fi
	done
	# shellcheck disable=SC2086
	[ -z "$_wanted" ] || need_packages $_wanted
}

# PGMAJOR: what PGVERSION asks for, the newest that is installed, or the
# newest that could be.
choose_pg()
{
	if [ -n "${IDEMQ_PREFIX:-}" ] && [ -n "${PGMAJOR:-}" ]; then
		return 0
	fi
	PGMAJOR=
	if [ -n "${PGVERSION:-}" ]; then
		case $PGVERSION in
			15 | 16 | 17 | 18) PGMAJOR=$PGVERSION ;;
			*) die "PGVERSION is $PGVERSION, but idemq is for PostgreSQL $PG_MIN to $PG_MAX" ;;
		esac
		return 0
	fi
	_v=$PG_MAX
	while [ "$_v" -ge $PG_MIN ]; do
		if [ -x "/usr/lib/postgresql/$_v/bin/postgres" ]; then
			PGMAJOR=$_v
			return 0
		fi
		_v=$((_v - 1))
	done
	can_root && apt_update
	_v=$PG_MAX
	while [ "$_v" -ge $PG_MIN ]; do
		if apt_has "postgresql-$_v" && apt_has "postgresql-server-dev-$_v"; then
			PGMAJOR=$_v
			return 0
		fi
		_v=$((_v - 1))
	done
	echo "$(basename "$0"): no PostgreSQL $PG_MIN to $PG_MAX is installed, and apt has none:" >&2
	echo "missing: postgresql-N and postgresql-server-dev-N" >&2
	exit 3
}

# ---- the work folder, and its end ----------------------------------------

at_exit()
{
	AT_EXIT="$1
$AT_EXIT"
}

# Is anything of this process group there that is not a zombie?
group_lives()
{
	for _s in /proc/[0-9]*/stat; do
		read -r _stat 2>/dev/null <"$_s" || continue
		# pid (name) state parent group ...
		_stat=${_stat##*) }
		_state=${_stat%% *}
		_stat=${_stat#* * }
		[ "${_stat%% *}" != "$1" ] || [ "$_state" = Z ] || return 0
	done
	return 1
}

# Ends a process group that spawn made, and waits until it is gone.
end_group()
{
	kill -s "${2:-TERM}" -- "-$1" 2>/dev/null
	_n=0
	while group_lives "$1" && [ $_n -lt 150 ]; do
		_n=$((_n + 1))
		[ $_n -ne 100 ] || kill -s KILL -- "-$1" 2>/dev/null
		sleep 0.1		# sleep: polls, with a deadline
	done
	wait "$1" 2>/dev/null
}

stop_bg()
{
	end_group "$1" "${2:-TERM}"
	rm -f "$WORK/pids/$1"
}

# All that spawn has started and nobody has waited for.
end_spawned()
{
	[ -d "$WORK/pids" ] || return 0
	for _b in "$WORK"/pids/*; do
		_b=${_b##*/}
		[ "$_b" = '*' ] || { end_group "$_b"; rm -f "$WORK/pids/$_b"; }
	done
}

# Every server under the work folder (or another), whoever started it.
stop_servers()
{
	find "${2:-$WORK}" -name postmaster.pid 2>/dev/null | while read -r _f; do
		# a crashed server leaves its file; the number may be another's by now
		read -r _pid <"$_f" || continue
		case $(readlink "/proc/$_pid/exe") in
			*/postgres) ;;
			*) continue ;;
		esac
		as_user_plain "$PGBIN/pg_ctl" stop -s -w -t 60 -m "${1:-fast}" \
			-D "$(dirname "$_f")" >/dev/null 2>&1 </dev/null
	done
}

cleanup()
{
	_status=$?
	trap '' INT TERM HUP
	trap - EXIT
	set +e
	end_spawned
	eval "$AT_EXIT"
	if [ -n "$WORK" ]; then
		[ -z "${PGBIN:-}" ] || { stop_servers fast; stop_servers immediate; }
		cd /
		if [ -n "${IDEMQ_KEEP:-}" ]; then
			echo "kept: $WORK"
		else
			rm -rf "$WORK"
		fi
	fi
	[ -z "${LAST_LINE:-}" ] || echo "$LAST_LINE"
	exit $_status
}

# Makes the private folder where the server's user can reach it, a socket's
# path is short enough, and programs can run.
make_work()
{
	if [ "$(id -u)" = 0 ]; then
		SERVER_USER=postgres
		SERVER_UID=$(id -u postgres 2>/dev/null) || die "there is no user postgres"
		SERVER_GID=$(id -g postgres)
	else
		SERVER_USER=$(id -un)
	fi
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap 'exit 129' HUP
	umask 022

	for _t in "${TMPDIR:-/tmp}" /tmp /var/tmp; do
		[ ${#_t} -le 40 ] && [ -d "$_t" ] && [ -w "$_t" ] || continue
		WORK=$(mktemp -d "$_t/idemq.XXXXXX") || continue
		printf '#!/bin/sh\nexit 0\n' >"$WORK/try" && chmod 755 "$WORK/try"
		mkdir "$WORK/home" "$WORK/s" "$WORK/c" "$WORK/tmp" "$WORK/pids"
		[ "$(id -u)" != 0 ] || chown -R "$SERVER_UID:$SERVER_GID" "$WORK"
		chmod 700 "$WORK"
		if as_user_plain "$WORK/try" 2>/dev/null; then
			rm -f "$WORK/try"
			# a caller's environment is not ours
			unset PGHOST PGPORT PGUSER PGDATABASE PGDATA PGPASSWORD PGPASSFILE \
				PGSERVICE PGOPTIONS PGHOSTADDR PGSSLMODE PGCLIENTENCODING PGAPPNAME
			unset MAKEFLAGS MAKELEVEL MFLAGS MAKEOVERRIDES
			TMPDIR=$WORK/tmp
			LC_ALL=C.UTF-8
			export TMPDIR LC_ALL
			return 0
		fi
		rm -rf "$WORK"
		WORK=
	done
	die "no place for a private folder: tried ${TMPDIR:-/tmp}, /tmp and /var/tmp"
}

# Gives what root made inside the work folder to the server's user.
give_to_user()
{
	[ "$(id -u)" != 0 ] || chown -R "$SERVER_UID:$SERVER_GID" "$@"
}

# Runs CMD as the server's user.
as_user_plain()
{
	if [ "$(id -u)" = 0 ]; then
		setpriv --reuid="$SERVER_UID" --regid="$SERVER_GID" --init-groups \
			env HOME="$WORK/home" USER="$SERVER_USER" LOGNAME="$SERVER_USER" "$@"
	else
		env HOME="$WORK/home" "$@"
	fi
}

# Starts CMD as the server's user, as the head of a process group of its own.
# The shell itself stays free for signals, which it would not see while it
# waits for a program in the foreground.
spawn()
{
	if [ "$(id -u)" = 0 ]; then
		setsid setpriv --reuid="$SERVER_UID" --regid="$SERVER_GID" --init-groups \
			env HOME="$WORK/home" USER="$SERVER_USER" LOGNAME="$SERVER_USER" "$@" <&3 3<&- &
	else
		setsid env HOME="$WORK/home" "$@" <&3 3<&- &
	fi
	SPAWNED=$!
	: >"$WORK/pids/$SPAWNED"
}

as_user()
{
	spawn "$@" 3<&0
	FG_PID=$SPAWNED
	wait "$FG_PID"
	_as_user_status=$?
	rm -f "$WORK/pids/$FG_PID"
	return $_as_user_status
}

as_user_bg()
{
	spawn "$@" 3<&0
	BG_PID=$SPAWNED
}

# ---- tree, server, build -------------------------------------------------

# The tree as a tar: tracked files, and those that could be.
tree_tar()
{
	if [ -e "$TREE/.git" ] && command -v git >/dev/null &&
		git -c safe.directory="$TREE" -C "$TREE" ls-files >/dev/null 2>&1; then
		git -c safe.directory="$TREE" -c core.quotePath=false -C "$TREE" ls-files \
			--cached --others --exclude-standard | sort -u |
			while read -r _f; do
				if [ -e "$TREE/$_f" ] || [ -L "$TREE/$_f" ]; then
					printf '%s\n' "$_f"
				fi
			done | tar -C "$TREE" -c --verbatim-files-from -T - -f -
	else
		# no git: everything but what a build or a test leaves behind
		tar -C "$TREE" -c --exclude=./.git --exclude='*.o' --exclude='*.so' \
			--exclude='*.bc' --exclude=./results --exclude=./output_iso \
			--exclude=./tmp_check --exclude=./tmp_check_iso --exclude=./log \
			--exclude='./sql/idemq--[0-9]*.sql' --exclude='./.built-*' \
			--exclude=__pycache__ -f - .
	fi
}

copy_tree()
{
	mkdir -p "$WORK/src" && tree_tar | tar -C "$WORK/src" -x -o -f - &&
		[ -f "$WORK/src/idemq.control" ] || die "cannot copy the tree"
	give_to_user "$WORK/src"
}

make_prefix()
{
	if [ -n "${IDEMQ_PREFIX:-}" ] && [ -x "${PGBIN:-}/postgres" ]; then
		PREFIX_IS_OURS=
		case :$PATH: in
			*:"$PGBIN":*) ;;
			*) PATH=$PGBIN:$PATH; export PATH ;;
		esac
		return 0
	fi
	PREFIX_IS_OURS=1
	IDEMQ_PREFIX=$WORK/prefix
	for _d in lib share; do
		mkdir -p "$IDEMQ_PREFIX/$_d/postgresql" &&
			cp -a "/usr/$_d/postgresql/$PGMAJOR" "$IDEMQ_PREFIX/$_d/postgresql/" ||
			die "cannot copy the server of PostgreSQL $PGMAJOR"
	done
	# the headers of other majors are left out
	mkdir -p "$IDEMQ_PREFIX/include/postgresql" || exit 1
	for _d in /usr/include/postgresql/*; do
		case ${_d##*/} in
			"$PGMAJOR" | [!0-9]*) cp -a "$_d" "$IDEMQ_PREFIX/include/postgresql/" || exit 1 ;;
		esac
	done
	# an idemq of the system is not what is tested
	rm -rf "$IDEMQ_PREFIX/share/postgresql/$PGMAJOR/extension"/idemq[.-]* \
		"$IDEMQ_PREFIX/lib/postgresql/$PGMAJOR/lib/idemq.so" \
		"$IDEMQ_PREFIX/lib/postgresql/$PGMAJOR/lib/bitcode"/idemq*
	give_to_user "$IDEMQ_PREFIX"
	PGBIN=$IDEMQ_PREFIX/lib/postgresql/$PGMAJOR/bin
	PG_CONFIG=$PGBIN/pg_config
	PATH=$PGBIN:$PATH
	export IDEMQ_PREFIX PGBIN PG_CONFIG PGMAJOR PATH
	[ "$("$PG_CONFIG" --pkglibdir)" = "$IDEMQ_PREFIX/lib/postgresql/$PGMAJOR/lib" ] ||
		die "$PG_CONFIG does not know its place"
}

build()
{
	[ -n "$PREFIX_IS_OURS" ] || return 0
	# no bitcode: the tests have no use for it
	as_user make -s -C "$WORK/src" PG_CONFIG="$PG_CONFIG" with_llvm=no "$@" all \
		>"$WORK/build.log" 2>&1 &&
		as_user make -s -C "$WORK/src" PG_CONFIG="$PG_CONFIG" with_llvm=no "$@" install \
			>>"$WORK/build.log" 2>&1 ||
		{
			tail -n 60 "$WORK/build.log" >&2
			die "the build failed"
		}
}

build_relay()
{
	RELAY=${IDEMQ_RELAY:-}
	[ -z "$RELAY" ] || return 0
	as_user make -s -C "$WORK/src" PG_CONFIG="$PG_CONFIG" with_llvm=no "$@" relay \
		>"$WORK/build-relay.log" 2>&1 || {
		tail -n 60 "$WORK/build-relay.log" >&2
		die "idemq-relay does not build"
	}
	RELAY=$WORK/src/src/relay/idemq-relay
}

# ---- clusters ------------------------------------------------------------

cluster_log()
{
	echo "$WORK/c/$1.log"
}

use_cluster()
{
	PGHOST=$WORK/s/$1
	PGPORT=5432
	PGUSER=postgres
	PGDATA=$WORK/c/$1
	export PGHOST PGPORT PGUSER PGDATA
}

start_cluster()
{
	_cl=$1
	shift
	if [ ! -d "$WORK/c/$_cl" ]; then
		as_user mkdir -p "$WORK/s/$_cl" || exit 1
		as_user "$PGBIN/initdb" -D "$WORK/c/$_cl" -U postgres -A trust --locale=C \
			-E UTF8 --no-sync >"$WORK/initdb.log" 2>&1 ||
			{ cat "$WORK/initdb.log" >&2; die "initdb failed"; }
		as_user_plain tee -a "$WORK/c/$_cl/postgresql.conf" >/dev/null <<-END

			listen_addresses = ''
			unix_socket_directories = '$WORK/s/$_cl'
			port = 5432
			fsync = off		# a crash of the server harms nothing, and that is all we do
			log_line_prefix = '%m [%p] %q%a %d '
			timezone = 'UTC'
			log_timezone = 'UTC'
		END
	fi
	for _line in "$@"; do
		printf '%s\n' "$_line"
	done | as_user_plain tee -a "$WORK/c/$_cl/postgresql.conf" >/dev/null
	if ! as_user "$PGBIN/pg_ctl" start -s -w -t 60 -D "$WORK/c/$_cl" \
		-l "$WORK/c/$_cl.log" </dev/null; then
		tail -n 40 "$WORK/c/$_cl.log" >&2
		die "the server does not start"
	fi
	use_cluster "$_cl"
}

stop_cluster()
{
	[ -f "$WORK/c/$1/postmaster.pid" ] || return 0
	as_user "$PGBIN/pg_ctl" stop -s -w -t 120 -m "${2:-fast}" -D "$WORK/c/$1" </dev/null
}
