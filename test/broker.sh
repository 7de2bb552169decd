# shellcheck shell=sh
# shellcheck disable=SC2034	# some variables are for the caller
#
# A private RabbitMQ, for scripts that have sourced lib.sh.  To be sourced:
#
#	start_broker		makes it and starts it, in the background: its own
#				name, ports, data, log, cookie and configuration, in
#				$WORK/broker.  Sets BROKER_PORT, BROKER_PASSWORD (of the
#				user demo) and AMQP_URL, which has the password in it
#	wait_for_broker		until one can connect; dies with its log if one cannot
#	kill_broker		kill -9
#	run_broker		starts it again, with what it had
#	queue_length QUEUE	prints how many messages wait in it
#
# BROKER_PID is the node's script, and the process group that the node is in.

# N ports of 127.0.0.1 that nobody listens on, below those that the kernel
# gives to outgoing connections.
free_ports()
{
	$PYTHON - "$1" <<-'END'
		import random, socket, sys
		held = []
		while len(held) < int(sys.argv[1]):
		    s = socket.socket()
		    try:
		        s.bind(("127.0.0.1", random.randrange(20000, 32000)))
		        held.append(s)
		    except OSError:
		        s.close()
		print(*(s.getsockname()[1] for s in held))
	END
}

# The program of the package is called without Debian's wrapper, which insists
# on the user and the folders of the system's broker.
run_broker()
{
	as_user_bg env -i PATH="$PATH" LANG=C.UTF-8 HOME="$BROKER" \
		ERL_EPMD_ADDRESS=127.0.0.1 \
		ERL_EPMD_PORT="$BROKER_EPMD_PORT" \
		ERL_FLAGS="-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}" \
		ERL_CRASH_DUMP="$BROKER/crash.dump" \
		RABBITMQ_NODENAME="idemq-demo-$BROKER_PORT@127.0.0.1" \
		RABBITMQ_USE_LONGNAME=true \
		RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 \
		RABBITMQ_NODE_PORT="$BROKER_PORT" \
		RABBITMQ_DIST_PORT="$BROKER_DIST_PORT" \
		RABBITMQ_MNESIA_BASE="$BROKER/data" \
		RABBITMQ_LOG_BASE="$BROKER/log" \
		RABBITMQ_PID_FILE="$BROKER/pid" \
		RABBITMQ_CONF_ENV_FILE="$BROKER/env.conf" \
		RABBITMQ_CONFIG_FILE="$BROKER/rabbitmq.conf" \
		RABBITMQ_ADVANCED_CONFIG_FILE="$BROKER/advanced.config" \
		RABBITMQ_ENABLED_PLUGINS_FILE="$BROKER/enabled_plugins" \
		/usr/lib/rabbitmq/bin/rabbitmq-server >>"$WORK/broker.log" 2>&1 </dev/null
	BROKER_PID=$BG_PID
}

# epmd (the name service of Erlang's nodes) is started here, so that it is not
# the node that leaves one behind.
start_broker()
{
	BROKER=$WORK/broker
	# shellcheck disable=SC2046
	set -- $(free_ports 3)
	[ $# = 3 ] || die "no free ports"
	BROKER_PORT=$1 BROKER_DIST_PORT=$2 BROKER_EPMD_PORT=$3
	as_user mkdir "$BROKER" || exit 1
	BROKER_PASSWORD=$($PYTHON -c 'import secrets; print(secrets.token_hex(16))')
	AMQP_URL="amqp://demo:$BROKER_PASSWORD@127.0.0.1:$BROKER_PORT/%2F"
	export AMQP_URL
	as_user_plain tee "$BROKER/rabbitmq.conf" >/dev/null <<-END
		listeners.tcp.1 = 127.0.0.1:$BROKER_PORT
		default_user = demo
		default_pass = $BROKER_PASSWORD
		disk_free_limit.absolute = 10MB
	END
	echo '[].' | as_user_plain tee "$BROKER/enabled_plugins" "$BROKER/advanced.config" >/dev/null
	as_user_plain touch "$BROKER/env.conf"
	as_user chmod 700 "$BROKER"

	as_user_bg env -i PATH="$PATH" epmd -address 127.0.0.1 -port "$BROKER_EPMD_PORT" \
		>"$WORK/epmd.log" 2>&1 </dev/null
	run_broker
}

broker_answers()
{
	as_user $PYTHON -c 'import os, pika
pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])).close()' 2>/dev/null
}

wait_for_broker()
{
	_broker_end=$(($(date +%s) + 60))
	until broker_answers; do
		if [ "$(date +%s)" -ge $_broker_end ] || ! kill -0 "$BROKER_PID" 2>/dev/null; then
			tail -n 40 "$WORK/epmd.log" "$WORK/broker.log" >&2
			die "RabbitMQ does not start"
		fi
		sleep 0.2		# sleep: polls, with a deadline
	done
}

kill_broker()
{
	stop_bg "$BROKER_PID" KILL
}

queue_length()
{
	as_user $PYTHON -c 'import os, sys, pika
connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
print(connection.channel().queue_declare(sys.argv[1], passive=True).method.message_count)
connection.close()' "$1"
}
