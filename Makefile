# idemq: exactly-once effects beside a message broker

EXTENSION = idemq
EXTVERSION = $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(EXTENSION).control)

MODULE_big = idemq
OBJS = \
	src/advance.o \
	src/blake2b.o \
	src/capture.o \
	src/capture_json.o \
	src/capture_move.o \
	src/capture_sql.o \
	src/catalog.o \
	src/checkpoint.o \
	src/claim.o \
	src/claim_sql.o \
	src/clock.o \
	src/consume.o \
	src/consumer.o \
	src/consumer_info.o \
	src/consumer_sql.o \
	src/ddl.o \
	src/dead_letter.o \
	src/digest.o \
	src/direct.o \
	src/durable.o \
	src/event.o \
	src/expire.o \
	src/filter.o \
	src/filter_build.o \
	src/filter_info.o \
	src/fingerprint.o \
	src/grants.o \
	src/guc.o \
	src/idemq.o \
	src/key.o \
	src/leaf.o \
	src/lease.o \
	src/ledger.o \
	src/logleaf.o \
	src/maintain.o \
	src/moment.o \
	src/outbox.o \
	src/outbox_emit.o \
	src/outbox_index.o \
	src/outbox_leaf.o \
	src/parent.o \
	src/parked.o \
	src/partition.o \
	src/partman.o \
	src/reshard.o \
	src/retention.o \
	src/retry.o \
	src/rowform.o \
	src/shmem.o \
	src/spi_plan.o \
	src/stats.o \
	src/status.o \
	src/status_outbox.o \
	src/testpoint.o \
	src/turn.o \
	src/wait.o \
	src/window.o \
	src/worker.o \
	src/xactstate.o

PARTS = $(sort $(wildcard sql/parts/*.sql))
DATA = $(filter-out sql/$(EXTENSION)--$(EXTVERSION).sql,$(wildcard sql/$(EXTENSION)--*.sql))
DATA_built = sql/$(EXTENSION)--$(EXTVERSION).sql
EXTRA_CLEAN = sql/$(EXTENSION)--$(EXTVERSION).sql .built-*

# make TEST_BUILD=1: assertions, warnings as errors, and the points at which
# race tests stop.  Never install such a build where real data lives.
ifdef TEST_BUILD
PG_CFLAGS += -DIDEMQ_TEST -DUSE_ASSERT_CHECKING -Wall -Wextra -Werror \
	-Wno-unused-parameter -Wno-sign-compare
endif

REGRESS_OPTS = --inputdir=test
ISOLATION_OPTS = --inputdir=test --outputdir=.
REGRESS = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
ISOLATION = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
TAP_TESTS = 1
PROVE_TESTS = test/t/*.pl

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)

# without clang there is nothing to make bitcode with
ifeq ($(shell command -v $(or $(CLANG),clang) 2>/dev/null),)
with_llvm = no
endif

include $(PGXS)

# PGXS tracks no headers, nor the switch between the two builds
$(OBJS): $(wildcard src/*.h) .built-$(if $(TEST_BUILD),test,plain)

.built-plain .built-test:
	rm -f .built-*
	touch $@

sql/$(EXTENSION)--$(EXTVERSION).sql: $(PARTS) $(EXTENSION).control
	cat $(PARTS) > $@

.PHONY: relay install-relay uninstall-relay clean-relay demo bench bench-full

# The program that publishes the outbox; src/relay/Makefile tells what can be set.
relay:
	$(MAKE) -C src/relay
install-relay:
	$(MAKE) -C src/relay install
uninstall-relay:
	$(MAKE) -C src/relay uninstall
clean-relay:
	$(MAKE) -C src/relay clean
clean: clean-relay

demo:
	sh test/demo
bench:
	sh test/bench/run
bench-full:
	sh test/bench/run --full
