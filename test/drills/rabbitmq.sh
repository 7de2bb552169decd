#!/bin/sh
#
# Drill: payments from RabbitMQ, Python workers killed with kill -9, and every
# count what it must be.  Fails as well if the counts are right when the claims
# are taken out: then they would prove nothing.

sh "$(dirname "$0")/../demo" --check
status=$?
# 3: something is missing here, and cannot be installed
[ $status != 3 ] || status=77
exit $status
